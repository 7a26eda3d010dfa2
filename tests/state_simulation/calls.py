"""
How a writer talks to the proxy that leads.

A `Call` is a request that is repeated until it is answered, as `ProxyConnection` does.
A `Talk` has a conversation of the shipped `WriterCore`, turn by turn.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, final

from nameservice import NameServiceError
from queryablestate import DeadlineExceededError
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import NOT_LEADER, error_of
from queryablestate.writer.conversations import Heard, Pause
from tests.simulation.timeline import MS


if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Struct

    from queryablestate.control.events import LinkId
    from queryablestate.wire.clients import ToClient
    from queryablestate.writer.conversations import AskProxy, Conversation
    from tests.state_simulation.proxy import WriterRequest
    from tests.state_simulation.world import World


__all__ = ["Call", "Talk"]

_PATIENCE_NS: Final = 400 * MS
_PAUSE_NS: Final = 60 * MS
_SESSION: Final = b"session"
_AGAIN_CODES: Final = frozenset({NOT_LEADER, "did-not-happen", "may-have-happened"})

_Build: TypeAlias = "Callable[[int, int], WriterRequest]"
_Done: TypeAlias = "Callable[[Struct | NameServiceError], None]"


def _at_once(action: Callable[[], None]) -> None:
    action()


@final
class Call:
    """
    Asks the one that leads, until the answer is there or time is up.

    It asks again sooner than the shipped client, which does so only when its connection
    has closed, and takes no notice of what it was answered before: so proxies hear
    everything twice.  But where each answer takes longer than its patience, no answer
    would ever do.  The last that it took no notice of is taken when time is up.

    Args:
        world: Where it happens.
        link: The connection of the process that asks.
        build: Makes the request, of its number and the time that is left.
        on_done: Is told the answer, or the error.
        timeout_ns: How long to try.
        is_alive: Whether the process still runs.
        arrives: Whether what is under way still arrives.
    """

    def __init__(
        self,
        world: World,
        link: LinkId,
        build: _Build,
        on_done: _Done,
        *,
        timeout_ns: int,
        is_alive: Callable[[], bool],
        arrives: Callable[[], bool] = lambda: True,
    ) -> None:
        self._world = world
        self._link = link
        self._build = build
        self._on_done = on_done
        self._deadline_ns = world.timeline.now_ns + timeout_ns
        self._is_alive = is_alive
        self._arrives = arrives
        self._attempt = 0
        self._late: Struct | None = None
        self._is_over = False
        self._try()

    def _try(self) -> None:
        world = self._world
        if self._is_over or not self._is_alive():
            return
        left_ns = self._deadline_ns - world.timeline.now_ns
        if left_ns <= 0 and self._late is not None:
            self._finish(self._late)
            return
        if left_ns <= 0:
            waited_seconds = world.rng.random()
            self._finish(DeadlineExceededError(waited_seconds))
            return
        self._attempt += 1
        attempt = self._attempt
        proxy = world.leader_as_known()
        if proxy is not None:
            request = self._build(world.next_number(), left_ns)
            reply = partial(self._replied, attempt)
            send = partial(
                proxy.writer_asked,
                self._link,
                request,
                lambda message: world.network.letter(partial(reply, message)),
            )
            world.network.letter(partial(self._arrive, send))
        # The connection closes, or a better leader is heard of: it asks again.
        patience_ns = _PAUSE_NS if proxy is None else _PATIENCE_NS
        patience_ns += world.rng.randrange(_PAUSE_NS)
        patience_ns = min(patience_ns, max(left_ns, _PAUSE_NS))
        world.timeline.after(patience_ns, partial(self._lose_patience, attempt))

    def _arrive(self, send: Callable[[], None]) -> None:
        if self._arrives():
            send()

    def _lose_patience(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._try()

    def _replied(self, attempt: int, message: Struct) -> None:
        if self._is_over or not self._is_alive():
            return
        if attempt != self._attempt:
            if not isinstance(message, Refusal):
                self._late = message
            return
        if not isinstance(message, Refusal):
            self._finish(message)
        elif message.code in _AGAIN_CODES:
            self._attempt += 1
            pause_ns = _PAUSE_NS + self._world.rng.randrange(_PAUSE_NS)
            self._world.timeline.after(pause_ns, self._try)
        else:
            self._finish(error_of(message))

    def _finish(self, result: Struct | NameServiceError) -> None:
        self._is_over = True
        self._on_done(result)


@final
class Talk:
    """
    Has a conversation with the proxy that leads.

    Args:
        world: Where it happens.
        link: The connection of the process that asks.
        conversation: What is said.
        on_done: Is told what it returns, or why it failed.
        is_alive: Whether the process still runs.
        then: Has the process do something, once it is not stopped any more.
    """

    def __init__(
        self,
        world: World,
        link: LinkId,
        conversation: Conversation[Any],
        on_done: Callable[[Any], None],
        *,
        is_alive: Callable[[], bool],
        then: Callable[[Callable[[], None]], None] = _at_once,
    ) -> None:
        self._world = world
        self._link = link
        self._conversation = conversation
        self._on_done = on_done
        self._is_alive = is_alive
        self._then = then
        self._go_on(partial(next, conversation))

    def _go_on(self, resume: Callable[[], AskProxy | Pause]) -> None:
        try:
            turn = resume()
        except StopIteration as end:
            self._on_done(end.value)
            return
        except NameServiceError as error:
            self._on_done(error)
            return
        timeline = self._world.timeline
        if isinstance(turn, Pause):
            heard = partial(self._then, partial(self._heard, None))
            timeline.at(max(turn.until_ns, timeline.now_ns), heard)
            return
        build = turn.build
        Call(
            self._world,
            self._link,
            lambda request_id, _: cast(
                "WriterRequest", build(request_id, _SESSION, timeline.now_ns)
            ),
            lambda answer: self._then(partial(self._heard, answer)),
            timeout_ns=turn.deadline_ns - timeline.now_ns,
            is_alive=self._is_alive,
        )

    def _heard(self, answer: Struct | NameServiceError | None) -> None:
        if self._is_alive():
            told = cast("ToClient | NameServiceError | None", answer)
            heard = Heard(self._world.timeline.now_ns, told)
            self._go_on(partial(self._conversation.send, heard))
