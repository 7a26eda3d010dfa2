"""`ProxyCalls`: questions to the proxy that leads, one alone or again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar, final

from msgspec import Struct

from nameservice import (
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    RemoteProtocolError,
    SystemClock,
    UnreachableError,
)
from nameservice.interruptible import InterruptibleEvent
from nameservice.parameters import check_timeout_seconds
from queryablestate.errors import (
    DeadlineExceededError,
    UnknownJobError,
    UnknownStateError,
)
from queryablestate.operations.polling import (
    ask_until_it_happens,
    ask_until_settled,
    wait_for,
)
from queryablestate.wire.clients import ListNodes, NodesListed


if TYPE_CHECKING:
    from queryablestate.client.calls import Build, ProxyConnection
    from queryablestate.wire.clients import ClientRequest, ToClient


__all__ = ["ProxyCalls"]

T = TypeVar("T")
Reply = TypeVar("Reply", bound=Struct)

_SILENCE: Final = (
    DeadlineExceededError,
    KeyboardInterrupt,
    NoLeaderError,
    UnreachableError,
)
"""What says only that there was no answer."""


def _is_unknown(error: NameServiceError) -> bool:
    return isinstance(error, UnknownJobError | UnknownStateError)


@final
class ProxyCalls:
    """
    Asks the proxy that leads.  Thread-safe.

    Args:
        proxy: The way to it; closed by `close`.
        deadline_seconds: How long each call may take that says nothing else.

    Attributes:
        proxy: The way to it.
        deadline_seconds: How long each call may take that says nothing else.
        clock: Where time comes from.
    """

    def __init__(self, proxy: ProxyConnection, *, deadline_seconds: float) -> None:
        self.proxy = proxy
        self.deadline_seconds = deadline_seconds
        self.clock = SystemClock()
        self._closed = InterruptibleEvent()

    def call(
        self,
        expected: type[Reply],
        build: Build,
        *,
        timeout_seconds: float | None = None,
    ) -> Reply:
        """
        Return the answer to one question.

        Raises:
            RemoteProtocolError: If it is not what was *expected*.
            NameServiceError: What the proxy refuses it with, or why it could not be
                asked; see `ProxyConnection`.
        """
        timeout_seconds = check_timeout_seconds(timeout_seconds)
        if timeout_seconds is None:
            timeout_seconds = self.deadline_seconds
        answer: ToClient = self.proxy.call(build, timeout_seconds=timeout_seconds)
        if not isinstance(answer, expected):
            raise RemoteProtocolError(
                "unexpected",
                f"the proxy answered with {type(answer).__name__}, "
                f"not {expected.__name__}",
            )
        return answer

    def change(
        self,
        expected: type[Reply],
        build: Build,
        *,
        timeout_seconds: float | None = None,
        is_gone: Callable[[NameServiceError], bool] = _is_unknown,
    ) -> Reply:
        """
        Return the answer to a request that changes something.

        It is sent again when the answer does not come, which does no harm.  But the one
        that is answered then is not the one that was carried out: of what is gone by
        now, the proxy says that it never heard of it.

        Args:
            expected: As for `call`.
            build: Likewise.
            timeout_seconds: Likewise.
            is_gone: Whether an error says that what is to go is not there.

        Raises:
            MayHaveHappenedError: If it is not there, and the request was sent before.
            NameServiceError: As for `call`; what came of silence has a note that it
                may have happened.
        """
        sent_count = 0

        def counted(request_id: int, session: bytes) -> ClientRequest:
            nonlocal sent_count
            sent_count += 1
            return build(request_id, session)

        try:
            return self.call(expected, counted, timeout_seconds=timeout_seconds)
        except _SILENCE as error:
            if sent_count:
                error.add_note("it was asked for, and may have been done all the same")
            raise
        except NameServiceError as error:
            if sent_count > 1 and is_gone(error):
                raise MayHaveHappenedError(
                    f"{error}; it was asked for more than once, as an answer did not "
                    "come, and may have been done before"
                ) from error
            raise

    def listed_nodes(self) -> NodesListed:
        """Return every node that the control plane knows."""
        return self.call(
            NodesListed,
            lambda request_id, session: ListNodes(
                request_id=request_id, session=session
            ),
        )

    def until_it_happens(self, ask: Callable[[], T], timeout_seconds: float) -> T:
        """Return what *ask* returns; see `ask_until_it_happens`."""
        return ask_until_it_happens(
            ask,
            clock=self.clock,
            closed=self._closed,
            timeout_seconds=timeout_seconds,
        )

    def until_settled(self, ask: Callable[[], T]) -> T:
        """Return what *ask* returns; see `ask_until_settled`."""
        return ask_until_settled(
            ask,
            clock=self.clock,
            closed=self._closed,
            timeout_seconds=self.deadline_seconds,
        )

    def wait_for(
        self,
        ask: Callable[[], T | None],
        *,
        timeout_seconds: float | None,
        missing: Callable[[], str],
    ) -> T:
        """Return what *ask* returns as soon as that is not None; see `wait_for`."""
        return wait_for(
            ask,
            clock=self.clock,
            closed=self._closed,
            timeout_seconds=timeout_seconds,
            missing=missing,
        )

    def close(self) -> None:
        """Close every socket; who waits is told at once.  Idempotent."""
        self._closed.set()
        self.proxy.close()
