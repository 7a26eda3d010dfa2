"""L4: what every call says, and how soon, when the name service is out of reach."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from haservices import Guarantee
from nameservice import (
    DidNotHappenError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    UnreachableError,
)
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT
from tests.conformance.selection import requires
from tests.recording import WAIT_SECONDS, RecordingContender, wait_until


if TYPE_CHECKING:
    from collections.abc import Callable

    from election import LeaderSession
    from haservices import HAServices
    from tests.conformance.harness import Harness


CONNECT_TIMEOUT_SECONDS = 1.0
# Generous: it tells a call that is bounded from one that waits for something else.
CALL_SECONDS_MAX = 15.0

READS: dict[str, Callable[[Scene], object]] = {}
WRITES: dict[str, Callable[[Scene], object]] = {}


class Scene:
    """A leader behind a line that may be cut, with one who waits behind another."""

    def __init__(
        self,
        harness: Harness,
        *,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        self.harness = harness
        settings: dict[str, Any] = (
            PATIENT
            | harness.backend.operator_settings()
            | {"connect_timeout_seconds": connect_timeout_seconds}
        )
        self.ha: HAServices = harness.open(cuttable=True, **settings)
        self.leader = Candidate(self.ha, "a:1")
        self.session: LeaderSession = self.leader.wait_for_confirm()
        self.store = self.ha.get_leader_store(JOB)
        self.store.put("before", b"1", session=self.session)
        self.waiting = Candidate(
            harness.open(**PATIENT),
            "b:1",
            make_contender=lambda _: RecordingContender(),
        )

    def call(self, action: Callable[[Scene], object]) -> NameServiceError:
        """Return the error that *action* ends with, in bounded time."""
        began = time.monotonic()
        with pytest.raises(NameServiceError) as caught:
            action(self)
        assert time.monotonic() - began < CALL_SECONDS_MAX
        return caught.value

    def judge(self, name: str, error: NameServiceError) -> None:
        """
        Check that *error* is true of the write called *name*.

        Operators' writes on ZooKeeper begin with reads, and end with them, too, where
        those are not answered: `UnreachableError` then, and nothing has changed.
        """
        assert isinstance(
            error, DidNotHappenError | MayHaveHappenedError | UnreachableError
        ), repr(error)
        self.heal()
        if not isinstance(error, MayHaveHappenedError):
            assert not effects(self)[name], repr(error)

    def heal(self) -> None:
        """Pass on everything that was held back, and wait until it is answered."""
        self.harness.heal(self.ha)
        # What was sent before is done before this is.
        wait_until(self.is_answered)

    def is_answered(self) -> bool:
        """Return whether the name service answers."""
        try:
            self.store.get("before")
        except UnreachableError:
            return False
        return True


READS |= {
    "get": lambda scene: scene.store.get("before"),
    "list": lambda scene: scene.store.list(),
    "election.contenders": lambda scene: scene.leader.election.contenders(),
    "leaders": lambda scene: scene.ha.operations.leaders(),
    "contenders": lambda scene: scene.ha.operations.contenders(JOB),
    "sessions": lambda scene: scene.ha.operations.sessions(),
    "status": lambda scene: scene.ha.operations.status(),
}
WRITES |= {
    "confirm": lambda scene: scene.leader.election.confirm_leadership(
        scene.session.leader_session_id, "a:2"
    ),
    "put": lambda scene: scene.store.put("after", b"1", session=scene.session),
    "delete": lambda scene: scene.store.delete("before", session=scene.session),
    "cleanup": lambda scene: scene.ha.cleanup(JOB),
    "revoke": lambda scene: scene.ha.operations.revoke(JOB),
    "transfer": lambda scene: scene.ha.operations.transfer(
        JOB, scene.waiting.contender_id
    ),
    "expire": lambda scene: scene.ha.operations.expire(scene.waiting.session_id),
}


def effects(scene: Scene) -> dict[str, bool]:
    """Return which of the writes have taken effect, as somebody else sees it."""
    operations = scene.harness.operator.operations
    store = scene.harness.operator.get_leader_store(JOB)
    paths = store.list()
    listed = operations.contenders(JOB)
    by_id = {item.contender_id: item for item in listed}
    leader = by_id.get(scene.leader.contender_id)
    return {
        "confirm": leader is not None and leader.address == "a:2",
        "put": "after" in paths,
        "delete": "before" not in paths and bool(paths),
        "cleanup": not paths,
        "revoke": leader is None or not leader.is_leader,
        "transfer": leader is None or not leader.is_leader,
        "expire": scene.waiting.session_id not in {item.session_id for item in listed},
    }


@pytest.mark.proves("L4")
class TestOutOfReach:
    @pytest.mark.parametrize("name", sorted(READS))
    def test_a_read_is_unreachable(self, harness: Harness, name: str) -> None:
        """L4: `UnreachableError` within the connect timeout, and never a hang."""
        scene = Scene(harness)
        harness.cut(scene.ha)
        error = scene.call(READS[name])
        assert isinstance(error, UnreachableError), repr(error)
        scene.heal()
        READS[name](scene)

    @pytest.mark.parametrize("name", sorted(WRITES))
    def test_a_write_says_whether_it_may_have_happened(
        self, harness: Harness, name: str
    ) -> None:
        """L4: what "did not happen" has not, also when all that was sent arrives."""
        scene = Scene(harness)
        harness.cut(scene.ha)
        error = scene.call(WRITES[name])
        scene.judge(name, error)

    @requires(Guarantee.ACROSS_PROCESSES)
    @pytest.mark.parametrize("name", sorted(WRITES))
    def test_a_write_whose_answer_is_lost_may_have_happened(
        self, harness: Harness, name: str
    ) -> None:
        """L4: what was sent has happened; "did not happen" would be a lie."""
        scene = Scene(harness)
        harness.cut_replies(scene.ha)
        error = scene.call(WRITES[name])
        scene.judge(name, error)

    @pytest.mark.parametrize("name", sorted({*READS, *WRITES}))
    def test_closed_services_say_so(self, harness: Harness, name: str) -> None:
        """
        L4: a call of ours that is illegal, at once, and not the network's fault.

        The leadership that a confirm names is over, which comes first.
        """
        scene = Scene(harness, connect_timeout_seconds=WAIT_SECONDS)
        scene.ha.close()
        error = scene.call((READS | WRITES)[name])
        expected = LeadershipLostError if name == "confirm" else LocalProtocolError
        assert type(error) is expected, repr(error)
