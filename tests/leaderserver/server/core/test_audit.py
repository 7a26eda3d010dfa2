from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from leaderserver.messages import RequestBody
from leaderserver.operator_messages import ExpireRequest, RevokeRequest, TransferRequest
from leaderserver.store_messages import CleanupRequest
from tests.leaderserver.conversation import (
    EPOCH,
    JOB,
    OBSERVER,
    Conversation,
    Talker,
    register,
)
from zmqtransport import Principal


ADMIN = Principal(name="ada", roles=frozenset({"admin"}), public_key="a" * 40)


def audited(talker: Talker, body: RequestBody) -> list[MutableMapping[str, Any]]:
    """Return the lines about operations that *body* causes."""
    with capture_logs() as logs:
        talker.say(body)
    return [line for line in logs if line["event"].startswith("operation.")]


@pytest.fixture
def led() -> tuple[Conversation, str]:
    """Return a conversation in which leo leads `JOB`, and leo's session."""
    conversation = Conversation()
    leo = Talker(conversation, "leo")
    leo.hello()
    leo.lead("x")
    leo.say(register("y"))
    return conversation, leo.session_id


class TestWhoDidWhat:
    """N6: one line for each operation, with who, what, to which epoch, and how."""

    def test_under_curve_the_name_of_the_key_is_told(
        self, led: tuple[Conversation, str]
    ) -> None:
        """N4, N6: the allow-list's name for the key, and what the client says."""
        conversation, _ = led
        ada = Talker(conversation, "ada", ADMIN)
        ada.hello()
        session = conversation.service.core.session(ada.session_id)
        assert session is not None
        assert audited(ada, RevokeRequest(component_id=JOB)) == [
            {
                "event": "operation.performed",
                "log_level": "info",
                "component": "leaderserver",
                "operation": "revoke",
                "by": "ada",
                "client": session.client,
                "session_id": ada.session_id,
                "component_id": JOB,
                "epoch": EPOCH + 1,
            }
        ]

    def test_each_operation_says_what_it_was_done_to(
        self, led: tuple[Conversation, str]
    ) -> None:
        """N6: without CURVE it may have been anyone."""
        conversation, leo_id = led
        olaf = Talker(conversation, "olaf")
        olaf.hello()
        (transfer,) = audited(olaf, TransferRequest(component_id=JOB, contender_id="y"))
        assert (transfer["operation"], transfer["by"]) == ("transfer", "anyone")
        assert (transfer["contender_id"], transfer["epoch"]) == ("y", EPOCH + 1)
        (cleanup,) = audited(olaf, CleanupRequest(component_id=JOB))
        assert (cleanup["operation"], cleanup["component_id"]) == ("cleanup", JOB)
        (expire,) = audited(olaf, ExpireRequest(session_id=leo_id))
        assert expire["expired_session_id"] == leo_id

    def test_the_epochs_that_end_with_a_session_are_told(
        self, led: tuple[Conversation, str]
    ) -> None:
        """N6: whose leadership an expired session took with it."""
        conversation, leo_id = led
        olaf = Talker(conversation, "olaf")
        olaf.hello()
        (expire,) = audited(olaf, ExpireRequest(session_id=leo_id))
        assert expire["epochs"] == {JOB: EPOCH + 1}

    def test_who_is_refused_is_told_too(self, led: tuple[Conversation, str]) -> None:
        """N4: with the reason, as a warning."""
        conversation, leo_id = led
        olga = Talker(conversation, "olga", OBSERVER)
        olga.hello()
        (line,) = audited(olga, ExpireRequest(session_id=leo_id))
        assert (line["event"], line["log_level"]) == ("operation.refused", "warning")
        assert (line["by"], line["reason"]) == ("olga", "not-allowed")

    def test_who_is_refused_does_not_fill_the_log(
        self, led: tuple[Conversation, str]
    ) -> None:
        """N3: who may nothing may ask for ever; what was done is never left out."""
        conversation, _ = led
        olga = Talker(conversation, "olga", OBSERVER)
        olga.hello()
        refused = [
            line
            for _ in range(100)
            for line in audited(olga, RevokeRequest(component_id=JOB))
        ]
        assert 1 <= len(refused) <= 10
        ada = Talker(conversation, "ada", ADMIN)
        ada.hello()
        assert len(audited(ada, CleanupRequest(component_id=JOB))) == 1
