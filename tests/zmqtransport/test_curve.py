from __future__ import annotations

import os
import pickle
import resource
import stat
from pathlib import Path

import pytest
import zmq.auth

from nameservice import ConfigurationError
from zmqtransport.curve import (
    CurveKeyPair,
    load_allow_list,
    load_key_pair,
    load_public_key,
    load_public_keys,
    write_key_pair,
)


@pytest.fixture(scope="module")
def pair() -> CurveKeyPair:
    """Return one key pair for all tests: none changes it."""
    return CurveKeyPair.generate()


class TestCurveKeyPair:
    def test_the_secret_key_is_not_shown(self, pair: CurveKeyPair) -> None:
        """Secrets never appear in ``repr`` (design, section 2)."""
        assert pair.public_key in repr(pair)
        assert pair.secret_key not in repr(pair)
        assert pair.secret_key not in str(pair)

    def test_survives_pickling(self, pair: CurveKeyPair) -> None:
        """A configuration with keys travels with a job."""
        assert pickle.loads(pickle.dumps(pair)) == pair

    def test_refuses_keys_that_do_not_belong_together(self, pair: CurveKeyPair) -> None:
        """A mix-up of files is found at once, not in a handshake that fails."""
        other = CurveKeyPair.generate()
        with pytest.raises(ConfigurationError, match="belong together") as caught:
            CurveKeyPair(public_key=pair.public_key, secret_key=other.secret_key)
        assert other.secret_key not in str(caught.value)

    def test_refuses_malformed_keys_without_quoting_the_secret(
        self, pair: CurveKeyPair
    ) -> None:
        """A secret that was cut off is still a secret."""
        cut = pair.secret_key[:-1]
        with pytest.raises(ConfigurationError) as caught:
            CurveKeyPair(public_key=pair.public_key, secret_key=cut)
        assert cut not in str(caught.value)
        with pytest.raises(ConfigurationError, match="is not a public key"):
            CurveKeyPair(public_key="x", secret_key=pair.secret_key)


class TestWriteKeyPair:
    def test_files_are_read_back(self, pair: CurveKeyPair, tmp_path: Path) -> None:
        """What ``lodestar keygen`` writes is what servers and clients load."""
        files = write_key_pair(pair, tmp_path / "driver")
        assert files.public_file == tmp_path / "driver.key"
        assert files.secret_file == tmp_path / "driver.key_secret"
        assert load_public_key(files.public_file) == pair.public_key
        assert load_public_key(files.secret_file) == pair.public_key
        assert load_key_pair(files.secret_file) == pair
        assert load_key_pair(files.secret_file, files.public_file) == pair

    def test_a_dot_in_the_name_is_kept(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """``host.example`` makes ``host.example.key``, not ``host.key``."""
        files = write_key_pair(pair, tmp_path / "host.example")
        assert files.public_file.name == "host.example.key"

    def test_only_the_owner_may_read_the_secret(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """Mode 0600 for the secret and 0644 for the public file, whatever the umask."""
        for umask in (0o000, 0o022, 0o077):
            previous = os.umask(umask)
            try:
                files = write_key_pair(pair, tmp_path / f"umask-{umask}")
            finally:
                os.umask(previous)
            assert stat.S_IMODE(files.secret_file.stat().st_mode) == 0o600
            assert stat.S_IMODE(files.public_file.stat().st_mode) == 0o644

    @pytest.mark.parametrize("suffix", [".key", ".key_secret"])
    def test_nothing_is_overwritten(
        self, pair: CurveKeyPair, tmp_path: Path, suffix: str
    ) -> None:
        """A key that is in use is not lost, and no half of a pair is left behind."""
        existing = tmp_path / f"driver{suffix}"
        existing.write_text("precious")
        with pytest.raises(ConfigurationError, match="not overwritten") as caught:
            write_key_pair(pair, tmp_path / "driver")
        assert str(existing) in str(caught.value)
        assert [path.name for path in tmp_path.iterdir()] == [existing.name]
        assert existing.read_text() == "precious"

    def test_no_file_is_written_through_a_symbolic_link(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """A dangling link planted under the name does not lead the secret elsewhere."""
        (tmp_path / "driver.key_secret").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConfigurationError, match="not overwritten"):
            write_key_pair(pair, tmp_path / "driver")
        assert not (tmp_path / "elsewhere").exists()

    def test_a_missing_directory_is_named(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """An error of the file system is a `ConfigurationError` that names the path."""
        with pytest.raises(ConfigurationError, match="No such file") as caught:
            write_key_pair(pair, tmp_path / "missing" / "driver")
        assert str(tmp_path / "missing" / "driver.key_secret") in str(caught.value)

    def test_no_half_written_file_is_left(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """A full disk is an error, not a key file that cannot be read."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            with pytest.raises(ConfigurationError, match="cannot be written"):
                write_key_pair(pair, tmp_path / "driver")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["", "a\nb", 'a"b'])
    def test_the_name_must_fit_into_the_file(
        self, pair: CurveKeyPair, tmp_path: Path, name: str
    ) -> None:
        """A name cannot smuggle lines into the file."""
        base = tmp_path / name if name else Path("/")
        with pytest.raises(ConfigurationError, match="printable name"):
            write_key_pair(pair, base)

    def test_tools_of_zeromq_read_our_files(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """The format is the one of pyzmq's certificates."""
        files = write_key_pair(pair, tmp_path / "driver")
        public, secret = zmq.auth.load_certificate(files.secret_file)
        assert (public, secret) == (pair.public_key.encode(), pair.secret_key.encode())
        assert zmq.auth.load_certificate(files.public_file) == (public, None)


class TestLoad:
    def test_reads_the_files_of_zeromq_tools(self, tmp_path: Path) -> None:
        """Keys that ``zmq.auth.create_certificates`` has made are taken."""
        public_file, secret_file = zmq.auth.create_certificates(
            tmp_path, "theirs", metadata={"email": "someone@example.com"}
        )
        Path(secret_file).chmod(0o600)
        pair = load_key_pair(Path(secret_file), Path(public_file))
        assert load_public_key(Path(public_file)) == pair.public_key

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o601])
    def test_refuses_a_secret_that_others_may_open(
        self, pair: CurveKeyPair, tmp_path: Path, mode: int
    ) -> None:
        """A secret that others can read or replace is none; the fix is named."""
        path = write_key_pair(pair, tmp_path / "driver").secret_file
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match="open to others") as caught:
            load_key_pair(path)
        assert f"chmod 600 {path}" in str(caught.value)

    def test_the_public_file_is_no_secret_file(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """Naming the wrong one of the two files is explained."""
        files = write_key_pair(pair, tmp_path / "driver")
        with pytest.raises(ConfigurationError, match=r"name the \.key_secret file"):
            load_key_pair(files.public_file)

    def test_the_two_files_must_belong_together(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """The public file of another pair is a mix-up."""
        files = write_key_pair(pair, tmp_path / "driver")
        others = write_key_pair(CurveKeyPair.generate(), tmp_path / "other")
        with pytest.raises(ConfigurationError, match="do not belong together"):
            load_key_pair(files.secret_file, others.public_file)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        """An error of the file system is a `ConfigurationError` that names the path."""
        path = tmp_path / "missing.key"
        for load in (load_public_key, load_key_pair, load_allow_list):
            with pytest.raises(ConfigurationError, match="No such file") as caught:
                load(path)
            assert str(path) in str(caught.value)

    def test_what_is_no_file_is_refused_without_waiting(self, tmp_path: Path) -> None:
        """A directory is an error, and so is a pipe, which would block its reader."""
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path, tmp_path / "pipe"):
            with pytest.raises(ConfigurationError, match=str(path)):
                load_public_key(path)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"\xff\xfe\x00",
            b"curve\n",
            b"# nothing but a comment\n",
            b'metadata\n    name = "x"\n',
            b'curve\n    public-key = "short"\n    secret-key = "short"\n',
            b"curve\n    public-key = short\n",
            b'curve\n    secret-key = "' + b"0" * 40 + b'"\n',
            b"curve\n    gibberish\n",
            b'    public-key = "x"\n',
            b'curve\n    public-key = "x"\n    public-key = "x"\n',
            b"x" * 70_000,
            b'public-key = "' + b"0" * 40 + b'"\n',
            b"\x00" * 100,
        ],
    )
    def test_malformed_files_are_configuration_errors(
        self, tmp_path: Path, content: bytes
    ) -> None:
        """Every malformed file is named, and nothing of it is quoted."""
        path = tmp_path / "driver.key_secret"
        path.write_bytes(content)
        path.chmod(0o600)
        for load in (load_public_key, load_key_pair):
            with pytest.raises(ConfigurationError) as caught:
                load(path)
            assert str(path) in str(caught.value)
            for word in ("short", "gibberish", "0000"):
                assert word not in str(caught.value)

    def test_a_broken_secret_is_not_quoted(
        self, pair: CurveKeyPair, tmp_path: Path
    ) -> None:
        """Whatever is wrong with a secret file, its secret is shown nowhere."""
        path = write_key_pair(pair, tmp_path / "driver").secret_file
        text = path.read_text()
        for broken in (
            text.replace(pair.secret_key, pair.secret_key[:-1]),
            text.replace(f'"{pair.secret_key}"', pair.secret_key),
            text.replace(pair.public_key, CurveKeyPair.generate().public_key),
        ):
            path.write_text(broken)
            with pytest.raises(ConfigurationError) as caught:
                load_key_pair(path)
            causes: list[BaseException] = [caught.value]
            while (cause := causes[-1].__cause__) is not None:
                causes.append(cause)
            for error in causes:
                assert pair.secret_key[:-1] not in str(error)

    def test_allow_list(self, pair: CurveKeyPair, tmp_path: Path) -> None:
        """The allow-list is read from its file, and errors name that file."""
        path = tmp_path / "clients.toml"
        path.write_text(
            f'[clients.a]\npublic_key = "{pair.public_key}"\nroles = ["observe"]\n'
        )
        client = load_allow_list(path).get(pair.public_key)
        assert client is not None
        assert client.name == "a"
        path.write_text("")
        with pytest.raises(ConfigurationError, match=str(path)):
            load_allow_list(path)

    def test_a_file_may_name_several_public_keys(self, tmp_path: Path) -> None:
        """Files one after the other: in their order, each key once (N4)."""
        pairs = [CurveKeyPair.generate() for _ in range(3)]
        texts = [
            write_key_pair(each, tmp_path / str(n)).public_file.read_text()
            for n, each in enumerate(pairs)
        ]
        path = tmp_path / "known.key"
        path.write_text("".join([*texts, texts[0]]))
        public_keys = tuple(each.public_key for each in pairs)
        assert load_public_keys(path) == public_keys
        assert load_public_key(path) == public_keys[0]
        path.write_text("".join(texts * 3))
        with pytest.raises(ConfigurationError, match="at most 8"):
            load_public_keys(path)

    def test_a_server_has_one_key(self, tmp_path: Path) -> None:
        """Two in a secret file are a mistake, and no list."""
        files = write_key_pair(CurveKeyPair.generate(), tmp_path / "server")
        text = files.secret_file.read_text()
        files.secret_file.write_text(text + text)
        with pytest.raises(ConfigurationError, match="cannot be understood"):
            load_key_pair(files.secret_file)
