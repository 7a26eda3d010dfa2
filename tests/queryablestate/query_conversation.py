"""Drives a `QueryCore` without sockets: a test says what happens, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import msgspec

from nameservice import NS_PER_SECOND
from queryablestate.client.builder import least_of
from queryablestate.client.config import QueryConfig
from queryablestate.client.core import QueryCore
from queryablestate.client.events import (
    CompleteRequests,
    ConnectionMade,
    ConnectTo,
    LeaderTold,
    MessageCame,
    QueryEffect,
    QueryEvent,
    RequestsAsked,
    SayHello,
    SendRequest,
    TimeWent,
)
from queryablestate.client.requests import (
    Call,
    KeysRead,
    NodeRead,
    Request,
    RouteRead,
)
from queryablestate.client.routes import ROWS, Asking
from queryablestate.wire.clients import StateDescribed, Welcome
from queryablestate.wire.codec import decode_to_client, encode_payload
from queryablestate.wire.direct import ShowTicket
from queryablestate.wire.questions import Ask, Operation, Refusal
from tests.queryablestate.scripted_proxy import error_frame
from tests.queryablestate.scripted_state import ScriptedState


ADDRESS = "tcp://10.0.0.1:1"
OTHER_ADDRESS = "tcp://10.0.0.2:1"
SECRET = b"session"
DEADLINE_NS = 5 * NS_PER_SECOND
MS = 1_000_000

E = TypeVar("E", bound=QueryEffect)


@final
class Conversation:
    """
    A core, its time, and what it has said.

    Attributes:
        core: The core.
        now_ns: Its time.
        state: What answers, if a test does not.
        leader_epoch: Of the proxy, in which it welcomes: the highest that was told.
        done: Requests that were completed, in order.
    """

    def __init__(
        self,
        state: ScriptedState | None = None,
        *,
        config: QueryConfig | None = None,
        key_count_max: int = 1_000,
        frame_size_bytes_max: int = 1_000_000,
        first_address: str | None = None,
        name_service: str | None = None,
    ) -> None:
        self.now_ns = 1_000
        self.leader_epoch = 1
        self.core = QueryCore(
            config,
            now_ns=self.now_ns,
            first_address=first_address,
            name_service=name_service,
        )
        self.state = ScriptedState() if state is None else state
        self.key_count_max = key_count_max
        self.frame_size_bytes_max = frame_size_bytes_max
        self.done: list[Request] = []

    # -- what happens ------------------------------------------------------------------

    def step(self, event: QueryEvent) -> tuple[QueryEffect, ...]:
        """Have *event* happen; return what the core says, the answers excepted."""
        if isinstance(event, LeaderTold):
            self.leader_epoch = max(self.leader_epoch, event.epoch)
        effects = self.core.step(event, now_ns=self.now_ns)
        self.core.check_invariants()
        for effect in effects:
            if isinstance(effect, CompleteRequests):
                assert effect is effects[-1]
                self.done += effect.requests
                assert all(request.is_done for request in effect.requests)
        return tuple(e for e in effects if not isinstance(e, CompleteRequests))

    def wait(self, duration_ns: int) -> tuple[QueryEffect, ...]:
        """Move time on."""
        self.now_ns += duration_ns
        return self.step(TimeWent())

    def wait_for_deadline(self) -> tuple[QueryEffect, ...]:
        """Jump to the next deadline, which must be in the future."""
        deadline_ns = self.core.next_deadline_ns()
        assert deadline_ns is not None
        assert deadline_ns > self.now_ns
        return self.wait(deadline_ns - self.now_ns)

    def say(
        self, message: msgspec.Struct, payload: object = None
    ) -> tuple[QueryEffect, ...]:
        """Have the proxy say *message*."""
        values = b"" if payload is None else encode_payload(payload)
        return self.step(MessageCame(message, values))  # type: ignore[arg-type]  # tests may say anything

    def refuse(
        self, effect: QueryEffect, code: str, *data: object
    ) -> tuple[QueryEffect, ...]:
        """Have the proxy refuse what *effect* sent."""
        return self.say(error_frame(code, number_of(effect), *data))

    # -- how it usually goes -----------------------------------------------------------

    def told(self, address: str | None = ADDRESS, epoch: int = 1) -> None:
        """Have the name service tell who leads; that is not waited for."""
        assert self.step(LeaderTold(address=address, epoch=epoch)) == ()

    def greet(self, *requests: Request) -> SayHello:
        """Ask with a leader known; return the greeting."""
        assert self.step(RequestsAsked(requests)) == (ConnectTo(address=ADDRESS),)
        (hello,) = self.step(ConnectionMade())
        assert isinstance(hello, SayHello)
        return hello

    def welcome(self, hello: QueryEffect) -> tuple[QueryEffect, ...]:
        """Have the proxy welcome us."""
        assert isinstance(hello, SayHello)
        return self.say(
            Welcome(
                request_id=hello.request_id,
                session=SECRET,
                leader_epoch=self.leader_epoch,
                keys_per_request_max=self.key_count_max,
                frame_size_bytes_max=self.frame_size_bytes_max,
            )
        )

    def begin(self, *requests: Request) -> tuple[QueryEffect, ...]:
        """Ask as the first of a client; return what is sent under the session."""
        self.told()
        return self.welcome(self.greet(*requests))

    def describe(self, effect: QueryEffect) -> tuple[QueryEffect, ...]:
        """Have the proxy describe the state."""
        return self.say(
            StateDescribed(
                request_id=number_of(effect), description=self.state.description
            )
        )

    def begin_routed(self, *requests: Request) -> tuple[QueryEffect, ...]:
        """Ask as the first of a client; return what is sent once there is a route."""
        (describe,) = self.begin(*requests)
        return self.describe(describe)

    def ask(self, *requests: Request) -> tuple[QueryEffect, ...]:
        """Ask."""
        return self.step(RequestsAsked(requests))

    def answer(self, effect: QueryEffect) -> tuple[QueryEffect, ...]:
        """Have the state answer what *effect* sent."""
        assert isinstance(effect, SendRequest)
        payload = encode_payload(effect.keys) if effect.keys else b""
        reply = self.state(effect.message, payload)
        if isinstance(reply, msgspec.Struct):
            return self.step(MessageCame(reply))  # type: ignore[arg-type]  # it is for clients
        assert reply is not None
        return self.step(MessageCame(decode_to_client(reply[0]), reply[1]))

    def settle(self, effects: Sequence[QueryEffect]) -> None:
        """Have the state answer *effects*, and what follows, to the end."""
        for _ in range(1_000):
            if not effects:
                return
            effects = [*effects[1:], *self.answer(effects[0])]
        raise AssertionError("it never ends")

    # -- requests ----------------------------------------------------------------------

    def read(
        self,
        *keys: Any,
        asking: Asking = ROWS,
        deadline_ns: int = DEADLINE_NS,
        min_batch_id: int | None = None,
        min_generation: int | None = None,
        is_partial: bool = False,
        state_name: str = "aircraft",
    ) -> KeysRead:
        """Return a question for keys."""
        return KeysRead(
            None,
            (self.state.job_id, state_name),
            asking,
            keys,
            self.now_ns,
            self.now_ns + deadline_ns,
            least_of(min_batch_id, min_generation),
            is_partial,
        )

    def route_read(self, stale: Any = None, *, is_new: bool = False) -> RouteRead:
        """Return a question for the route."""
        state = (self.state.job_id, self.state.state_name)
        now_ns = self.now_ns
        return RouteRead(None, state, now_ns, now_ns + DEADLINE_NS, stale, is_new)

    def node_read(self, route: Any, node_index: int, operation: Any) -> NodeRead:
        """Return a question for a node."""
        state = (self.state.job_id, self.state.state_name)
        return NodeRead(
            None,
            state,
            route,
            node_index,
            operation,
            self.now_ns,
            self.now_ns + DEADLINE_NS,
        )

    def call(self, build: Callable[[int, bytes], Any]) -> Call:
        """Return a question for the proxy."""
        return Call(None, build, self.now_ns, self.now_ns + DEADLINE_NS)


def number_of(effect: QueryEffect) -> int:
    """Return the number of what *effect* sends."""
    if isinstance(effect, SayHello):
        return effect.request_id
    assert isinstance(effect, SendRequest)
    assert not isinstance(effect.message, ShowTicket)
    number: int = effect.message.request_id
    return number


def asked(effect: QueryEffect) -> Ask:
    """Return the question that *effect* sends."""
    assert isinstance(effect, SendRequest)
    assert isinstance(effect.message, Ask)
    assert effect.message.session == SECRET
    assert effect.keys is not None
    return effect.message


def keys_of(effect: QueryEffect) -> list[str]:
    """Return the keys, of one string column, that *effect* asks for."""
    assert isinstance(effect, SendRequest)
    assert effect.keys is not None
    return [key[3:].split(b"\0")[0].decode() for key in effect.keys]


def operation_of(effect: QueryEffect) -> Operation:
    """Return what *effect* asks nodes for."""
    return asked(effect).operation


def refusal_codes(requests: Sequence[Request]) -> list[str]:
    """Return the names of the errors of *requests*."""
    return [type(request.error).__name__ for request in requests]


__all__ = [
    "ADDRESS",
    "DEADLINE_NS",
    "MS",
    "OTHER_ADDRESS",
    "SECRET",
    "Conversation",
    "Refusal",
    "asked",
    "keys_of",
    "number_of",
    "operation_of",
    "refusal_codes",
]
