"""
`QuerySession`: who leads, the connection to it, and the session; pure.

::

    no leader ──told──► apart ──made──► connected ──Welcome──► session
        ▲                 ▲ └──told another─────┘ ▲               │
        │                 └──failed, refused──────┼───────────────┤
        └──told that no one leads────────────────────────────────┘
                                                  └─not-leader,───┘
                                                    unknown-session

It decides only when to connect and when to greet.  What a lost session means for what
is under way is its owner's business: methods return whether there was one.

An address that was given first stands for the leader until the name service names one.
The name service is asked only if that address does not do (`QuerySession.doubt`).
"""

from __future__ import annotations

from typing import Final, final

from attrs import evolve

from nameservice.errors import (
    AuthenticationError,
    ConfigurationError,
    NameServiceError,
    NoLeaderError,
    UnreachableError,
)
from nameservice.ids import QUERY_PROXY
from queryablestate.client.events import (
    AskWhoLeads,
    ConnectTo,
    Disconnect,
    LeaderTold,
    SayHello,
)
from queryablestate.client.floors import Floor, split_floor
from queryablestate.client.step import NEVER_NS, QueryOutbox, longer_pause
from queryablestate.errors import DeadlineExceededError
from queryablestate.wire.clients import ClientRequest, Welcome
from queryablestate.wire.codec import encode
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import NOT_LEADER, error_of


__all__ = ["QuerySession"]

_OVERLOADED: Final = "did-not-happen"


@final
class QuerySession:
    """
    Who leads, the connection to it, and the session.

    Attributes:
        secret: Of the session, or None while there is none.
        key_count_max: How many keys one question may have.
        frame_size_bytes_max: How big a frame may be.
        pause_ns: How long the last pause was before something was tried again; 0 once
            there was an answer.
        is_trusting: Whether the address that was given first has always done, and the
            name service was never asked.
        unopened: The URL of a name service that is still to be opened, or None.
    """

    def __init__(
        self,
        outbox: QueryOutbox,
        *,
        answer_timeout_ns: int,
        refused_pause_ns: int,
        first_address: str | None = None,
        name_service: str | None = None,
    ) -> None:
        self._outbox = outbox
        self._answer_timeout_ns = answer_timeout_ns
        self._refused_pause_ns = refused_pause_ns
        self.secret: bytes | None = None
        self.key_count_max = 1
        self.frame_size_bytes_max = 1
        self._leader = LeaderTold(address=first_address)
        self.unopened = name_service
        self.is_trusting = first_address is not None
        self._is_unconfirmed = self.is_trusting
        self._epoch = 0
        self._address: str | None = None
        self._is_connected = False
        self._connect_due_ns = outbox.now_ns
        self._hello_id: int | None = None
        self._hello_due_ns = outbox.now_ns
        self.pause_ns = 0
        self._is_denied_leader = False
        self._problem: NameServiceError | None = None
        self._refusal: NameServiceError | None = None
        self._refused_until_ns = 0

    @property
    def leader_address(self) -> str | None:
        """Return where the leader is, as far as is known."""
        return self._leader.address

    @property
    def is_connected(self) -> bool:
        """Return whether messages can flow."""
        return self._is_connected

    @property
    def refusal(self) -> NameServiceError | None:
        """Return why we were not admitted a moment ago, or None."""
        if self._outbox.now_ns < self._refused_until_ns:
            return self._refusal
        return None

    def due_ns(self) -> int:
        """Return when `seek` is to be called, while there is no session."""
        if self._is_connected:
            return self._hello_due_ns
        if self._address is None and self._leader.address is not None:
            return self._connect_due_ns
        return NEVER_NS

    def doubt(self) -> None:
        """Ask the name service who leads, if that has not been done."""
        if self.is_trusting:
            self.is_trusting = False
            self._outbox.perform(AskWhoLeads())

    def seek(self) -> None:
        """Connect, or greet: whatever comes next."""
        if not self._is_connected:
            assert self._leader.address is not None
            self._address = self._leader.address
            self._outbox.perform(ConnectTo(address=self._address))
            return
        if self._hello_id is None:  # a late answer counts, too
            self._hello_id = self._outbox.next_number()
            self._epoch = self._leader.epoch
        self._hello_due_ns = self._outbox.now_ns + self._answer_timeout_ns
        self._outbox.perform(SayHello(request_id=self._hello_id))

    def error_of_silence(
        self, waited_seconds: float, *, least: Floor | None = None
    ) -> NameServiceError:
        """Return what to say to one that waited in vain, be it for a batch."""
        address = self._leader.address
        if address is None:
            problem = self._leader.problem
            if isinstance(problem, UnreachableError):
                # Of one attempt to connect; the caller has waited as long as this.
                return UnreachableError(problem.target, waited_seconds, problem.detail)
            if problem is not None:
                return problem
            if self.unopened is not None:
                return UnreachableError(self.unopened, waited_seconds)
            return NoLeaderError(QUERY_PROXY, waited_seconds)
        if self.secret is not None and least is not None:
            generation, batch_id = split_floor(least)
            whose = "" if generation is None else f" of generation {generation}"
            return DeadlineExceededError(
                waited_seconds,
                f"batch {batch_id}{whose} may not be visible yet; ask for an earlier "
                "one, or wait longer",
            )
        if self.secret is not None:
            return DeadlineExceededError(
                waited_seconds, f"the proxy at {address} gave no answer"
            )
        if self._is_denied_leader:
            return NoLeaderError(QUERY_PROXY, waited_seconds)
        if isinstance(self._problem, AuthenticationError):
            return self._problem
        reason = "does not answer" if self._is_connected else "cannot be reached"
        detail = f"the proxy at {address} {reason}"
        if self._problem is not None:
            detail += f" ({self._problem})"
        return DeadlineExceededError(waited_seconds, detail)

    # -- what happened ---------------------------------------------------------------

    def leader_told(self, leader: LeaderTold) -> bool:
        """Take note of who leads; return whether a session ended by that."""
        if leader.problem is None:
            self.unopened = None
        if not leader.is_known:
            self._leader = evolve(self._leader, problem=None)
            return False
        before, self._leader = self._leader, leader
        address = before.address
        if self._is_unconfirmed:
            if leader.address is None and self._address is not None:
                return False  # what was given first may answer yet
            self._is_unconfirmed = leader.address is None
            address = self._address or address
        if leader.address != address:
            self.pause_ns = 0
            self._connect_due_ns = self._outbox.now_ns
            self._is_denied_leader = False
            self._problem = None
            self._refusal = None
            return self.disconnect()
        # It leads again, and knows nothing of what it was asked before.  Of a greeting
        # that is under way, its answer tells.
        return self.secret is not None and self._epoch < leader.epoch and self.end()

    def disconnect(self) -> bool:
        """Leave; return whether a session ended by that."""
        if self._address is None:
            return False
        self._outbox.perform(Disconnect())
        self._address = None
        self._is_connected = False
        return self.end()

    def made(self) -> None:
        """Take note that messages can flow."""
        self._is_connected = True
        self._hello_due_ns = self._outbox.now_ns

    def failed(self, problem: NameServiceError | None) -> bool:
        """Take note that there is no connection; return whether a session ended."""
        if problem is not None:
            self._problem = problem
        self._address = None
        self._is_connected = False
        self.pause_ns = longer_pause(self.pause_ns)
        self._connect_due_ns = self._outbox.now_ns + self.pause_ns
        self.doubt()
        return self.end()

    def refused(self, error: NameServiceError) -> None:
        """Take note that we are not admitted, and will not be in a moment."""
        self._refusal = error
        self._refused_until_ns = self._outbox.now_ns + self._refused_pause_ns
        self._connect_due_ns = self._hello_due_ns = self._refused_until_ns

    def welcomed(self, welcome: Welcome) -> None:
        """Begin a session, if one is asked for."""
        if welcome.request_id != self._hello_id:
            return
        self._hello_id = None
        if max(welcome.leader_epoch, self._epoch) < self._leader.epoch:
            self._greet_later()  # it has begun to lead anew since it said so
            return
        self.secret = welcome.session
        self.key_count_max = max(1, welcome.keys_per_request_max)
        self.frame_size_bytes_max = welcome.frame_size_bytes_max
        self._epoch = max(welcome.leader_epoch, self._leader.epoch)
        self._is_denied_leader = False
        self._problem = None
        self._refusal = None

    def oversize_of(self, message: ClientRequest) -> ConfigurationError | None:
        """Return why the proxy would not take *message*, if it is too large (B3)."""
        size_bytes = len(encode(message))
        if size_bytes <= self.frame_size_bytes_max:
            return None
        kind = message.__struct_config__.tag
        return ConfigurationError(
            f"a {kind!r} request of {size_bytes:,} bytes is larger than the proxy at "
            f"{self._address} takes: write with fewer tasks, states or nodes, or raise "
            f"its frame_size_bytes_max, which is {self.frame_size_bytes_max:,}"
        )

    def greeting_refused(self, refusal: Refusal) -> NameServiceError | None:
        """Take note of no welcome; return why, if it is no use to wait for one."""
        if refusal.request_id != self._hello_id:
            return None
        self._hello_id = None
        if refusal.code in {NOT_LEADER, _OVERLOADED}:
            self._is_denied_leader = refusal.code == NOT_LEADER
            self.doubt()
            self._greet_later()
            return None
        error = error_of(refusal)
        self.refused(error)
        return error

    def not_leader(self) -> None:
        """Wait for the name service to say who is, or for this one to begin."""
        self.end()
        self._is_denied_leader = True
        self.doubt()
        self._greet_later()

    def unknown(self) -> None:
        """Greet anew: at once, unless sessions come and go."""
        self.end()
        is_first = self.pause_ns == 0
        self._greet_later()
        if is_first:
            self._hello_due_ns = self._outbox.now_ns

    def end(self) -> bool:
        """Have no session; return whether there was one."""
        had_session = self.secret is not None
        self.secret = None
        self._hello_id = None
        self._hello_due_ns = self._outbox.now_ns
        return had_session

    def _greet_later(self) -> None:
        self.pause_ns = longer_pause(self.pause_ns)
        self._hello_due_ns = self._outbox.now_ns + self.pause_ns
