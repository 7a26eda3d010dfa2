"""The control plane of a proxy while it leads: fakes for store and election."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, final

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from nameservice import (
    DidNotHappenError,
    ManualClock,
    MayHaveHappenedError,
    StaleEpochError,
    UnreachableError,
)
from queryablestate.control.core import ControlCore
from queryablestate.control.events import (
    ControlEvent,
    LinkId,
    NodeSpoke,
    TimePassed,
    WriterAsked,
)
from queryablestate.control.limits import ControlLimits
from queryablestate.proxy.leadership import ProxyControl
from queryablestate.wire.clients import (
    BindRun,
    CommitBatch,
    DrawTicket,
    TicketDrawn,
    WriterRun,
)
from queryablestate.wire.node_messages import (
    HeartbeatAcknowledged,
    NodeRefused,
    NodeRegistered,
)
from queryablestate.wire.operation_messages import ForgetJob, JobForgotten
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import NOT_LEADER
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    LINK_A,
    LINK_B,
    OPERATOR,
    SECOND,
    SESSION,
    TIMEOUT_NS,
    WALL_US,
    Plane,
    commit,
    draw,
    heartbeat,
    node_register,
    stage,
)
from tests.queryablestate.stored_control import (
    FakeElection,
    FakeStore,
    leader_session,
)
from tests.recording import WAIT_SECONDS


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import msgspec

    from queryablestate.control.effects import ControlEffect


@final
class Proxy:
    """
    A `ProxyControl`, driven by the test; what it wants is written down.

    Attributes:
        sent: What was sent, and over which link.
        full: Links over which nothing can be sent.
        cores: What it was told of cores: whether there is one.
        left: The links of nodes that have left.
        look_count: How often questions were worth another look.
        ready_count: How often a leadership was loaded.
    """

    def __init__(self, store: FakeStore, *, direct_lease_ns: int = 0) -> None:
        self.store = store
        self.election = FakeElection()
        self.clock = ManualClock()
        self.sent: list[tuple[LinkId, msgspec.Struct]] = []
        self.full: set[LinkId] = set()
        self.cores: list[bool] = []
        self.left: list[LinkId] = []
        self.look_count = 0
        self.ready_count = 0
        self._calls: deque[Callable[[], None]] = deque()
        self._called = threading.Condition()
        self.control = ProxyControl(
            store.store,
            self.election.as_election,
            session_timeout_ns=TIMEOUT_NS,
            waiting_count_max=5,
            limits=ControlLimits(job_count_max=2),
            direct_reads=False,
            direct_lease_ns=direct_lease_ns,
            clock=self.clock,
            call=self._call,
            send=self._send,
            on_core=self._core_changed,
            on_node_left=self.left.append,
            on_routes=self._look,
        )

    def _send(self, link: LinkId, message: msgspec.Struct) -> bool:
        if link in self.full:
            return False
        self.sent.append((link, message))
        return True

    def _call(self, callback: Callable[[], None]) -> None:
        with self._called:
            self._calls.append(callback)
            self._called.notify_all()

    def _core_changed(self, core: ControlCore | None) -> None:
        self.cores.append(core is not None)

    def _look(self) -> None:
        self.look_count += 1

    def run(self, count: int = 1) -> None:
        """Do what the store's thread has asked for, *count* times."""
        for _ in range(count):
            with self._called:
                assert self._called.wait_for(lambda: self._calls, WAIT_SECONDS)
                callback = self._calls.popleft()
            callback()

    def lead(self, epoch: int = 7) -> None:
        """Be granted, and load."""
        self.control.lead(leader_session(epoch), self._ready)
        self.run()

    def _ready(self) -> None:
        self.ready_count += 1

    def ask(
        self,
        request: DrawTicket | BindRun | CommitBatch | ForgetJob,
        *,
        link: LinkId = DRIVER,
    ) -> None:
        """Have a writer ask."""
        self.control.ask(WriterAsked(link=link, request=request, wall_clock_us=WALL_US))

    def register(self, name: str = "a", link: LinkId = LINK_A) -> None:
        """Have a node register; a new one is written down first."""
        message = node_register(name)
        self.control.step(NodeSpoke(link=link, message=message))

    def beat(self, name: str = "a", link: LinkId = LINK_A) -> None:
        """Have a node send a heartbeat."""
        message = heartbeat(name, 1)
        self.control.step(NodeSpoke(link=link, message=message))

    def answers(self, link: LinkId = DRIVER) -> list[msgspec.Struct]:
        """Return what was sent over *link*, and forget it."""
        found = [message for to, message in self.sent if to == link]
        self.sent = [(to, message) for to, message in self.sent if to != link]
        return found

    def not_led(self, *request_ids: int, link: LinkId = DRIVER) -> bool:
        """Return whether exactly these requests were answered: ask elsewhere."""
        return self.answers(link) == [
            Refusal(request_id=request_id, code=NOT_LEADER)
            for request_id in request_ids
        ]


@pytest.fixture
def store() -> FakeStore:
    """A store with a job on the nodes ``a`` and ``b``."""
    plane = Plane()
    plane.start_job()
    return FakeStore(dict(plane.store))


@pytest.fixture
def proxy(store: FakeStore) -> Iterator[Proxy]:
    """A proxy that leads nothing yet."""
    proxy = Proxy(store)
    yield proxy
    proxy.control.close()


class TestLeading:
    @pytest.mark.proves("Q4")
    def test_it_leads_when_it_has_loaded_and_believes(self, proxy: Proxy) -> None:
        """Q4: neither alone will do."""
        assert not proxy.control.leads
        proxy.control.lead(leader_session(), proxy._ready)
        assert not proxy.control.leads
        proxy.run()
        assert proxy.control.leads
        assert proxy.ready_count == 1
        assert proxy.cores == [True]
        assert proxy.control.leader_epoch == 7
        proxy.election.believes = False
        assert not proxy.control.leads
        proxy.election.believes = True
        proxy.control.stop()
        assert not proxy.control.leads
        assert proxy.cores == [True, False]
        assert proxy.control.leader_epoch == 0

    def test_the_first_leader_of_all_makes_a_control_plane(self) -> None:
        """With a name of its own: no data directory fits two of them."""
        control_ids, secrets = set(), set()
        for _ in range(2):
            store = FakeStore()
            proxy = Proxy(store)
            proxy.lead()
            assert proxy.ready_count == 0
            proxy.run(2)  # it is written down, and read again
            assert proxy.ready_count == 1
            proxy.register()
            proxy.run()
            (registered,) = proxy.answers(LINK_A)
            assert isinstance(registered, NodeRegistered)
            assert registered.control_id.encode() in store.values["counters"]
            control_ids.add(registered.control_id)
            assert len(registered.copy_secret) == 32  # C1: it cannot be guessed
            secrets.add(registered.copy_secret)
            proxy.control.close()
        assert len(control_ids) == len(secrets) == 2

    @pytest.mark.parametrize("has_happened", [True, False])
    def test_its_name_is_in_no_doubt(self, *, has_happened: bool) -> None:
        """Nodes set aside what belongs to another: they are told one name only."""
        store = FakeStore()

        def doubt() -> None:
            store.before_commit = store.after_commit = lambda: None
            raise MayHaveHappenedError("it went away")

        if has_happened:
            store.after_commit = doubt
        else:
            store.before_commit = doubt
        proxy = Proxy(store)
        with capture_logs():
            proxy.lead()
            proxy.run()
        assert proxy.cores == []
        assert isinstance(proxy.control.problem, MayHaveHappenedError)
        proxy.clock.advance(SECOND)
        proxy.control.advance(now_ns=proxy.clock.now_ns())
        proxy.run(1 if has_happened else 3)
        assert proxy.cores == [True]
        assert proxy.ready_count == 1
        proxy.control.close()

    def test_who_is_overtaken_names_nothing(self) -> None:
        """The next leader has another name, or this one."""
        store = FakeStore()
        proxy = Proxy(store)
        proxy.control.lead(leader_session(), proxy._ready)
        proxy.run()
        proxy.control.stop()
        proxy.run()
        assert proxy.cores == []
        proxy.control.close()

    def test_what_was_loaded_for_a_leadership_that_is_over_is_thrown_away(
        self, proxy: Proxy
    ) -> None:
        """Another may have written since."""
        proxy.control.lead(leader_session(7), proxy._ready)
        proxy.control.stop()
        proxy.run()
        assert proxy.cores == []
        assert proxy.ready_count == 0
        proxy.lead(8)
        assert proxy.control.leader_epoch == 8
        assert proxy.cores == [True]

    def test_granted_again_it_begins_anew(self, proxy: Proxy) -> None:
        """Without a revocation between, nothing of the first leadership is left."""
        proxy.lead(7)
        proxy.register()
        assert proxy.control.core is not None
        assert proxy.control.core.view.node_at(LINK_A) == "a"
        proxy.lead(8)
        assert proxy.cores == [True, False, True]
        assert proxy.control.core.view.node_at(LINK_A) is None

    def test_without_a_core_nothing_happens(self, proxy: Proxy) -> None:
        """One that speaks then is answered elsewhere."""
        proxy.beat()
        proxy.control.links_closed([LINK_A])
        proxy.control.advance(now_ns=proxy.clock.now_ns())
        assert proxy.sent == []
        assert proxy.control.next_deadline_ns(is_anybody_parked=True) is None


class TestLog:
    """What operators find in the log."""

    def test_an_assignment_that_has_changed(self, proxy: Proxy) -> None:
        """O6: one line for each version, when the store has it and not before."""
        proxy.lead()
        proxy.register()
        proxy.register("b", LINK_B)
        with capture_logs() as logs:
            proxy.ask(draw(job_id="another"))
            assert logs == []
            proxy.run()
        assert logs == [
            {
                "event": "assignment.changed",
                "log_level": "info",
                "component": "query-proxy",
                "job_id": "another",
                "version": 1,
                "node_count": 2,
                "replica_count": 1,
                "key_group_counts": {"a": 2, "b": 2},
                "joined": ("a", "b"),
                "left": (),
                "joining_count": 0,
                "left_count": 0,
            }
        ]


class TestUnreadableStore:
    def test_it_is_tried_again_after_a_pause(
        self, proxy: Proxy, store: FakeStore
    ) -> None:
        """As long as this proxy leads, and not without end in a moment."""

        def fail(path: str) -> None:
            raise UnreachableError("url", 1.0)

        store.before_get = fail
        with capture_logs() as logs:
            proxy.lead()
        assert [line["event"] for line in logs] == ["control.unreadable"]
        assert isinstance(proxy.control.problem, UnreachableError)
        assert proxy.ready_count == 0
        deadline_ns = proxy.control.next_deadline_ns(is_anybody_parked=False)
        assert deadline_ns == proxy.clock.now_ns() + SECOND // 2
        store.before_get = lambda path: None
        proxy.clock.advance(deadline_ns - proxy.clock.now_ns())
        proxy.control.advance(now_ns=deadline_ns)
        proxy.run()
        assert proxy.control.leads
        assert proxy.control.problem is None
        assert proxy.ready_count == 1

    def test_it_is_not_tried_for_a_leadership_that_is_over(
        self, proxy: Proxy, store: FakeStore
    ) -> None:
        """The next leader has it to itself."""
        store.values["counters"] = b"rubbish"
        with capture_logs():
            proxy.lead()
        proxy.control.stop()
        assert proxy.control.next_deadline_ns(is_anybody_parked=False) is None
        assert proxy.control.problem is None


class TestWaiting:
    """One that waits is answered."""

    def test_a_writer_is_answered_when_the_store_has_it(self, proxy: Proxy) -> None:
        """And does not wait any more."""
        proxy.lead()
        proxy.register()
        proxy.register("b", LINK_B)
        proxy.ask(draw(request_id=5))
        assert proxy.control.waiting_count == 1
        proxy.run()
        (drawn,) = proxy.answers()
        assert isinstance(drawn, TicketDrawn)
        assert drawn.request_id == 5
        assert proxy.control.waiting_count == 0

    @pytest.mark.proves("Q3")
    def test_who_waits_when_the_leadership_ends_asks_elsewhere(
        self, proxy: Proxy
    ) -> None:
        """Q3: at once, not at its deadline; a commit waits for minutes otherwise."""
        proxy.lead()
        proxy.register()
        proxy.ask(draw(request_id=5))
        proxy.ask(draw(request_id=6), link=OPERATOR)
        proxy.control.stop()
        assert proxy.not_led(5)
        assert proxy.not_led(6, link=OPERATOR)
        assert proxy.control.waiting_count == 0
        proxy.run()  # the store has answered late
        assert proxy.answers() == []

    def test_a_commit_that_waits_for_nodes_is_among_them(self, proxy: Proxy) -> None:
        """It is in no queue: only the shell knows of all who wait."""
        proxy.lead()
        proxy.ask(commit(1, 0, stage(1, a=1), request_id=9))
        assert proxy.answers() == []
        proxy.control.stop()
        assert proxy.not_led(9)

    def test_who_left_is_told_nothing(self, proxy: Proxy) -> None:
        """And takes no room."""
        proxy.lead()
        proxy.ask(commit(1, 0, stage(1, a=1), request_id=9))
        proxy.control.links_closed([DRIVER])
        assert proxy.control.waiting_count == 0
        proxy.control.stop()
        assert proxy.answers() == []

    def test_so_many_wait_and_no_more(self, proxy: Proxy) -> None:
        """One more may ask again in a moment."""
        proxy.lead()
        for number in range(5):
            proxy.ask(commit(1, 0, stage(1, a=1), request_id=number))
        with pytest.raises(DidNotHappenError):
            proxy.ask(draw(request_id=6))
        proxy.control.links_closed([DRIVER])
        proxy.ask(draw(request_id=7))

    def test_one_that_is_repeated_takes_one_place(self, proxy: Proxy) -> None:
        """Names of requests are the writer's own."""
        proxy.lead()
        for _ in range(4):
            proxy.ask(commit(1, 0, stage(1, a=1), request_id=1))
        assert proxy.control.waiting_count == 1

    @pytest.mark.proves("Q4")
    def test_while_it_does_not_believe_it_says_so(self, proxy: Proxy) -> None:
        """Q4: what the core would say by then may be of the past."""
        proxy.lead()
        proxy.ask(commit(1, 0, stage(1, a=1), request_id=9, timeout_ms=1_000))
        proxy.election.believes = False
        proxy.clock.advance(2 * SECOND)
        proxy.control.advance(now_ns=proxy.clock.now_ns())
        assert proxy.not_led(9)
        assert proxy.control.waiting_count == 0


class TestOutOfContact:
    """A leader that does not believe may still be the leader when it does again."""

    @pytest.mark.proves("Q4")
    def test_nodes_are_heard_and_nothing_is_confirmed(self, proxy: Proxy) -> None:
        """Q4: a node's lease must not rest on what is not known."""
        proxy.lead()
        proxy.register()
        proxy.sent.clear()
        proxy.election.believes = False
        assert proxy.control.is_suspended
        for _ in range(5):
            proxy.clock.advance(TIMEOUT_NS // 2)
            proxy.control.advance(now_ns=proxy.clock.now_ns())
            proxy.beat()
        assert proxy.sent == []
        assert proxy.left == []
        proxy.election.believes = True
        assert not proxy.control.is_suspended
        proxy.beat()
        assert proxy.answers(LINK_A) == [
            HeartbeatAcknowledged(leader_epoch=7, number=1)
        ]

    def test_a_silent_node_is_away_all_the_same(self, proxy: Proxy) -> None:
        """What one hears does not depend on the name service."""
        proxy.lead()
        proxy.register()
        proxy.election.believes = False
        proxy.clock.advance(TIMEOUT_NS)
        with capture_logs():
            proxy.control.advance(now_ns=proxy.clock.now_ns())
        assert proxy.left == [LINK_A]

    def test_who_never_led_is_not_out_of_contact(self, proxy: Proxy) -> None:
        """It has no nodes."""
        assert not proxy.control.is_suspended


class TestFullQueue:
    """A node that takes no more lacks something then, and would never ask for it."""

    def test_a_node_that_takes_no_more_registers_again(self, proxy: Proxy) -> None:
        """W3: what it missed is sent anew when it does, and none waits for ever."""
        proxy.lead()
        proxy.register()
        proxy.full.add(LINK_A)
        proxy.beat()
        assert proxy.left == []  # not in the middle of a step
        with capture_logs():
            proxy.run()
        assert proxy.left == [LINK_A]
        proxy.full.clear()
        proxy.sent.clear()
        proxy.beat()
        (refused,) = proxy.answers(LINK_A)
        assert refused == NodeRefused(reason="unknown", detail="register first")

    @pytest.mark.proves("B2")
    def test_all_that_take_no_more_are_closed_at_once(self, proxy: Proxy) -> None:
        """B2: what follows for the others is worked out once."""
        proxy.lead()
        proxy.register()
        proxy.register("b", LINK_B)
        proxy.full.update((LINK_A, LINK_B))
        proxy.look_count = 0
        proxy.beat()
        proxy.beat("b", LINK_B)
        with capture_logs():
            proxy.run()
        assert proxy.left == [LINK_A, LINK_B]
        assert proxy.look_count == 1
        assert not proxy._calls


class TestStoreInDoubt:
    """It is not known what the store holds: it is read anew."""

    @pytest.fixture
    def doubtful(self, proxy: Proxy, store: FakeStore) -> Proxy:
        """A leader whose write was sent, and not answered."""
        proxy.lead()
        proxy.register()
        proxy.register("b", LINK_B)

        def doubt() -> None:
            store.after_commit = lambda: None
            raise MayHaveHappenedError("it went away")

        store.after_commit = doubt
        proxy.ask(draw(request_id=5))
        proxy.ask(commit(1, 0, stage(1, a=1), request_id=6))
        proxy.sent.clear()
        with capture_logs():
            proxy.run()
        return proxy

    def test_whoever_waits_is_told(self, doubtful: Proxy) -> None:
        """All of it may be asked again."""
        told = doubtful.answers()
        assert {message.request_id for message in told} == {5, 6}  # type: ignore[attr-defined]  # refusals
        assert {message.code for message in told} <= {"may-have-happened", NOT_LEADER}  # type: ignore[attr-defined]  # refusals
        assert doubtful.control.waiting_count == 0

    def test_until_it_has_loaded_it_answers_nothing(self, doubtful: Proxy) -> None:
        """Then it goes on under the same epoch, with what the store holds."""
        assert not doubtful.control.leads
        assert doubtful.cores == [True, False]
        doubtful.run()
        assert doubtful.control.leads
        assert doubtful.control.leader_epoch == 7
        core = doubtful.control.core
        assert core is not None
        assert core._control.ticket_next == 2_001  # the write had happened
        doubtful.beat()
        assert core.view.node_at(LINK_A) is None  # it is told to register again

    def test_a_write_that_did_not_happen_costs_nobody_else(
        self, proxy: Proxy, store: FakeStore
    ) -> None:
        """The core goes on."""

        def refuse() -> None:
            raise StaleEpochError("QUERY_PROXY", 7, 8)

        proxy.lead()
        proxy.register()
        store.before_commit = refuse
        proxy.ask(draw(request_id=5))
        with capture_logs():
            proxy.run()
        (told,) = proxy.answers()
        assert isinstance(told, Refusal)
        assert told.code == "did-not-happen"
        assert proxy.cores == [True]

    def test_an_answer_of_the_store_to_an_earlier_core_is_ignored(
        self, proxy: Proxy
    ) -> None:
        """The new one has read what came of it."""
        proxy.lead(7)
        proxy.register()
        proxy.ask(draw(request_id=5))
        proxy.control.lead(leader_session(8), proxy._ready)
        proxy.run(2)
        assert proxy.control.leader_epoch == 8
        assert proxy.not_led(5)


class TestHeldAnswers:
    """An answer that is true from some time on outlasts the core, and no leadership."""

    @pytest.fixture
    def forgetting(self, store: FakeStore) -> Iterator[Proxy]:
        """A proxy that has forgotten a job which clients of nodes may still read."""
        proxy = Proxy(store, direct_lease_ns=SECOND)
        proxy.lead()
        proxy.ask(ForgetJob(request_id=9, session=SESSION, job_id=APP))
        proxy.run()  # it is written down, and the core is thrown away
        assert not proxy.control.leads
        proxy.run()
        assert proxy.control.leads
        assert proxy.answers() == []
        assert proxy.control.waiting_count == 1
        yield proxy
        proxy.control.close()

    @pytest.mark.proves("D5")
    def test_it_is_told_when_its_time_has_come(self, forgetting: Proxy) -> None:
        """D5: and once."""
        due_ns = forgetting.clock.now_ns() + SECOND
        deadline_ns = forgetting.control.next_deadline_ns(is_anybody_parked=False)
        assert deadline_ns is not None
        assert deadline_ns <= due_ns
        for count in (0, 1, 0):
            forgetting.control.advance(now_ns=forgetting.clock.now_ns())
            answers = forgetting.answers()
            assert [type(one) for one in answers] == [JobForgotten] * count
            forgetting.clock.advance(SECOND)
        assert forgetting.control.waiting_count == 0

    @pytest.mark.proves("Q3")
    def test_who_waits_when_the_leadership_ends_asks_elsewhere(
        self, forgetting: Proxy
    ) -> None:
        """Q3: at once; another leader may know of readers that this one does not."""
        forgetting.control.stop()
        assert forgetting.not_led(9)
        assert forgetting.control.waiting_count == 0
        forgetting.lead(8)
        forgetting.clock.advance(SECOND)
        forgetting.control.advance(now_ns=forgetting.clock.now_ns())
        assert forgetting.answers() == []

    def test_who_left_is_told_nothing(self, forgetting: Proxy) -> None:
        """And takes no place any more."""
        forgetting.control.links_closed([DRIVER])
        assert forgetting.control.waiting_count == 0
        forgetting.clock.advance(SECOND)
        forgetting.control.advance(now_ns=forgetting.clock.now_ns())
        assert forgetting.answers() == []


RUN = WriterRun(query_id="q", run_id="r", on_new_query="refuse", born_epoch=1)


class TestLimits:
    @pytest.mark.proves("C4")
    def test_they_hold_for_the_core_and_change_with_it(self, proxy: Proxy) -> None:
        """C4: for the one that there is, and for those that follow."""
        proxy.lead()
        proxy.register()
        proxy.register("b", LINK_B)
        for job_id in ("one", "two"):
            request = draw(job_id=job_id, request_id=len(job_id))
            proxy.ask(replace(request, run=RUN))
            proxy.run(proxy.control.waiting_count)
        *_, refused = proxy.answers()
        assert isinstance(refused, Refusal)
        assert refused.code == "invalid"
        proxy.control.limit(ControlLimits(job_count_max=3), waiting_count_max=1)
        assert proxy.control.waiting_count_max == 1
        proxy.ask(draw(job_id="two"))
        proxy.run()
        (drawn,) = proxy.answers()
        assert isinstance(drawn, TicketDrawn)
        proxy.lead(8)
        assert proxy.control.core is not None
        assert proxy.control.core._control.limits == ControlLimits(job_count_max=3)


class TestMistakes:
    def test_a_core_that_fails_is_thrown_away(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it holds by then is a guess; what the store holds is not."""
        proxy.lead()
        proxy.ask(commit(1, 0, stage(1, a=1), request_id=9))

        def fail(*arguments: object, **keywords: object) -> None:
            raise AssertionError("a mistake")

        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(ControlCore, "step", fail)
            proxy.beat()
        assert [line["event"] for line in logs] == [
            "control.failed",
            "control.reloaded",
        ]
        assert proxy.not_led(9)
        assert not proxy.control.leads
        proxy.run()
        assert proxy.control.leads

    def test_a_second_one_in_a_moment_is_followed_by_a_pause(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What fails again as soon as it is loaded must not be loaded without end."""

        def fail(*arguments: object, **keywords: object) -> None:
            raise AssertionError("a mistake")

        proxy.lead()
        with monkeypatch.context() as patch:
            patch.setattr(ControlCore, "step", fail)
            proxy.beat()
            assert proxy.control.next_deadline_ns(is_anybody_parked=False) is None
            proxy.run()
            proxy.beat()
        deadline_ns = proxy.control.next_deadline_ns(is_anybody_parked=False)
        assert deadline_ns == proxy.clock.now_ns() + SECOND // 2
        proxy.clock.advance(SECOND // 2)
        proxy.control.advance(now_ns=proxy.clock.now_ns())
        proxy.run()
        assert proxy.control.leads


class TestLooks:
    """When questions that wait for nodes are worth another look."""

    def test_when_a_node_has_come(self, proxy: Proxy) -> None:
        """It may be the one."""
        proxy.lead()
        proxy.register()
        assert proxy.look_count == 1

    def test_not_for_every_heartbeat(self, proxy: Proxy) -> None:
        """Strangers can send them by the thousand."""
        proxy.lead()
        proxy.register()
        proxy.look_count = 0
        for _ in range(10):
            proxy.beat()
            proxy.beat("x", LINK_B)
        assert proxy.look_count == 0

    def test_when_a_node_leaves(self, proxy: Proxy) -> None:
        """Then it may not be the one any more."""
        proxy.lead()
        proxy.register()
        proxy.look_count = 0
        with capture_logs():
            proxy.control.links_closed([LINK_A])
        assert proxy.left == [LINK_A]
        assert proxy.look_count == 1

    def test_when_a_batch_is_decided(self, proxy: Proxy) -> None:
        """It may be the one that is waited for."""
        proxy.lead()
        proxy.register()
        proxy.register("b", LINK_B)
        proxy.look_count = 0
        proxy.ask(commit(1, 0))
        assert proxy.look_count == 0
        proxy.run()
        assert proxy.look_count == 1

    def test_when_a_node_is_not_taken_in_after_all(self, proxy: Proxy) -> None:
        """S2: it was coming, and what waits for it is refused now."""
        proxy.lead()
        proxy.register()
        proxy.clock.advance(TIMEOUT_NS)
        with capture_logs():
            proxy.control.advance(now_ns=proxy.clock.now_ns())
        core = proxy.control.core
        assert core is not None
        now_ns = proxy.clock.now_ns()
        proxy.register("new", OPERATOR)  # its name is to be written down first
        assert not core.takes_for_away("new", now_ns)
        proxy.look_count = 0
        proxy.control.links_closed([OPERATOR])
        assert core.takes_for_away("new", now_ns)
        assert proxy.look_count == 1

    @pytest.mark.proves("B2")
    def test_not_for_connections_that_close(self, proxy: Proxy) -> None:
        """B2: strangers can close them by the thousand."""
        proxy.lead()
        proxy.register()
        proxy.look_count = 0
        for number in range(100):
            proxy.control.links_closed([LinkId(1_000 + number)])
        assert proxy.look_count == 0

    @pytest.mark.proves("B2")
    def test_not_for_reads_that_are_late(
        self, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """B2: nor is the control plane told, to which they are nothing."""
        proxy.lead()
        proxy.register()
        events: list[ControlEvent] = []
        step = ControlCore.step

        def noted(
            core: ControlCore, event: ControlEvent, *, now_ns: int
        ) -> tuple[ControlEffect, ...]:
            events.append(event)
            return step(core, event, now_ns=now_ns)

        monkeypatch.setattr(ControlCore, "step", noted)
        proxy.look_count = 0
        for _ in range(100):
            proxy.clock.advance(1_000)
            proxy.control.advance(now_ns=proxy.clock.now_ns())
        assert events == []
        assert proxy.look_count == 0
        deadline_ns = proxy.control.next_deadline_ns(is_anybody_parked=False)
        assert deadline_ns is not None
        proxy.clock.advance(deadline_ns - proxy.clock.now_ns())
        with capture_logs():
            proxy.control.advance(now_ns=deadline_ns)
        assert events == [TimePassed()]

    def test_no_later_than_when_it_has_settled(self, proxy: Proxy) -> None:
        """S2: after one session timeout a node that is not here is away."""
        proxy.lead()
        began_ns = proxy.clock.now_ns()
        # Then assignments may change, whether or not anybody asks.
        deadline_ns = proxy.control.next_deadline_ns(is_anybody_parked=False)
        assert deadline_ns == began_ns + TIMEOUT_NS
        deadline_ns = proxy.control.next_deadline_ns(is_anybody_parked=True)
        assert deadline_ns == began_ns + TIMEOUT_NS
        proxy.register()
        assert proxy.control.next_deadline_ns(is_anybody_parked=True) == deadline_ns
        proxy.clock.advance(deadline_ns - proxy.clock.now_ns())
        assert proxy.control.core is not None
        assert proxy.control.core.takes_for_away("a", deadline_ns)
        assert not proxy.control.core.takes_for_away("a", deadline_ns - 1)
        proxy.look_count = 0
        with capture_logs():
            proxy.control.advance(now_ns=deadline_ns)
        assert proxy.look_count == 1
        # What is parked then waits for something else: that moment is over.
        assert proxy.control.next_deadline_ns(is_anybody_parked=True) is None
