"""Which key of the server comes next; pure but for the log (N4)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from leaderserver.client.server_keys import ServerKeys
from nameservice import ConfigurationError


class File:
    """A key file that changes."""

    def __init__(self, *keys: str) -> None:
        self.keys: Sequence[str] | None = keys

    def load(self) -> Sequence[str]:
        """Return what is in it."""
        if self.keys is None:
            raise ConfigurationError("it is gone")
        return self.keys


class TestTurns:
    def test_each_is_tried_once_and_then_a_pause_is_due(self) -> None:
        """A server that is full or gone is not asked faster than before."""
        keys = ServerKeys(File("a", "b", "c").load)
        assert keys.current == "a"
        assert keys.failed()
        assert keys.current == "b"
        assert keys.failed()
        assert keys.current == "c"
        assert not keys.failed()
        assert keys.current == "a"
        assert keys.failed()

    def test_one_key_is_tried_at_the_usual_pace(self) -> None:
        """As it was before there could be several."""
        keys = ServerKeys(File("a").load)
        assert not keys.failed()
        assert not keys.failed()
        assert keys.current == "a"

    def test_the_one_that_is_proved_stays(self) -> None:
        """The first one is no better than the one that works."""
        keys = ServerKeys(File("a", "b").load)
        keys.failed()
        keys.proved()
        assert keys.current == "b"
        assert keys.failed()
        assert keys.current == "a"


class TestFile:
    def test_it_is_read_again_when_a_key_fails(self) -> None:
        """A new key is known at once, and an old one no more."""
        file = File("a")
        keys = ServerKeys(file.load)
        file.keys = ("b",)
        assert keys.current == "a"
        assert keys.failed()
        assert keys.current == "b"
        file.keys = ("b", "c")
        assert keys.failed()
        assert keys.current == "c"

    def test_what_cannot_be_read_changes_nothing(self) -> None:
        """It is being written, perhaps."""
        file = File("a", "b")
        keys = ServerKeys(file.load)
        file.keys = None
        assert keys.failed()
        assert keys.current == "b"
        with pytest.raises(ConfigurationError, match="gone"):
            ServerKeys(file.load)
