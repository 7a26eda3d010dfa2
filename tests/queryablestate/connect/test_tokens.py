from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nameservice import ConfigurationError
from queryablestate.connect.credentials import Credentials
from queryablestate.connect.tokens import generate_token, write_token
from queryablestate.wire.clients import TOKEN_LENGTH_MAX


class TestGenerate:
    @pytest.mark.proves("C1")
    def test_tokens_are_long_and_different(self) -> None:
        """C1: none is guessed; none looks like an option of a command line."""
        tokens = {generate_token() for _ in range(500)}
        assert len(tokens) == 500
        assert all(43 <= len(token) <= TOKEN_LENGTH_MAX for token in tokens)
        assert not any(token.startswith("-") for token in tokens)


class TestWrite:
    @pytest.mark.proves("C1")
    def test_a_file_that_credentials_take(self, tmp_path: Path) -> None:
        """C1: what is written can be shown as it is, and is read by its owner alone."""
        path = write_token("secret", tmp_path / "a.b")
        assert path == tmp_path / "a.b.token"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert Credentials(token_file=path).read_token() == "secret"

    @pytest.mark.proves("C1")
    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        """C1: somebody may depend on the token that is there."""
        write_token("first", tmp_path / "a")
        with pytest.raises(ConfigurationError, match="exists and is not overwritten"):
            write_token("second", tmp_path / "a")
        assert (tmp_path / "a.token").read_text() == "first\n"

    def test_what_cannot_be_written_is_told(self, tmp_path: Path) -> None:
        """The error names the file."""
        with pytest.raises(ConfigurationError, match=r"missing/a\.token cannot be"):
            write_token("secret", tmp_path / "missing" / "a")
