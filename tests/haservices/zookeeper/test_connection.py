"""The border to kazoo: its exceptions, and the order of what it tells."""

from __future__ import annotations

import inspect
import ssl
import threading
from collections.abc import Callable, Iterator
from typing import Any

import kazoo.exceptions
import pytest
from kazoo.handlers.threading import KazooTimeoutError

from haservices.event_loop import EventLoop
from haservices.zookeeper.kazoo_parts import KazooHandler
from haservices.zookeeper.translation import translate
from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    SessionExpiredError,
    SystemClock,
)


TIMEOUT_SECONDS = 30.0


class TestTranslation:
    """L4: kazoo's exceptions never escape."""

    def test_each_of_kazoos_exceptions_has_one_of_ours(self) -> None:
        """L4: whatever kazoo may raise, now or in its next release, is translated."""
        kinds = [
            kind
            for _, kind in inspect.getmembers(kazoo.exceptions, inspect.isclass)
            if issubclass(kind, kazoo.exceptions.KazooException)
        ]
        assert len(kinds) > 30
        for kind in (*kinds, KazooTimeoutError):
            error = kind("detail")
            translated = translate(error, target="zookeeper://h:1")
            assert isinstance(translated, NameServiceError), kind
            assert translated.__cause__ is error
            assert str(translated)

    @pytest.mark.parametrize(
        ("kind", "ours"),
        [
            (kazoo.exceptions.ConnectionLoss, MayHaveHappenedError),
            (kazoo.exceptions.OperationTimeoutError, MayHaveHappenedError),
            (KazooTimeoutError, MayHaveHappenedError),
            (kazoo.exceptions.ConnectionClosedError, DidNotHappenError),
            (kazoo.exceptions.NoNodeError, DidNotHappenError),
            (kazoo.exceptions.BadVersionError, DidNotHappenError),
            (kazoo.exceptions.SessionExpiredError, SessionExpiredError),
            (kazoo.exceptions.NoAuthError, AuthenticationError),
            (kazoo.exceptions.AuthFailedError, AuthenticationError),
        ],
    )
    def test_what_may_have_happened_is_told_from_what_did_not(
        self, kind: type[Exception], ours: type[Exception]
    ) -> None:
        """L4: what the caller may do next depends on it."""
        assert isinstance(translate(kind(), target="zookeeper://h:1"), ours)

    def test_our_own_errors_and_mistakes_stay_what_they_are(self) -> None:
        """A bug of ours must not look like an answer of the name service."""
        for error in (LookupError("ours"), DidNotHappenError("ours"), ssl.SSLError()):
            assert translate(error, target="zookeeper://h:1") is error


class TestOrder:
    """What kazoo tells, the loop hears in the order in which it happened."""

    @pytest.fixture
    def loop(self) -> Iterator[EventLoop]:
        """Return a loop that runs."""
        loop = EventLoop("test-loop", SystemClock())
        loop.start()
        yield loop
        loop.stop()

    def told(
        self, loop: EventLoop, ask: Callable[[KazooHandler, list[str]], Any]
    ) -> list[str]:
        """Return what the loop was told after *ask* has run on it."""
        handler = KazooHandler(loop, attempt_timeout_seconds=1.0, tls=None)
        told: list[str] = []
        loop.submit(lambda: ask(handler, told)).result(TIMEOUT_SECONDS)
        loop.submit(lambda: None).result(TIMEOUT_SECONDS)
        return told

    def test_an_answer_quicker_than_its_callback_keeps_its_place(
        self, loop: EventLoop
    ) -> None:
        """
        A watch that fired after an answer is told after it.

        The answer may come while its asker has not yet said what to do with it.
        Told after the watch, it would undo what the watch has told: a contender would
        wait for ever for the end of a predecessor that is gone.
        """

        def ask(handler: KazooHandler, told: list[str]) -> None:
            first, second = handler.async_result(), handler.async_result()

            def answer() -> None:
                first.set("there")
                handler.callback_queue.put(lambda: told.append("watch"))
                second.set_exception(kazoo.exceptions.ConnectionLoss())

            connection = threading.Thread(target=answer)
            connection.start()
            connection.join()
            second.rawlink(lambda _: told.append("second answer"))
            first.rawlink(lambda answer: told.append(answer.get_nowait()))

        assert self.told(loop, ask) == ["there", "watch", "second answer"]

    def test_an_answer_made_on_the_loop_is_told_at_once(self, loop: EventLoop) -> None:
        """Some of kazoo's answers are made of others, and take their place."""

        def ask(handler: KazooHandler, told: list[str]) -> None:
            outer = handler.async_result()
            outer.rawlink(lambda answer: told.append(answer.get_nowait()))
            loop.call(lambda: told.append("later"))
            outer.set("at once")
            outer.rawlink(lambda _: told.append("linked late"))

        assert self.told(loop, ask) == ["at once", "linked late", "later"]
