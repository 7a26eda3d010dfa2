from __future__ import annotations

from typing import Any, Final

import pytest
from attrs import evolve

from queryablestate.node.core.events import Wait
from queryablestate.node.core.job import ServedJob, served_part
from queryablestate.node.core.registration import clock_max_ms
from queryablestate.node.core.standing import Standing
from queryablestate.node.readers.gate import ReaderGate
from queryablestate.node.readers.page import PageReader, PageWriter
from queryablestate.wire.direct import DirectTicket
from queryablestate.wire.questions import GetValues, Question, Refusal
from queryablestate.wire.refusals import STALE_ROUTE


pytestmark = pytest.mark.proves("D2", "Q4")

MS: Final = 1_000_000
JOB = served_part("job", 4, (1, 2))
SECRET = bytes(range(32))
STANDING = Standing(
    leader_epoch=3,
    secret=SECRET,
    lease_until_ns=100 * MS,
    direct_until_ns=50 * MS,
    leader_ms=1_000,
    leader_ms_at_ns=20 * MS,
    jobs=((JOB, True),),
)
QUESTION = Question(
    leader_epoch=3,
    question_id=1,
    state_number=1,
    assignment_version=4,
    operation=GetValues(),
    deadline_ms=100,
)


class Gated:
    """A page, and a gate that goes by it."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(1 << 16))
        self.writer = PageWriter(self.memory, "run")
        reader = PageReader(self.memory, lambda: None)
        self.gate = ReaderGate(reader.look, run="run", store="rows-1")
        self.gate.keep_secret(SECRET)

    def publish(self, **changed: Any) -> None:
        """Have the node say something else."""
        self.writer.publish(evolve(STANDING, **changed), store="rows-1")

    def code(self, question: Question = QUESTION, *, at_ms: int = 30) -> str | Wait:
        """Return why a question is not answered; empty if it is."""
        admitted = self.gate.admit(question, "job", now_ns=at_ms * MS)
        if isinstance(admitted, Refusal):
            return admitted.code
        return "" if isinstance(admitted, ServedJob) else admitted

    def is_current(
        self, *, expires_ms: int = 2_000, epoch: int = 3, at_ms: int = 30
    ) -> bool | None:
        """Return whether a ticket is good."""
        ticket = DirectTicket(
            caller="c",
            public_key=None,
            job_id="job",
            state_number=1,
            leader_epoch=epoch,
            assignment_version=4,
            expires_ms=expires_ms,
        )
        return self.gate.is_current(ticket, now_ns=at_ms * MS)


@pytest.fixture
def gated() -> Gated:
    """Return a gate whose node may answer."""
    gated = Gated()
    gated.publish()
    return gated


class TestQuestions:
    def test_what_the_node_answers_for(self, gated: Gated) -> None:
        """Under the very assignment, for its key groups."""
        admitted = gated.gate.admit(QUESTION, "job", now_ns=30 * MS)
        assert admitted == JOB

    def test_before_the_node_says_anything(self) -> None:
        """The process may be there first; it is of use as soon as the node speaks."""
        gated = Gated()
        assert gated.is_current() is None
        assert gated.code() == "state-unavailable"
        gated.publish()
        assert gated.code() == ""

    def test_the_lease(self, gated: Gated) -> None:
        """Q4: to the nanosecond, as in the node."""
        assert gated.gate.admit(QUESTION, "job", now_ns=100 * MS - 1) == JOB
        assert isinstance(gated.gate.admit(QUESTION, "job", now_ns=100 * MS), Refusal)
        gated.publish(lease_until_ns=101 * MS)
        assert gated.gate.admit(QUESTION, "job", now_ns=100 * MS) == JOB

    @pytest.mark.parametrize(
        ("changed", "code"),
        [
            ({"jobs": ()}, "state-unavailable"),
            ({"jobs": ((JOB, False),)}, Wait.CATCHING_UP),
            ({"jobs": ((served_part("job", 5, (1, 2)), True),)}, STALE_ROUTE),
            ({"jobs": ((served_part("job", 4, ()), True),)}, STALE_ROUTE),
            ({"leader_epoch": 4}, "state-unavailable"),
            ({"leader_epoch": 0}, "state-unavailable"),
        ],
    )
    def test_what_the_node_says_binds_at_once(
        self, gated: Gated, changed: dict[str, Any], code: str | Wait
    ) -> None:
        """S3: from the moment in which it was written."""
        assert gated.code() == ""
        gated.publish(**changed)
        assert gated.code() == code
        gated.publish()
        assert gated.code() == ""

    def test_while_the_node_writes(self, gated: Gated) -> None:
        """D1: nothing is wrong with the state; the proxy is to be asked."""
        gated.memory[0] += 1
        assert gated.is_current() is None
        assert gated.code() is Wait.UNKNOWN_STATE
        gated.memory[0] -= 1
        assert gated.code() == ""

    def test_a_state_that_is_not_there(self, gated: Gated) -> None:
        """The node knows whether it may be on its way; the proxy asks that one."""
        admitted = gated.gate.admit(QUESTION, None, now_ns=30 * MS)
        assert admitted is Wait.UNKNOWN_STATE


class TestTickets:
    def test_a_good_one(self, gated: Gated) -> None:
        """Until it expires by the leader's clock, as late as that can be."""
        assert gated.is_current() is True
        now_ms = clock_max_ms(1_000, since_ns=10 * MS)
        assert gated.is_current(expires_ms=now_ms + 1) is True
        assert gated.is_current(expires_ms=now_ms) is False

    def test_one_of_another_leader(self, gated: Gated) -> None:
        """D2: a node goes by the present leader alone, and so do its readers."""
        assert gated.is_current(epoch=2) is False
        gated.publish(leader_epoch=4)
        assert gated.is_current(epoch=3) is False

    def test_one_of_a_leader_that_began_anew(self, gated: Gated) -> None:
        """D5: it has the same epoch; the node says so before it tells the reader."""
        gated.publish(secret=bytes(32))
        assert gated.is_current() is None
        gated.gate.keep_secret(bytes(32))
        assert gated.is_current() is True

    def test_the_direct_lease(self, gated: Gated) -> None:
        """Q4: over, it is for no client; nor while no leader has taken the node."""
        assert gated.is_current(at_ms=49) is True
        assert gated.is_current(at_ms=50) is None
        gated.publish(leader_epoch=0)
        assert gated.is_current() is None


class TestMeanwhile:
    def test_the_same_part(self, gated: Gated) -> None:
        """A heartbeat changes nothing of what may be read."""
        before = gated.gate.standing("job")
        gated.publish(direct_until_ns=60 * MS)
        assert gated.gate.standing("job") == before is not None

    @pytest.mark.proves("S3")
    def test_another_one_that_looks_the_same(self, gated: Gated) -> None:
        """S3: rows that were read in between may have been half of a job."""
        before = gated.gate.standing("job")
        gated.publish(jobs=((JOB, False),))
        gated.publish()
        assert gated.code() == ""
        assert gated.gate.standing("job") != before

    def test_another_leader(self, gated: Gated) -> None:
        """Each leadership assigns anew."""
        before = gated.gate.standing("job")
        gated.publish(leader_epoch=4)
        assert gated.gate.standing("job") != before
        assert gated.gate.standing("none") is None


class TestTheEnd:
    def test_another_process_of_the_node(self, gated: Gated) -> None:
        """Q4: one that was left behind answers no more as soon as there is a next."""
        assert gated.code() == ""
        successor = PageWriter(gated.memory, "another")
        assert gated.is_current() is None
        assert gated.gate.is_over
        successor.publish(STANDING, store="rows-1")
        assert gated.is_current() is None
        assert gated.code() is Wait.UNKNOWN_STATE

    def test_other_rows(self, gated: Gated) -> None:
        """The node serves another control plane: numbers mean something else."""
        gated.writer.publish(STANDING, store="rows-2")
        assert gated.is_current() is None
        assert gated.gate.is_over
        gated.publish()
        assert gated.gate.standing("job") is None  # it is over for good

    def test_a_node_that_ends(self, gated: Gated) -> None:
        """What it withdraws is not answered by."""
        gated.writer.withdraw()
        assert gated.is_current() is None
        assert gated.gate.is_over
