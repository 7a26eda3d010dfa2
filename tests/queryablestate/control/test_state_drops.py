"""What becomes of a state that is dropped."""

from __future__ import annotations

import pytest

from queryablestate import UnknownJobError, UnknownStateError
from queryablestate.control.effects import AnswerWriter, SendToNode
from queryablestate.control.job.leader_paths import state_path
from queryablestate.wire.clients import StateDropDone
from queryablestate.wire.node_messages import ApplyEntries
from queryablestate.wire.records import StateDropped
from tests.queryablestate.control_plane import (
    APP,
    DRIVER,
    EPOCH,
    LINK_A,
    LINK_B,
    Plane,
    drop,
    refusal,
)


class TestDrop:
    """Forgetting a state."""

    def test_it_is_gone_for_readers_at_once(self) -> None:
        """The route is gone; nodes are told in the order of the chain."""
        plane = Plane()
        plane.start_job()
        entry = StateDropped(sequence=1, state_number=1)
        message = ApplyEntries(leader_epoch=EPOCH, job_id=APP, entries=(entry,))
        assert plane.ask(drop()) == [
            SendToNode(link=LINK_A, message=message),
            SendToNode(link=LINK_B, message=message),
            AnswerWriter(link=DRIVER, message=StateDropDone(request_id=4)),
        ]
        assert dict(plane.core.locations) == {}
        assert plane.view.state_names(APP) == []
        assert state_path(1, 1) not in plane.store

    def test_what_is_not_there_is_said_not_to_be(self) -> None:
        """A slip of the keyboard drops nothing."""
        plane = Plane()
        with pytest.raises(UnknownJobError):
            raise refusal(plane.ask(drop()))
        plane.start_job()
        with pytest.raises(UnknownStateError):
            raise refusal(plane.ask(drop("elsewhere")))
