"""
`ProxyControl`: the control plane of a proxy, while that leads.

A `ControlCore` decides; here it is made from the leader store when this proxy begins to
lead, told what happens, and thrown away when the leadership is over, or when it is not
known what the store holds.

**All that wait are answered.**  Writers wait for the store and for nodes.  When there
is no core any more that knows of them, they are told ``not-leader``, and ask again:
each of their requests may be repeated.  The same happens to what a core would answer at
a moment at which this proxy does not believe that it leads: it may have been paused,
and speak of the past (rule Q4).

**A leader that is out of contact** with the name service may still be the leader when
it is back.  So nodes that it has are heard meanwhile, and not sent away: what they say
is true in any case.  But nothing is confirmed to them, and none is taken in.

**The store** is read and written by a `LeaderStoreThread`; what it
says comes back as an event.  A store that cannot be read is tried again after a pause,
as long as this proxy leads.
"""

from __future__ import annotations

from functools import partial
from secrets import randbits, token_bytes
from typing import TYPE_CHECKING, Final, assert_never, final
from uuid import uuid4

from election import Put
from nameservice import (
    DidNotHappenError,
    NameServiceError,
    StorageError,
    get_logger,
)
from nameservice.clock import earliest
from queryablestate.control.core import ControlCore
from queryablestate.control.effects import (
    AnswerWriter,
    ControlEffect,
    ForgetNode,
    NoteAssignment,
    RefuseWriter,
    SendToNode,
    StartOver,
    WriteStore,
)
from queryablestate.control.events import (
    ControlEvent,
    LinkId,
    LinksClosed,
    StoreFailed,
    StoreWritten,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.job.leader_paths import COUNTERS, encode_record
from queryablestate.control.tally import Tally
from queryablestate.proxy.leader_store import LeaderStoreThread
from queryablestate.wire.node_messages import HeartbeatAcknowledged
from queryablestate.wire.questions import Refusal
from queryablestate.wire.records import CountersRecord
from queryablestate.wire.refusals import NOT_LEADER, refusal_of


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec

    from election import LeaderElection, LeaderSession, LeaderStore
    from nameservice import Clock
    from queryablestate.control.limits import ControlLimits
    from queryablestate.control.stored_control import StoredControl


__all__ = ["ProxyControl"]

# Together they fit MessagePack's integers and LMDB's keys.
_STATE_NUMBER_BIT_COUNT: Final = 40
_STATE_COUNT_BIT_COUNT: Final = 20
_RELOAD_PAUSE_NS: Final = 500_000_000
_COPY_SECRET_SIZE_BYTES: Final = 32


@final
class ProxyControl:
    """
    The core of a proxy's control plane, its store, and who waits for it.

    All of it belongs to the thread of the proxy's loop.

    Args:
        store: The leader store of ``QUERY_PROXY``.
        election: Asked whether this proxy leads.
        session_timeout_ns: Silence after which a node is taken for away.
        clock: What deadlines are measured by.
        call: Has something called in the loop's thread, from any thread.
        send: Sends a message over a link, and returns whether there was room for it.
        on_core: Is told of a core that has just been made, and of None when there is
            none any more.
        on_node_left: Is told over which link a node has left.
        on_routes: Is told that questions may find their nodes now, or never: when
            something that they wait for is another, and only then.
        waiting_count_max: See below.
        limits: How much the control plane takes on.
        direct_reads: Whether nodes may answer clients without the proxy.
        direct_lease_ns: How long they may after they were heard.

    Attributes:
        core: The core, or None while there is none.
        waiting_count_max: How many requests for a change may wait.
        tally: What this proxy has decided whenever it led.
        problem: Why the store could not be read when that was last tried, or None.
    """

    def __init__(
        self,
        store: LeaderStore,
        election: LeaderElection,
        *,
        session_timeout_ns: int,
        clock: Clock,
        call: Callable[[Callable[[], None]], None],
        send: Callable[[LinkId, msgspec.Struct], bool],
        on_core: Callable[[ControlCore | None], None],
        on_node_left: Callable[[LinkId], None],
        on_routes: Callable[[], None],
        waiting_count_max: int,
        limits: ControlLimits,
        direct_reads: bool,
        direct_lease_ns: int,
    ) -> None:
        self._election = election
        self._session_timeout_ns = session_timeout_ns
        self._clock = clock
        self._call = call
        self._send = send
        self._on_core = on_core
        self._on_node_left = on_node_left
        self._on_routes = on_routes
        self._log = get_logger(component="query-proxy")
        self._session: LeaderSession | None = None
        self._on_ready: Callable[[], None] | None = None
        self._reload_at_ns: int | None = None
        self._began_anew_at_ns: int | None = None
        self._settled_at_ns: int | None = None
        self._waiting: dict[LinkId, dict[int, None]] = {}
        self._waiting_count = 0
        self._held: list[AnswerWriter] = []
        self._reach: object = None
        self._unsent: list[LinkId] = []
        self.core: ControlCore | None = None
        self.problem: NameServiceError | None = None
        self.waiting_count_max = waiting_count_max
        self.tally = Tally()
        self._limits = limits
        self._direct_reads = direct_reads
        self._direct_lease_ns = direct_lease_ns
        self._store = LeaderStoreThread(store)

    def close(self) -> None:
        """End the thread of the store, and wait for it."""
        self._store.close()

    def limit(self, limits: ControlLimits, *, waiting_count_max: int) -> None:
        """Take on no more than that from now on."""
        self._limits = limits
        self.waiting_count_max = waiting_count_max
        if self.core is not None:
            self.core.limit(limits)

    # -- leadership --------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Return whether this proxy may answer as the leader, at this moment."""
        session = self._session
        return (
            session is not None
            and self.core is not None
            and self._election.has_leadership(session.leader_session_id)
        )

    @property
    def is_suspended(self) -> bool:
        """Return whether it was granted, and does not believe at this moment."""
        return self.core is not None and not self.leads

    @property
    def leader_epoch(self) -> int:
        """Return the epoch under which it leads; 0 if it was never granted any."""
        return 0 if self._session is None else self._session.epoch

    @property
    def waiting_count(self) -> int:
        """Return how many requests for a change are not answered yet."""
        return self._waiting_count + len(self._held)

    def lead(self, session: LeaderSession, on_ready: Callable[[], None]) -> None:
        """Load what the last leader left; *on_ready* is told once that is done."""
        self.stop()
        self._session = session
        self._on_ready = on_ready
        self._load(session)

    def stop(self) -> None:
        """Answer nothing more as the leader."""
        self._session = None
        self._on_ready = None
        self._reload_at_ns = None
        self.problem = None
        self._store.cancel_load()
        self._discard_core()
        held, self._held = self._held, []
        for answer in held:
            self._refuse_as_not_leader(answer.link, answer.message.request_id)

    def _load(self, session: LeaderSession) -> None:
        def loaded(stored: StoredControl) -> None:
            self._call(partial(self._loaded, session, stored))

        def failed(error: NameServiceError) -> None:
            self._call(partial(self._not_loaded, session, error))

        self._reload_at_ns = None
        self._store.load(loaded, failed)

    def _loaded(self, session: LeaderSession, stored: StoredControl) -> None:
        if self._session is not session:
            return
        if stored.counters is None:
            self._found(session)
            return
        now_ns = self._clock.now_ns()
        self.core = ControlCore(
            counters=stored.counters,
            jobs=stored.jobs,
            nodes=stored.nodes,
            leader_epoch=session.epoch,
            session_timeout_ns=self._session_timeout_ns,
            now_ns=now_ns,
            limits=self._limits,
            copy_secret=token_bytes(_COPY_SECRET_SIZE_BYTES),
            direct_reads=self._direct_reads,
            direct_lease_ns=self._direct_lease_ns,
            unfinished=stored.unfinished,
            tally=self.tally,
        )
        self._reach = self.core.reach(now_ns=now_ns)
        self._settled_at_ns = now_ns + self._session_timeout_ns
        self.problem = None
        self._log.info(
            "control.loaded",
            epoch=session.epoch,
            job_count=len(stored.jobs),
            node_count=len(stored.nodes),
        )
        self._on_core(self.core)
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            on_ready()

    def _found(self, session: LeaderSession) -> None:
        """
        Name a control plane that is new, and load it.

        Nodes set the rows of another control plane aside: the name must be written down
        before anybody is told it.  Clients' routes, writers and this proxy's own cache
        may still name states of one that was lost: no number of its may come again.
        """
        counters = CountersRecord(
            control_id=uuid4().hex,
            ticket_limit=1,
            state_number=randbits(_STATE_NUMBER_BIT_COUNT) << _STATE_COUNT_BIT_COUNT,
            job_number=0,
        )

        def written() -> None:
            if self._session is session:
                self._load(session)

        def failed(error: NameServiceError) -> None:
            self._call(partial(self._not_loaded, session, error))

        self._store.write(
            [Put(COUNTERS, encode_record(counters), version=0)],
            session,
            lambda: self._call(written),
            failed,
            failed,
        )

    def _not_loaded(self, session: LeaderSession, error: NameServiceError) -> None:
        if self._session is not session:
            return
        self.problem = error
        self._reload_at_ns = self._clock.now_ns() + _RELOAD_PAUSE_NS
        self._log.error("control.unreadable", error=str(error))

    # -- what happens ------------------------------------------------------------------

    def next_deadline_ns(self, *, is_anybody_parked: bool) -> int | None:
        """Return when `advance` must be called, or None if it need not be."""
        if self.core is None:
            return self._reload_at_ns
        core_ns = self.core.next_deadline_ns()
        if not self._held and not is_anybody_parked:
            return core_ns  # mostly, and it is asked for each message
        moments = [core_ns, *(answer.not_before_ns for answer in self._held)]
        if is_anybody_parked:
            # Then no node is late any more, and those who wait for one are answered.
            moments.append(self._settled_at_ns)
        return earliest(moments)

    def advance(self, *, now_ns: int) -> None:
        """
        Take note of the time.

        The core is told when that is due, and not whenever a read of somebody is late:
        each of its steps looks at all nodes.
        """
        if self._reload_at_ns is not None and now_ns >= self._reload_at_ns:
            assert self._session is not None
            self._load(self._session)
        if self._settled_at_ns is not None and now_ns >= self._settled_at_ns:
            self._settled_at_ns = None
        self._tell_held(now_ns)
        core = self.core
        if core is None:
            return
        due_ns = core.next_deadline_ns()
        if due_ns is not None and now_ns >= due_ns:
            self.step(TimePassed())
        else:
            self._look(core)  # what was late may be away by now

    def _tell_held(self, now_ns: int) -> None:
        """Tell what is true by now; while it begins anew, later."""
        if self.core is None:
            return
        held, self._held = self._held, []
        for answer in held:
            if now_ns < answer.not_before_ns:
                self._held.append(answer)
            else:
                self._answer(answer.link, answer.message.request_id, answer.message)

    def ask(self, event: WriterAsked) -> None:
        """
        Take a writer's request for a change.

        Raises:
            DidNotHappenError: If too many wait already.
        """
        if self.waiting_count >= self.waiting_count_max:
            raise DidNotHappenError(
                f"{self.waiting_count} changes wait already: ask again in a moment"
            )
        request_ids = self._waiting.setdefault(event.link, {})
        if event.request.request_id not in request_ids:
            request_ids[event.request.request_id] = None
            self._waiting_count += 1
        self.step(event)

    def links_closed(self, links: Sequence[LinkId]) -> None:
        """Take note that no caller waits there any more."""
        if not links:
            return
        for link in links:
            self._waiting_count -= len(self._waiting.pop(link, ()))
        closed = frozenset(links)
        self._held = [answer for answer in self._held if answer.link not in closed]
        self.step(LinksClosed(links=links))

    def step(self, event: ControlEvent) -> None:
        """Have *event* happen, and do what the core wants."""
        core = self.core
        if core is None:
            return
        try:
            effects = core.step(event, now_ns=self._clock.now_ns())
        except Exception as error:  # noqa: BLE001 (a mistake of ours; see below)
            # What the core holds by now is a guess; what the store holds is not.
            self._log.error("control.failed", exc_info=error)
            self._start_over(StorageError(f"the control plane failed: {error!r}"))
            return
        for effect in effects:
            self._perform(effect)
        self._look(core)

    def _look(self, core: ControlCore) -> None:
        """
        Have questions that wait looked at, if what they wait for may be another.

        Connections are closed, and reads late, at the will of strangers: neither costs
        anything for each question that waits (rule B2).
        """
        if self.core is not core:
            return
        reach = core.reach(now_ns=self._clock.now_ns())
        if reach != self._reach:
            self._reach = reach
            self._on_routes()

    # -- what is to be done ------------------------------------------------------------

    def _perform(self, effect: ControlEffect) -> None:
        match effect:
            case WriteStore():
                self._write(effect)
            case AnswerWriter() if self._clock.now_ns() < effect.not_before_ns:
                self._note_answered(effect.link, effect.message.request_id)
                self._held.append(effect)
            case AnswerWriter(link=link, message=message):
                self._answer(link, message.request_id, message)
            case RefuseWriter(link=link, request_id=request_id, error=error):
                self._answer(link, request_id, refusal_of(error, request_id))
            case SendToNode(message=HeartbeatAcknowledged()) if not self.leads:
                pass  # it would say that this proxy leads now
            case SendToNode(link=link, message=message):
                if not self._send(link, message):
                    # The node would wait for ever for what it lacks now: see there.
                    self._close_soon(link)
            case ForgetNode(link=link, node_id=node_id):
                self._log.warning("node.left", node_id=node_id)
                self._on_node_left(link)
            case NoteAssignment():
                self._note(effect)
            case StartOver(reason=reason):
                self._start_over(reason)
            case _:
                assert_never(effect)

    def _close_soon(self, link: LinkId) -> None:
        """Have a connection taken for closed, with all others of the same step."""
        if not self._unsent:
            self._call(self._close_unsent)
        self._unsent.append(link)

    def _close_unsent(self) -> None:
        links, self._unsent = self._unsent, []
        self.links_closed(links)

    def _note(self, note: NoteAssignment) -> None:
        self._log.info(
            "assignment.changed",
            job_id=note.job_id,
            version=note.version,
            node_count=len(note.key_group_counts),
            replica_count=note.replica_count,
            key_group_counts=dict(note.key_group_counts),
            joined=note.joined,
            left=note.left,
            joining_count=note.joining_count,
            left_count=note.left_count,
        )

    def _answer(self, link: LinkId, request_id: int, message: msgspec.Struct) -> None:
        """Tell a writer what came of its request, unless that may be of the past."""
        self._note_answered(link, request_id)
        if self.leads:
            self._send(link, message)
        else:
            self._refuse_as_not_leader(link, request_id)

    def _refuse_as_not_leader(self, link: LinkId, request_id: int) -> None:
        self._send(link, Refusal(request_id=request_id, code=NOT_LEADER))

    def _note_answered(self, link: LinkId, request_id: int) -> None:
        """Count a request as answered: its answer is known."""
        request_ids = self._waiting.get(link)
        if request_ids is not None and request_id in request_ids:
            self._waiting_count -= 1
            del request_ids[request_id]
            if not request_ids:
                del self._waiting[link]

    def _write(self, effect: WriteStore) -> None:
        session, core = self._session, self.core
        assert session is not None

        def written() -> None:
            if self.core is core:
                self.step(StoreWritten())

        def failed(error: NameServiceError, *, is_certain: bool) -> None:
            self._log.warning("store.failed", error=str(error), is_certain=is_certain)
            if self.core is core:
                self.step(StoreFailed(error=error, is_certain=is_certain))

        self._store.write(
            effect.operations,
            session,
            lambda: self._call(written),
            lambda error: self._call(partial(failed, error, is_certain=True)),
            lambda error: self._call(partial(failed, error, is_certain=False)),
        )

    def renew_secret(self) -> None:
        """Give nodes another secret: one that was told the present one is none now."""
        if self.core is not None:
            self._start_over("a node has lost its right, and knows their secret")

    def _start_over(self, reason: NameServiceError | str) -> None:
        """Load the control plane anew; twice within a moment only after a pause."""
        self._log.warning("control.reloaded", reason=str(reason))
        self._discard_core()
        assert self._session is not None
        now_ns = self._clock.now_ns()
        last_ns, self._began_anew_at_ns = self._began_anew_at_ns, now_ns
        # A store that refuses what is left of a large write refuses it again.
        if last_ns is not None and now_ns - last_ns <= _RELOAD_PAUSE_NS:
            self._reload_at_ns = now_ns + _RELOAD_PAUSE_NS
        else:
            self._load(self._session)

    def _discard_core(self) -> None:
        """Have no core; tell everybody who waits for it to ask again."""
        if self.core is None:
            return
        self.core = None
        self._reach = None
        waiting, self._waiting, self._waiting_count = self._waiting, {}, 0
        for link, request_ids in waiting.items():
            for request_id in request_ids:
                self._send(link, Refusal(request_id=request_id, code=NOT_LEADER))
        self._on_core(None)
