"""What the conversations with a service share: the service, and two clients."""

from __future__ import annotations

import pytest

from tests.leaderserver.conversation import Conversation, Talker


@pytest.fixture
def conversation() -> Conversation:
    """Return a service that has decided already."""
    return Conversation()


@pytest.fixture
def alice(conversation: Conversation) -> Talker:
    """Return a client with a session."""
    talker = Talker(conversation, "alice")
    talker.hello()
    return talker


@pytest.fixture
def bob(conversation: Conversation, alice: Talker) -> Talker:
    """Return another client with a session."""
    talker = Talker(conversation, "bob")
    talker.hello()
    return talker
