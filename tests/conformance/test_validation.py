"""L4: what a public call cannot send is refused before it is sent, on every backend."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pytest

from election import Delete, LeaderSession, Put, VersionedValue
from haservices import campaign
from nameservice import (
    ConfigurationError,
    StaleEpochError,
    UnknownSessionError,
    VersionMismatchError,
)
from tests.conformance.candidates import JOB, Candidate
from tests.conformance.harness import PATIENT, Harness


if TYPE_CHECKING:
    from collections.abc import Callable

    from haservices import HAServices


class Name(str, enum.Enum):  # noqa: UP042 - as it was written before StrEnum
    """An enumeration of strings as people write them; `str()` says ``Name.JOB``."""

    JOB = JOB
    ADDRESS = "enum:1"
    PATH = "enum/path"


class Number(enum.IntEnum):
    """A version by name."""

    ONE = 1


class Text(str):
    """A subclass that every encoder refuses."""

    __slots__ = ()


LONG: Final = "x" * 65
NOT_NAMES: Final[tuple[Any, ...]] = (None, 7, b"job", "", "a/b", "\ud800", "x" * 256)
NOT_PATHS: Final[tuple[Any, ...]] = (None, 0, b"a", "", "a\n", "\ud800", "x" * 256)
NOT_IDS: Final[tuple[Any, ...]] = (None, 7, b"id", "", "\n", "\ud800", LONG)
NOT_ADDRESSES: Final[tuple[Any, ...]] = (None, b"a:1", "", "\ud800", "x" * 1025)
NOT_NUMBERS: Final[tuple[Any, ...]] = (-1, 2**63, 2**64, True, 1.0, "1", 10**5000)
NOT_VALUES: Final[tuple[Any, ...]] = (None, "text", 7, [1], np.zeros(3))


def bad_calls(
    candidate: Candidate, session: LeaderSession
) -> list[Callable[[], object]]:
    """Return every public call with every kind of argument that nothing can send."""
    ha, store = candidate.ha, candidate.store
    operations, election = ha.operations, candidate.election
    of_names: list[Callable[[Any], object]] = [
        ha.get_leader_retriever,
        ha.get_leader_election,
        ha.get_leader_store,
        ha.cleanup,
        operations.contenders,
        operations.revoke,
        lambda name: operations.transfer(name, "nobody"),
        lambda name: campaign(ha, name, "a:1").__enter__(),
    ]
    of_paths: list[Callable[[Any], object]] = [
        store.get,
        lambda path: store.put(path, b"", session=session),
        lambda path: store.delete(path, session=session),
        lambda path: store.commit([Put("b", b""), Delete(path)], session=session),
    ]
    of_numbers: list[Callable[[Any], object]] = [
        lambda version: store.put("a", b"", session=session, version=version),
        lambda version: store.delete("a", session=session, version=version),
        lambda epoch: store.put(
            "a",
            b"",
            session=LeaderSession(
                leader_session_id=session.leader_session_id, epoch=epoch
            ),
        ),
    ]
    of_addresses: list[Callable[[Any], object]] = [
        lambda address: election.confirm_leadership(session.leader_session_id, address),
        lambda address: campaign(ha, "other", address).__enter__(),
    ]
    no_session: Any = session.epoch
    no_uuid: Any = str(session.leader_session_id)
    tables: list[tuple[list[Callable[[Any], object]], tuple[Any, ...]]] = [
        (of_names, NOT_NAMES),
        (of_paths, NOT_PATHS),
        ([lambda named: operations.transfer(JOB, named)], (None, 7, b"id")),
        ([store.list], tuple(bad for bad in NOT_PATHS if bad != "")),
        ([operations.expire], NOT_IDS),
        (of_addresses, NOT_ADDRESSES),
        (of_numbers, NOT_NUMBERS),
        ([lambda value: store.put("a", value, session=session)], NOT_VALUES),
        (
            [lambda asked: store.commit(asked, session=session)],
            (None, 7, "a", [], [None], Put("a", b""), [Put("a", b"")] * 2),
        ),
        (
            [lambda shown: store.put("a", b"", session=shown)],
            (
                None,
                no_session,
                LeaderSession(leader_session_id=no_uuid, epoch=session.epoch),
            ),
        ),
        (
            [lambda named: election.confirm_leadership(named, "a:1")],
            (None, no_uuid, session),
        ),
    ]
    return [
        lambda call=call, bad=bad: call(bad)  # type: ignore[misc]
        for calls, bads in tables
        for call in calls
        for bad in bads
    ]


class TestRefused:
    def test_what_nothing_can_send_is_refused_at_once(self, harness: Harness) -> None:
        """L4: each bad argument is a `ConfigurationError`, and harms nothing else."""
        candidate = Candidate(harness.open(**PATIENT), "a:1")
        session = candidate.wait_for_confirm()
        for call in bad_calls(candidate, session):
            with pytest.raises(ConfigurationError):
                call()
        assert candidate.election.has_leadership(session.leader_session_id)
        assert candidate.store.list() == []
        assert [c.address for c in candidate.election.contenders()] == ["a:1"]
        assert not list(candidate.ha.operations.contenders("other"))

    @pytest.mark.parametrize("version", [2**31, 2**32, 2**63 - 1])
    def test_high_versions_are_another_version(
        self, harness: Harness, version: int
    ) -> None:
        """L1: a version that a backend never reaches is told as what it is."""
        candidate = Candidate(harness.open(**PATIENT), "a:1")
        session = candidate.wait_for_confirm()
        candidate.store.put("a", b"1", session=session)
        for operation in (Put("a", b"2", version), Delete("a", version)):
            with pytest.raises(VersionMismatchError) as caught:
                candidate.store.commit([operation], session=session)
            assert caught.value.version_expected == version
        assert candidate.store.get("a") == VersionedValue(value=b"1", version=1)
        assert candidate.election.has_leadership(session.leader_session_id)

    @pytest.mark.parametrize("epoch", [0, 2**63 - 1])
    def test_any_epoch_in_range_is_judged(self, harness: Harness, epoch: int) -> None:
        """L2: what was never granted is stale, at both ends of the range."""
        candidate = Candidate(harness.open(**PATIENT), "a:1")
        session = candidate.wait_for_confirm()
        forged = LeaderSession(leader_session_id=session.leader_session_id, epoch=epoch)
        with pytest.raises(StaleEpochError):
            candidate.store.put("a", b"", session=forged)
        assert candidate.election.has_leadership(session.leader_session_id)

    def test_longest_ids_are_judged(self, harness: Harness) -> None:
        """L4: an id of 64 characters is asked for, and is not there."""
        with pytest.raises(UnknownSessionError):
            harness.operator.operations.expire("x" * 64)


class TestNormalised:
    @pytest.mark.parametrize("text", [np.str_, Text])
    def test_subclasses_of_text_are_what_they_say(
        self, harness: Harness, text: Callable[[str], str]
    ) -> None:
        """L4: ``numpy.str_`` and the like lead, store, are found and are listed."""
        ha = harness.open(**PATIENT)
        with (
            campaign(ha, text(JOB), text("host:1"), timeout_seconds=30) as leadership,
            ha.get_leader_retriever(text(JOB)) as retriever,
        ):
            leader = retriever.wait_for_leader(30)
            assert leader.address == "host:1"
            store = ha.get_leader_store(text(JOB))
            store.put(text("a/b"), b"1", session=leadership.session)
            assert store.get(text("a/b")) == VersionedValue(value=b"1", version=1)
            assert store.list(text("a")) == ["a/b"]
            store.delete(text("a/b"), session=leadership.session)
            ha.cleanup(text(JOB))
            (contender,) = ha.operations.contenders(text(JOB))
            assert contender.address == "host:1"
            leadership.check()
            with pytest.raises(UnknownSessionError):
                harness.operator.operations.expire(text("nobody"))
            ended = harness.operator.operations.revoke(text(JOB))
            assert ended == leadership.session

    def test_enumerations_are_their_values(self, harness: Harness) -> None:
        """L4: the value of an enumeration counts, not what ``str`` makes of it."""
        ha = harness.open(**PATIENT)
        with campaign(ha, Name.JOB, Name.ADDRESS, timeout_seconds=30) as leadership:
            store = ha.get_leader_store(JOB)
            store.put(Name.PATH, b"1", session=leadership.session)
            assert store.list() == ["enum/path"]
            store.put("enum/path", b"2", session=leadership.session, version=Number.ONE)
            (contender,) = ha.operations.contenders(JOB)
            assert contender.address == "enum:1"

    def test_numbers_and_buffers_are_what_they_say(self, harness: Harness) -> None:
        """L4: integers of any kind are versions and epochs; buffers are copied."""
        candidate = Candidate(harness.open(**PATIENT), "a:1")
        session = candidate.wait_for_confirm()
        store = candidate.store
        epoch: Any = np.int64(session.epoch)
        of_numpy = LeaderSession(
            leader_session_id=_Identity(int=session.leader_session_id.int), epoch=epoch
        )
        version: Any = np.int32(0)
        values: list[Any] = [
            np.bytes_(b"ends with zero\0"),
            bytearray(b"buffer"),
            memoryview(b"a window")[2:],
        ]
        for value in values:
            store.put("a", value, session=of_numpy, version=version)
            version = np.int32(version + 1)
            found = store.get("a")
            assert found == VersionedValue(value=bytes(value), version=int(version))
            assert type(found.value) is bytes

    def test_identity_may_be_of_a_subclass(self, harness: Harness) -> None:
        """E3: a UUID of a subclass confirms the leadership that it names."""
        candidate = Candidate(harness.open(**PATIENT), "a:1")
        session = candidate.wait_for_confirm()
        named = _Identity(int=session.leader_session_id.int)
        candidate.election.confirm_leadership(named, "b:1")
        assert [c.address for c in candidate.election.contenders()] == ["b:1"]


class TestSettings:
    def test_settings_of_subclasses_open_services(self, harness: Harness) -> None:
        """L4: a cluster id and a client's settings may come out of numpy."""
        settings: dict[str, Any] = {
            "cluster_id": np.str_(harness.cluster_id),
            "session_timeout_seconds": np.float64(20.0),
        }
        ha: HAServices = harness.open(**settings)
        assert type(ha.config.cluster_id) is str
        assert type(ha.config.session_timeout_seconds) is float
        assert ha.get_leader_store(JOB).list() == []


class _Identity(UUID):
    """A UUID of a subclass."""
