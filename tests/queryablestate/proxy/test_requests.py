"""What a proxy answers by itself, and who may ask for a change; no I/O (C1)."""

from __future__ import annotations

from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from nameservice import ConfigurationError, NameServiceError
from queryablestate import AccessDeniedError, UnknownJobError, UnknownStateError
from queryablestate.control.events import WriterAsked
from queryablestate.proxy.access import (
    ANONYMOUS_CALLER,
    AccessList,
    Caller,
    CallerEntry,
    open_access,
    token_sha256,
)
from queryablestate.proxy.requests import ChangeRequest, LookupRequest, RequestHandler
from queryablestate.wire.clients import (
    DescribeState,
    JobsListed,
    ListJobs,
    ListNodes,
    ListStates,
    NodesListed,
    RunBound,
    StateDeclaration,
    StateDescribed,
    StatesListed,
    WriterRun,
)
from queryablestate.wire.operation_messages import (
    DrainNode,
    ForgetAwayNode,
    ListRescalings,
    RescaleJob,
    RescalingsListed,
)
from queryablestate.wire.refusals import refusal_of
from queryablestate.wire.snapshot_messages import RestoreJob, TakeSnapshot
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    VALUE,
    WALL_US,
    Plane,
    bind,
    commit,
    draw,
    drop,
    refusal,
    stage,
    told,
)


SESSION: Final = b"session"


def entry(name: str, **rights: object) -> CallerEntry:
    """Return a caller whose token is its name."""
    return CallerEntry(name=name, token_sha256=token_sha256(name), **rights)  # type: ignore[arg-type]  # any rights


ACCESS: Final = AccessList(
    callers=[
        entry("reader", read=["flights/aircraft"]),
        entry("writer", write=["flights/aircraft"]),
        entry("filler", write=["flights/*", "other/*"], read=["flights/*"]),
        entry("stranger", read=["weather/*"], write=["weather/*"]),
        entry("operator", admin=True),
        entry("machine", node=True),
    ]
)


def caller(name: str) -> Caller:
    """Return the caller of that name, authenticated."""
    found = ACCESS.authenticate(token=name)
    assert found is not None
    return found


@pytest.fixture
def plane() -> Plane:
    """A job ``flights`` with the states ``aircraft`` (1) and ``delays`` (2)."""
    plane = Plane()
    plane.start_job({"aircraft": VALUE, "delays": VALUE})
    return plane


def answer(
    plane: Plane, who: str, request: LookupRequest, *, access: AccessList = ACCESS
) -> object:
    """Return what *who* is answered; an error as the refusal that it becomes."""
    handler = RequestHandler(access)
    speaker = caller(who) if access is ACCESS else ANONYMOUS_CALLER
    try:
        return handler.answer(
            plane.core, speaker, request, now_ns=plane.now_ns, wall_clock_us=WALL_US
        )
    except NameServiceError as error:
        return refusal_of(error, request.request_id)


def change(plane: Plane, who: str, request: ChangeRequest) -> NameServiceError | None:
    """Return why *who* may not ask for that change, or None."""
    try:
        RequestHandler(ACCESS).check_change(plane.core, caller(who), request, now_ns=0)
    except NameServiceError as error:
        return error
    return None


def rescale() -> RescaleJob:
    """Return a request."""
    return RescaleJob(request_id=1, session=SESSION, job_id=APP, node_count=1)


def drain() -> DrainNode:
    """Return a request."""
    return DrainNode(request_id=1, session=SESSION, node_id="a")


def forget_node() -> ForgetAwayNode:
    """Return that a node is to be forgotten."""
    return ForgetAwayNode(request_id=1, session=SESSION, node_id="a")


def describe(job_id: str, state_name: str) -> DescribeState:
    """Return a request."""
    return DescribeState(
        request_id=1, session=SESSION, job_id=job_id, state_name=state_name
    )


class TestLookups:
    def test_a_state_is_described_to_readers_and_writers(self, plane: Plane) -> None:
        """One that publishes it has to know its schema."""
        for name in ("reader", "writer", "filler", "operator"):
            told = answer(plane, name, describe(APP, "aircraft"))
            assert isinstance(told, StateDescribed)
            assert told.description.state_name == "aircraft"

    @pytest.mark.proves("C1")
    def test_what_is_not_there_is_unknown_to_who_may_know(self, plane: Plane) -> None:
        """C1: the right comes first, then the truth."""
        open_to_all = open_access()
        handler = RequestHandler(open_to_all)
        for request, error in (
            (describe("none", "aircraft"), UnknownJobError("none")),
            (describe(APP, "none"), UnknownStateError(APP, "none")),
            (
                ListStates(request_id=1, session=SESSION, job_id="none"),
                UnknownJobError("none"),
            ),
        ):
            with pytest.raises(type(error), match=str(error)):
                handler.answer(
                    plane.core,
                    ANONYMOUS_CALLER,
                    request,
                    now_ns=0,
                    wall_clock_us=WALL_US,
                )

    @pytest.mark.proves("C1")
    def test_jobs_are_listed_as_far_as_they_may_be_read(self, plane: Plane) -> None:
        """C1: a job without a state that one may read is not there."""
        request = ListJobs(request_id=1, session=SESSION)
        for name, job_ids in (
            ("reader", (APP,)),
            ("writer", ()),
            ("stranger", ()),
            ("machine", ()),
            ("operator", (APP,)),
        ):
            assert answer(plane, name, request) == JobsListed(
                request_id=1, job_ids=job_ids
            )

    @pytest.mark.proves("C1")
    def test_states_are_listed_as_far_as_they_may_be_read(self, plane: Plane) -> None:
        """C1: and nothing says that there are more."""
        request = ListStates(request_id=1, session=SESSION, job_id=APP)
        for name, state_names in (
            ("reader", ["aircraft"]),
            ("filler", ["aircraft", "delays"]),
            ("operator", ["aircraft", "delays"]),
        ):
            told = answer(plane, name, request)
            assert isinstance(told, StatesListed)
            assert [state.state_name for state in told.states] == state_names

    def test_nodes_are_listed_to_operators(self, plane: Plane) -> None:
        """With what they hold."""
        told = answer(plane, "operator", ListNodes(request_id=1, session=SESSION))
        assert isinstance(told, NodesListed)
        assert [node.node_id for node in told.nodes] == ["a", "b"]
        assert all(node.key_group_counts == {APP: 2} for node in told.nodes)

    @pytest.mark.proves("C1")
    def test_writers_find_nodes_but_no_jobs(self, plane: Plane) -> None:
        """C1: they bring rows there, and need not know whose rows are there."""
        told = answer(plane, "writer", ListNodes(request_id=1, session=SESSION))
        assert isinstance(told, NodesListed)
        assert [node.address for node in told.nodes] == ["tcp://a:1", "tcp://b:1"]
        assert all(not node.key_group_counts for node in told.nodes)
        assert all(not node.behind_counts for node in told.nodes)
        assert all(not node.copy_counts for node in told.nodes)

    @pytest.mark.proves("C1")
    def test_nobody_else_finds_nodes(self, plane: Plane) -> None:
        """C1: who reads is routed, and needs no addresses."""
        for name in ("reader", "machine"):
            told = answer(plane, name, ListNodes(request_id=1, session=SESSION))
            assert told == refusal_of(AccessDeniedError("list nodes"), 1)

    def test_operators_see_how_jobs_are_rescaled(self, plane: Plane) -> None:
        """O6: all of them, or one that there must be."""
        for job_id in (None, APP):
            request = ListRescalings(request_id=1, session=SESSION, job_id=job_id)
            told = answer(plane, "operator", request)
            assert isinstance(told, RescalingsListed)
            assert [one.job_id for one in told.rescalings] == [APP]
        request = ListRescalings(request_id=1, session=SESSION, job_id="none")
        told = answer(plane, "operator", request)
        assert told == refusal_of(UnknownJobError("none"), 1)

    @pytest.mark.proves("C1")
    def test_nobody_else_sees_how_jobs_are_rescaled(self, plane: Plane) -> None:
        """C1: not even whether there is a job."""
        denied = refusal_of(AccessDeniedError("list how jobs are rescaled"), 1)
        for name in ("reader", "writer", "stranger", "machine"):
            for job_id in (None, APP, "none"):
                request = ListRescalings(request_id=1, session=SESSION, job_id=job_id)
                assert answer(plane, name, request) == denied


def take(job_id: str = APP) -> TakeSnapshot:
    """Return a request for a snapshot."""
    return TakeSnapshot(
        request_id=1,
        session=SESSION,
        job_id=job_id,
        snapshot_id="0a" * 16,
        uri="/snapshots",
        timeout_ms=1,
    )


def restore(job_id: str = APP) -> RestoreJob:
    """Return a request to restore a job, which has no state yet."""
    return RestoreJob(
        request_id=1,
        session=SESSION,
        job_id=job_id,
        restore_id="0a" * 16,
        uri="/snapshots",
        manifest_checksum="00",
        max_parallelism=4,
        sequence=1,
        states=(),
        timeout_ms=1,
    )


class TestChanges:
    def test_who_has_the_right_may_write(self, plane: Plane) -> None:
        """For the very states that it names."""
        epoch = draw(states={})  # a number, of no state
        for request in (draw(), epoch, bind(1), commit(1, 0, stage(1, a=1))):
            assert change(plane, "writer", request) is None
            assert change(plane, "operator", request) is None
        for operation in (drop(), rescale(), drain(), forget_node(), take(), restore()):
            assert change(plane, "operator", operation) is None

    @pytest.mark.proves("C1")
    def test_who_has_not_may_not(self, plane: Plane) -> None:
        """C1: each of the states must be allowed, and dropping takes an operator."""
        two = {"aircraft": VALUE, "delays": VALUE}
        for who, request, what in (
            ("reader", draw(), "write flights/aircraft"),
            ("reader", bind(1), "write flights/aircraft"),
            ("writer", draw(states=two), "write flights/delays"),
            ("writer", bind(1, states=two), "write flights/delays"),
            ("reader", draw(states={}), "write flights/*"),
            ("writer", bind(1, states={}), "write flights/*"),
            ("writer", draw(job_id="other"), "write other/aircraft"),
            ("stranger", draw(), "write flights/aircraft"),
            ("stranger", commit(1, 0), "write flights/*"),
            ("machine", commit(1, 0), "write flights/*"),
            ("reader", commit(1, 0), "write flights/aircraft"),
            ("filler", drop(), "drop flights/aircraft"),
            ("filler", rescale(), "rescale flights"),
            ("machine", drain(), "drain a"),
            ("machine", forget_node(), "forget a"),
            ("filler", take(), "take or restore snapshots of flights"),
            ("machine", restore(), "take or restore snapshots of flights"),
            ("stranger", take("none"), "take or restore snapshots of none"),
            ("stranger", drop("none"), "drop flights/none"),
        ):
            error = change(plane, who, request)
            assert isinstance(error, AccessDeniedError), (who, request)
            assert error.args == (what,)

    @pytest.mark.proves("C1", "W1")
    def test_who_may_not_write_all_of_a_query_does_not_end_its_run(
        self, plane: Plane
    ) -> None:
        """C1: the id of a query is known to its readers, and is no right."""
        ticket = plane.draw()
        handler = RequestHandler(ACCESS)
        request = bind(ticket, run_id="run-9")
        assert change(plane, "writer", request) is None  # it may write that state
        asked = WriterAsked(
            link=DRIVER,
            request=request,
            wall_clock_us=WALL_US,
            writable=handler.writable(plane.core, caller("writer"), request),
        )
        error = refusal(plane.step(asked))
        assert error.args == ("write as query query of flights",)
        run = WriterRun(
            query_id="query", run_id="run-9", on_new_query="refuse", born_epoch=ticket
        )
        begun = replace(draw(), run=run)
        assert change(plane, "writer", begun) is None
        writable = handler.writable(plane.core, caller("writer"), begun)
        error = refusal(plane.settle(evolve(asked, request=begun, writable=writable)))
        assert error.args == ("write as query query of flights",)
        plane.decide(commit(1, 0, state_numbers=(1, 2)))
        # A query of its own is its own affair.
        mine = evolve(
            asked, request=bind(ticket, query_id="mine", on_new_query="replace")
        )
        assert told(RunBound, plane.settle(mine)).run.writer_epoch == ticket
        assert handler.writable(plane.core, caller("operator"), request) is None

    @pytest.mark.proves("C1")
    def test_a_batch_for_a_state_one_may_not_know_is_for_none(
        self, plane: Plane
    ) -> None:
        """C1: a number tells neither whether there is a state nor how it is called."""
        there = change(plane, "writer", commit(1, 0, state_numbers=(1, 2)))
        missing = change(plane, "writer", commit(1, 0, state_numbers=(1, 3)))
        assert isinstance(there, UnknownStateError)
        assert isinstance(missing, UnknownStateError)
        assert there.args == (APP, "number 2")
        assert missing.args == (APP, "number 3")

    def test_a_number_of_another_job_is_no_number(self, plane: Plane) -> None:
        """Whose states they are follows from the job that is named with them."""
        error = change(plane, "filler", commit(1, 0, job_id="other"))
        assert isinstance(error, UnknownStateError)

    @pytest.mark.proves("C1")
    def test_a_batch_without_states_is_refused_before_anything_is_looked_up(
        self, plane: Plane
    ) -> None:
        """C1: otherwise the answer would say whether the job exists."""
        for job_id in (APP, "other"):
            error = change(
                plane, "filler", commit(1, 0, state_numbers=(), job_id=job_id)
            )
            assert isinstance(error, ConfigurationError)

    @pytest.mark.parametrize("name", ["a/b", "a\nb", "\0", "\u202e"])
    def test_names_that_nothing_can_have_are_refused(
        self, plane: Plane, name: str
    ) -> None:
        """A job or state of that name could not be told from another in a glob."""
        request = draw(job_id=name)
        error = change(plane, "operator", request)
        assert isinstance(error, ConfigurationError)
        error = change(plane, "operator", bind(1, states={name: VALUE}))
        assert isinstance(error, ConfigurationError)

    def test_nobody_writes_thousands_of_states_at_once(self, plane: Plane) -> None:
        """Each of them is parsed and checked: that has a limit."""
        states = tuple(
            StateDeclaration(state_name=f"state-{n}", schema=VALUE)
            for n in range(1_001)
        )
        request = replace(draw(), states=states)
        assert isinstance(change(plane, "operator", request), ConfigurationError)
        request = replace(request, states=states[:-1])
        assert change(plane, "operator", request) is None


STATES = st.sampled_from(["aircraft", "none"])


class TestNothingIsLearned:
    """C1: a refused caller is told the same whether it exists or not."""

    @given(who=st.sampled_from(["stranger", "machine"]), state_name=STATES)
    def test_lookups(self, who: str, state_name: str) -> None:
        """The refusal is made of the caller's own words."""
        plane = Plane()
        plane.start_job()
        for make in (
            lambda job_id: describe(job_id, state_name),
            lambda job_id: ListStates(request_id=1, session=SESSION, job_id=job_id),
        ):
            there, missing = (
                asdict(answer(plane, who, make(job_id)))  # type: ignore[arg-type]  # a message
                for job_id in (APP, "nowhere")
            )
            assert there["code"] == "access-denied"
            assert _renamed(there, APP) == _renamed(missing, "nowhere")

    @given(
        who=st.sampled_from(["stranger", "machine"]),
        state_numbers=st.lists(st.integers(0, 3), max_size=3),
        name=STATES,
    )
    def test_changes(self, who: str, state_numbers: list[int], name: str) -> None:
        """Of a job that it has nothing to do with."""
        full, empty = Plane(), Plane()
        full.start_job()
        empty.start_nodes()
        for request in (
            commit(1, 0, state_numbers=tuple(state_numbers)),
            draw(states={name: VALUE}),
            bind(1, states={name: VALUE}),
            drop(name),
        ):
            there = change(full, who, request)
            missing = change(empty, who, request)
            assert isinstance(there, AccessDeniedError)
            assert isinstance(missing, AccessDeniedError)
            assert refusal_of(there, 1) == refusal_of(missing, 1)

    @given(state_numbers=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def test_batches_of_a_writer_of_other_states(
        self, state_numbers: list[int]
    ) -> None:
        """Its own state apart, numbers say nothing: states there or not."""
        full, part = Plane(), Plane()
        full.start_job({"aircraft": VALUE, "delays": VALUE, "speeds": VALUE})
        part.start_job({"aircraft": VALUE})
        request = commit(1, 0, state_numbers=tuple(state_numbers))
        there, missing = (change(plane, "writer", request) for plane in (full, part))
        assert (there is None) == (missing is None)
        if there is not None and missing is not None:
            assert refusal_of(there, 1) == refusal_of(missing, 1)


def _renamed(refusal: dict[str, object], job_id: str) -> str:
    return repr(refusal).replace(job_id, "JOB")
