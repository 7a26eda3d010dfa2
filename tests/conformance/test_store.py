"""L1 to L4: what only the leader may write."""

from __future__ import annotations

import pytest

from election import Delete, LeaderSession, Put, StoreOperation, VersionedValue
from haservices import Guarantee
from nameservice import (
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    NameServiceError,
    StaleEpochError,
    UnreachableError,
    VersionMismatchError,
)
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT, Harness
from tests.conformance.selection import requires
from tests.recording import Granted, RecordingContender, Revoked, wait_until


@pytest.fixture
def leader(harness: Harness) -> Candidate:
    """A contender of a service of its own that leads."""
    candidate = Candidate(harness.open(), "leader:1")
    candidate.wait_for_confirm()
    return candidate


@pytest.fixture
def session(leader: Candidate) -> LeaderSession:
    """The leadership of *leader*."""
    return leader.wait_for_confirm()


@pytest.mark.proves("L1")
class TestL1Operations:
    def test_values_are_read_with_their_version(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: 1 when created, one more with each put; from 1 again when recreated."""
        store, reader = leader.store, harness.open().get_leader_store(JOB)
        assert reader.get("a") is None
        store.put("a", b"one", session=session)
        assert reader.get("a") == VersionedValue(value=b"one", version=1)
        store.put("a", b"", session=session)
        assert reader.get("a") == VersionedValue(value=b"", version=2)
        store.delete("a", session=session)
        assert reader.get("a") is None
        store.put("a", bytes(range(256)), session=session)
        assert reader.get("a") == VersionedValue(value=bytes(range(256)), version=1)

    def test_paths_are_flat_and_listed_by_string_prefix(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: a slash means nothing; the list is sorted."""
        paths = [
            ".",
            "..",
            "/",
            "//a",
            "a",
            "a/",
            "a/b",
            "a/b/c",
            "aa",
            "b%2Fc",
            "with space",
            "zookeeper",
            "Ünï/航班/✈",
            "x" * 255,
            "航" * 255,
        ]
        leader.store.commit(
            [Put(path, path.encode()) for path in paths], session=session
        )
        reader = harness.open().get_leader_store(JOB)
        assert reader.list() == sorted(paths)
        assert reader.list("a") == ["a", "a/", "a/b", "a/b/c", "aa"]
        assert reader.list("a/") == ["a/", "a/b", "a/b/c"]
        assert reader.list("航") == ["航" * 255]
        assert reader.list("nothing") == []
        for path in paths:
            value = reader.get(path)
            assert value is not None
            assert value.value == path.encode()
        leader.store.delete("a", session=session)
        assert reader.list("a") == ["a/", "a/b", "a/b/c", "aa"]

    def test_version_0_must_not_exist(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: two that create the same path: the second is told."""
        leader.store.put("a", b"1", session=session, version=0)
        with pytest.raises(VersionMismatchError) as caught:
            leader.store.put("a", b"2", session=session, version=0)
        assert (caught.value.path, caught.value.version_expected) == ("a", 0)
        assert caught.value.version in (1, None)
        assert leader.store.get("a") == VersionedValue(value=b"1", version=1)

    def test_other_versions_must_be_the_present_one(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: compare and set, for put and for delete."""
        store = leader.store
        store.put("a", b"1", session=session)
        store.put("a", b"2", session=session, version=1)
        for wrong in (1, 3):
            with pytest.raises(VersionMismatchError):
                store.put("a", b"3", session=session, version=wrong)
            with pytest.raises(VersionMismatchError):
                store.delete("a", session=session, version=wrong)
        with pytest.raises(VersionMismatchError):
            store.put("missing", b"", session=session, version=1)
        with pytest.raises(VersionMismatchError):
            store.delete("missing", session=session, version=1)
        store.delete("a", session=session, version=2)
        assert store.list() == []

    def test_deleting_nothing_is_no_error(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: unless a version is asked for, what is gone is gone."""
        leader.store.delete("never", session=session)
        leader.store.commit([Delete("never"), Put("a", b"")], session=session)
        assert leader.store.list() == ["a"]

    def test_commit_is_all_or_nothing(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: one operation that may not be done, and none is."""
        leader.store.put("a", b"1", session=session)
        for failing in (Put("z", b"", 7), Delete("z", 7), Put("a", b"9", 0)):
            operations: list[StoreOperation] = [Put("b", b""), failing]
            if failing.path != "a":
                operations.append(Put("a", b"2"))
            with pytest.raises(VersionMismatchError):
                leader.store.commit(operations, session=session)
            assert leader.store.list() == ["a"]
            assert leader.store.get("a") == VersionedValue(value=b"1", version=1)

    def test_each_component_has_its_own_store(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: what leads one job writes nothing of another's."""
        leader.store.put("a", b"1", session=session)
        other = leader.ha.get_leader_store("other")
        assert other.get("a") is None
        with pytest.raises(StaleEpochError):
            other.put("a", b"1", session=session)

    def test_next_leader_goes_on_from_it(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: what a leader leaves is there for its successor."""
        leader.store.put("totals", b"7", session=session)
        leader.ha.close()
        successor = Candidate(harness.open(), "b:1")
        mine = successor.wait_for_confirm()
        assert successor.store.get("totals") == VersionedValue(value=b"7", version=1)
        successor.store.put("totals", b"8", session=mine, version=1)
        assert successor.store.get("totals") == VersionedValue(value=b"8", version=2)

    def test_who_leads_again_deletes_what_another_has_stored(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L1: whatever it remembers of the time before."""
        leader.store.put("a", b"1", session=session)
        leader.store.delete("a", session=session)
        other = Candidate(harness.open(), "b:1")
        harness.operator.operations.revoke(JOB)
        other.store.put("a", b"2", session=other.wait_for_confirm())
        other.ha.close()
        again = leader.wait_for_confirm(2)
        leader.store.delete("a", session=again)
        assert leader.store.get("a") is None


@pytest.mark.proves("L2")
class TestL2Fencing:
    def test_stale_leader_writes_nothing(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L2: revoked, its epoch is refused, and nothing changes."""
        leader.store.put("a", b"1", session=session)
        successor = Candidate(harness.open(), "b:1")
        harness.operator.operations.revoke(JOB)
        mine = successor.wait_for_confirm()
        for operation in (Put("a", b"zombie"), Delete("a"), Put("b", b"")):
            with pytest.raises(StaleEpochError) as caught:
                leader.store.commit([operation], session=session)
            assert caught.value.epoch == session.epoch
            assert caught.value.component_id == JOB
            assert caught.value.epoch_max in (mine.epoch, None)
        assert successor.store.list() == ["a"]
        assert successor.store.get("a") == VersionedValue(value=b"1", version=1)

    def test_stale_even_while_nobody_leads(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L2: it is not enough that no other leads."""
        leader.election.close()
        with pytest.raises(StaleEpochError):
            leader.store.put("a", b"", session=session)
        assert leader.store.list() == []

    def test_leadership_must_be_the_callers_own(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L2: one that learns of the leader's session may not write under it."""
        thief = harness.open().get_leader_store(JOB)
        with pytest.raises(StaleEpochError):
            thief.put("a", b"stolen", session=session)
        assert leader.store.list() == []

    @pytest.mark.parametrize("change", [-1, 1, 1 << 32])
    def test_leadership_must_be_exact(
        self, leader: Candidate, session: LeaderSession, change: int
    ) -> None:
        """L2: neither an older epoch passes nor one that was never granted."""
        forged = LeaderSession(
            leader_session_id=session.leader_session_id, epoch=session.epoch + change
        )
        with pytest.raises(StaleEpochError):
            leader.store.put("a", b"", session=forged)
        assert leader.store.list() == []

    @pytest.mark.proves("E3")
    def test_granted_leader_may_write_before_it_confirms(
        self, harness: Harness
    ) -> None:
        """L2, E3: it leads from the grant on: it may read and prepare, then confirm."""
        candidate = Candidate(
            harness.open(), "-", make_contender=lambda _: RecordingContender()
        )
        session = candidate.contender.wait_for_grant()
        candidate.store.put("a", b"1", session=session)
        assert candidate.store.get("a") == VersionedValue(value=b"1", version=1)

    def test_expired_leader_writes_nothing(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L2: once its session is ended, the old leadership is stale for ever."""
        harness.expire(leader.session_id)
        again = leader.wait_for_confirm(2)
        with pytest.raises(StaleEpochError):
            leader.store.put("a", b"", session=session)
        leader.store.put("a", b"", session=again)


@pytest.mark.proves("L3")
class TestL3Limits:
    def test_values_up_to_1_000_000_bytes(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L3: the limit itself is taken, one byte more is refused before sending."""
        limit = b"x" * 1_000_000
        leader.store.put("a", limit, session=session)
        value = leader.store.get("a")
        assert value is not None
        assert value.value == limit
        with pytest.raises(ConfigurationError):
            leader.store.put("b", limit + b"x", session=session)
        with pytest.raises(ConfigurationError):
            leader.store.commit([Put("b", limit), Put("c", b"x")], session=session)
        assert leader.store.list() == ["a"]

    def test_1_000_operations_in_one_commit(
        self, leader: Candidate, session: LeaderSession
    ) -> None:
        """L3: a commit of many small values is one commit."""
        operations = [Put(f"p/{number:04}", b"x" * 1_000) for number in range(1_000)]
        leader.store.commit(operations, session=session)
        assert leader.store.list("p/") == [operation.path for operation in operations]

    def test_cleanup_removes_what_is_stored_and_nothing_else(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L3: never contenders or epochs; other jobs' stores stay."""
        other = Candidate(leader.ha, "o:1", job_id="other")
        other.store.put("a", b"", session=other.wait_for_confirm())
        leader.store.commit([Put("a", b""), Put("b/c", b"")], session=session)
        waiting = Candidate(harness.open(), "w:1")
        harness.open().cleanup(JOB)
        assert leader.store.list() == []
        assert leader.store.get("b/c") is None
        assert other.store.list() == ["a"]
        assert [type(call) for call in leader.contender.calls] == [Granted]
        leader.store.put("a", b"", session=session)
        assert leader.store.get("a") == VersionedValue(value=b"", version=1)
        assert len(leader.election.contenders()) == 2
        leader.election.close()
        assert leader.contender.calls == (Granted(session), Revoked())
        assert waiting.wait_for_confirm().epoch > session.epoch

    def test_a_commit_of_many_values_after_a_cleanup_of_others(
        self, harness: Harness, leader: Candidate, session: LeaderSession
    ) -> None:
        """L3: whatever a cleanup removes, the leader goes on writing."""
        large = [Put(f"p/{number:04}", b"x" * 1_000) for number in range(1_000)]
        leader.store.commit(large, session=session)
        harness.open().cleanup(JOB)
        leader.store.commit(large, session=session)
        assert leader.store.list("p/") == [operation.path for operation in large]

    def test_cleanup_of_nothing_is_no_error(self, harness: Harness) -> None:
        """L3: nor does it bring anything into being."""
        harness.open().cleanup("never-heard-of")
        assert list(harness.operator.operations.leaders()) == []


@pytest.mark.proves("L4")
class TestL4Errors:
    def test_unreachable_is_told_in_time(self, harness: Harness) -> None:
        """L4: reads: no answer.  Writes: not known, or surely not; no hang."""
        ha = harness.open(cuttable=True, connect_timeout_seconds=2.0, **PATIENT)
        candidate = Candidate(ha, "a:1")
        session = candidate.wait_for_confirm()
        candidate.store.put("a", b"1", session=session)
        harness.cut(ha)
        with pytest.raises(UnreachableError):
            candidate.store.get("a")
        with pytest.raises(UnreachableError):
            candidate.store.list()
        with pytest.raises(UnreachableError):
            candidate.election.contenders()
        with pytest.raises((MayHaveHappenedError, DidNotHappenError)):
            candidate.store.put("b", b"2", session=session)
        harness.heal(ha)
        wait_until(lambda: is_readable(candidate))
        assert candidate.store.get("a") == VersionedValue(value=b"1", version=1)

    @requires(Guarantee.ACROSS_PROCESSES)
    def test_lost_answer_of_a_write_may_have_happened(self, harness: Harness) -> None:
        """L4: sent, done, never answered: that is not "did not happen"."""
        ha = harness.open(cuttable=True, connect_timeout_seconds=2.0, **PATIENT)
        candidate = Candidate(ha, "a:1")
        session = candidate.wait_for_confirm()
        reader = harness.open().get_leader_store(JOB)
        harness.cut_replies(ha)
        with pytest.raises(MayHaveHappenedError):
            candidate.store.put("a", b"1", session=session)
        wait_until(lambda: reader.list() == ["a"])


def is_readable(candidate: Candidate) -> bool:
    """Return whether the store can be asked again."""
    try:
        candidate.store.get("a")
    except NameServiceError:
        return False
    return True
