from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path

import pytest

from lodestar.__main__ import main
from queryablestate.connect.credentials import Credentials
from queryablestate.proxy.access import AccessList, CallerEntry, token_sha256
from zmqtransport import load_key_pair, load_public_key


@pytest.mark.proves("N4")
class TestKeygen:
    def test_it_makes_keys_that_can_be_loaded(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N4: keygen makes a pair that servers and clients take."""
        assert main(["keygen", "collector-1", "--dir", str(tmp_path)]) == 0
        public_file = tmp_path / "collector-1.key"
        secret_file = tmp_path / "collector-1.key_secret"
        pair = load_key_pair(secret_file, public_file)
        assert load_public_key(public_file) == pair.public_key
        assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
        text = capsys.readouterr().out
        assert pair.public_key in text
        assert str(secret_file) in text
        assert pair.secret_key not in text

    def test_json(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """N4: programs are told where the keys are; the secret one stays there."""
        assert main(["keygen", "a", "--json", "--dir", str(tmp_path)]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document == {
            "public_key": load_public_key(tmp_path / "a.key"),
            "public_key_file": str(tmp_path / "a.key"),
            "secret_key_file": str(tmp_path / "a.key_secret"),
        }

    def test_the_directory_is_made(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N4: of its owner alone, as what is in it; what is no directory is refused."""
        directory = tmp_path / "a" / "keys"
        assert main(["keygen", "a", "--dir", str(directory)]) == 0
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert main(["keygen", "a", "--dir", str(directory / "a.key")]) == 2
        error = capsys.readouterr().err
        assert f"directory {directory / 'a.key'} cannot be made" in error
        assert len(error.splitlines()) == 1

    def test_it_never_overwrites(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N4: a key that somebody depends on is not replaced by a second run."""
        assert main(["keygen", "a", "--dir", str(tmp_path)]) == 0
        before = (tmp_path / "a.key_secret").read_bytes()
        capsys.readouterr()
        assert main(["keygen", "a", "--dir", str(tmp_path)]) == 2
        assert (tmp_path / "a.key_secret").read_bytes() == before
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1


class TestToken:
    """C1: a caller has a token, the proxy's list its hash."""

    def test_it_is_written_for_its_owner_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """C1: the file can be used as it is; what is printed is no secret."""
        arguments = ["keygen", "dashboard", "--token", "--dir", str(tmp_path)]
        assert main([*arguments, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        file = tmp_path / "dashboard.token"
        assert document["token_file"] == str(file)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = Credentials(token_file=file).read_token()
        assert token is not None
        assert document["token_sha256"] == token_sha256(token)
        assert token not in str(document)
        entry = CallerEntry(
            name="dashboard", token_sha256=document["token_sha256"], read=["*/*"]
        )
        caller = AccessList(callers=(entry,)).authenticate(token=token)
        assert caller is not None

        assert main(arguments) == 2
        assert file.read_text() == f"{token}\n"
        assert str(file) in capsys.readouterr().err

    def test_without_a_name_it_is_printed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """C1: for secret stores of another kind: the token and its hash, new ones."""
        tokens: set[str] = set()
        for _ in range(2):
            assert main(["keygen", "--token"]) == 0
            first, second = capsys.readouterr().out.splitlines()
            word, token = first.split()
            assert word == "token"
            assert tomllib.loads(second) == {"token_sha256": token_sha256(token)}
            tokens.add(token)
        assert len(tokens) == 2

    def test_a_directory_that_is_none_is_told(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """N5: exit code 2 and a line that names it."""
        file = tmp_path / "file"
        file.touch()
        assert main(["keygen", "a", "--token", "--dir", str(file)]) == 2
        assert f"directory {file} cannot be made" in capsys.readouterr().err
