from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from lodestar.__main__ import main
from transport import load_key_pair, load_public_key


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
