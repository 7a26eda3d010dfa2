from __future__ import annotations

from pathlib import Path

import pytest

from leaderserver.message_parts import AffirmationRecord
from leaderserver.messages import DoneReply, FailedReply, WithdrawRequest
from leaderserver.server.sqlite_storage import SQLiteStorage
from leaderserver.store_messages import (
    CleanupRequest,
    CommitRequest,
    DeleteRecord,
    GetRequest,
    ListRequest,
    PathsReply,
    PutRecord,
    ValueReply,
)
from tests.leaderserver.conversation import (
    EPOCH,
    JOB,
    Conversation,
    Talker,
    commit,
    confirm,
    failure,
)


class TestStore:
    @pytest.mark.proves("L1")
    def test_a_leader_writes_and_everybody_reads(
        self, alice: Talker, bob: Talker
    ) -> None:
        """Values, versions and paths (L1)."""
        granted = alice.lead("x")
        assert bob.answer(GetRequest(component_id=JOB, path="a")) == ValueReply(
            value=b"", version=0
        )
        assert alice.answer(commit(granted.affirmation)) == DoneReply()
        assert bob.answer(GetRequest(component_id=JOB, path="a")) == ValueReply(
            value=b"v", version=1
        )
        assert bob.answer(
            ListRequest(component_id=JOB, prefix="", after="")
        ) == PathsReply(paths=["a"], is_complete=True)

    def test_paths_come_in_pages(self, alice: Talker) -> None:
        """A thousand at a time, and the last page says so."""
        names = [f"{index:04}" for index in range(1_500)]
        granted = alice.lead("x")
        for part in (names[:1_000], names[1_000:]):
            alice.answer(
                CommitRequest(
                    component_id=JOB,
                    leader_session_id=granted.affirmation.leader_session_id,
                    epoch=granted.affirmation.epoch,
                    operations=[
                        PutRecord(path=name, value=b"", version=0) for name in part
                    ],
                )
            )
        first = alice.answer(ListRequest(component_id=JOB, prefix="", after=""))
        assert first == PathsReply(paths=names[:1_000], is_complete=False)
        last = alice.answer(ListRequest(component_id=JOB, prefix="", after="0999"))
        assert last == PathsReply(paths=names[1_000:], is_complete=True)

    @pytest.mark.proves("L2")
    def test_a_deposed_leader_writes_nothing(self, alice: Talker, bob: Talker) -> None:
        """The refusal names the newest epoch (L2)."""
        granted = alice.lead("x")
        alice.say(WithdrawRequest(component_id=JOB, contender_id="x"))
        bob.lead("y")
        stale = alice.answer(commit(granted.affirmation))
        assert isinstance(stale, FailedReply)
        assert (stale.reason, stale.epoch_max) == ("stale", EPOCH + 2)
        assert alice.answer(GetRequest(component_id=JOB, path="a")) == ValueReply(
            value=b"", version=0
        )

    @pytest.mark.proves("L2")
    def test_only_the_holder_itself_writes(self, alice: Talker, bob: Talker) -> None:
        """To know a leadership is not to have it; another's store is another's (L2)."""
        granted = alice.lead("x")
        assert failure(bob.say(commit(granted.affirmation))) == "stale"
        elsewhere = AffirmationRecord(
            component_id="c/other",
            contender_id="x",
            leader_session_id=granted.affirmation.leader_session_id,
            epoch=granted.affirmation.epoch,
        )
        assert failure(alice.say(commit(elsewhere))) == "stale"

    @pytest.mark.proves("L1")
    def test_a_version_that_is_not_there(self, alice: Talker) -> None:
        """The refusal says which path, and what is there (L1)."""
        granted = alice.lead("x")
        request = CommitRequest(
            component_id=JOB,
            leader_session_id=granted.affirmation.leader_session_id,
            epoch=granted.affirmation.epoch,
            operations=[DeleteRecord(path="a", version=3)],
        )
        refused = alice.answer(request)
        assert isinstance(refused, FailedReply)
        assert refused.reason == "version-mismatch"
        assert (refused.path, refused.version, refused.version_expected) == ("a", 0, 3)

    @pytest.mark.proves("L3")
    def test_a_commit_keeps_to_its_limits(self, alice: Talker) -> None:
        """Our clients check it; others are checked here (L3)."""
        granted = alice.lead("x")
        assert alice.answer(commit(granted.affirmation, bytes(1_000_000))) == (
            DoneReply()
        )
        too_large = commit(granted.affirmation, bytes(1_000_001))
        assert failure(alice.say(too_large)) == "invalid"
        twice = CommitRequest(
            component_id=JOB,
            leader_session_id=granted.affirmation.leader_session_id,
            epoch=granted.affirmation.epoch,
            operations=[DeleteRecord(path="a", version=None)] * 2,
        )
        assert failure(alice.say(twice)) == "invalid"

    @pytest.mark.proves("L3")
    def test_cleanup_removes_values(self, alice: Talker) -> None:
        """And nothing of the election (L3)."""
        granted = alice.lead("x")
        alice.answer(commit(granted.affirmation))
        assert alice.answer(CleanupRequest(component_id=JOB)) == DoneReply()
        paths = alice.answer(ListRequest(component_id=JOB, prefix="", after=""))
        assert paths == PathsReply(paths=[], is_complete=True)
        assert alice.answer(confirm(granted.affirmation)) == DoneReply()

    def test_a_broken_storage_is_told(self, tmp_path: Path) -> None:
        """Who asks hears that the data directory is at fault (L4)."""
        storage = SQLiteStorage(tmp_path)
        alice = Talker(Conversation(storage=storage), "alice")
        alice.hello()
        storage._database._connection.execute("DROP TABLE store")
        request = GetRequest(component_id=JOB, path="a")
        assert failure(alice.say(request)) == "storage"
        storage.close()
