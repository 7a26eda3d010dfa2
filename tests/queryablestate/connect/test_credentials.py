"""Tokens and key files: where they come from, and that they show nowhere."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import zmq

from haservices import HAConfig
from nameservice import AuthenticationError, ConfigurationError
from queryablestate.connect.credentials import (
    NO_CREDENTIALS,
    Credentials,
    as_credentials,
    credentials_of,
    load_caller_keys,
    secure_to,
)
from queryablestate.wire.address import StateAddress
from zmqtransport import CurveKeyPair, Endpoint, KeyFiles, write_key_pair


SECRET = "very secret"
PLAIN = StateAddress(endpoint=Endpoint(host="127.0.0.1", port=1))


def write_token(path: Path, text: str, mode: int = 0o600) -> str:
    """Return the path of a token file."""
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> KeyFiles:
    """Return the files of a key pair."""
    return write_key_pair(CurveKeyPair.generate(), tmp_path / "mine")


def encrypted() -> StateAddress:
    """Return the address of a proxy that uses CURVE."""
    return StateAddress(
        endpoint=PLAIN.endpoint, server_public_key=CurveKeyPair.generate().public_key
    )


class TestToken:
    def test_text_is_a_token(self) -> None:
        """A token may be given as it is, None stands for none."""
        assert as_credentials(SECRET).read_token() == SECRET
        assert as_credentials(None).read_token() is None
        credentials = Credentials(SECRET)
        assert as_credentials(credentials) is credentials
        with pytest.raises(ConfigurationError):
            as_credentials(7)  # type: ignore[arg-type]  # that is the point

    def test_it_is_shown_nowhere(self) -> None:
        """A secret appears in no repr, and travels in a pickle."""
        credentials = Credentials(SECRET)
        assert SECRET not in repr(credentials)
        assert pickle.loads(pickle.dumps(credentials)) == credentials

    def test_a_file_is_read_each_time(self, tmp_path: Path) -> None:
        """A new token in the file needs no restart; space around it is no part."""
        path = tmp_path / "token"
        credentials = Credentials(token_file=write_token(path, "first\n"))
        assert credentials.read_token() == "first"
        write_token(path, "  second  ")
        assert credentials.read_token() == "second"

    @pytest.mark.parametrize(
        ("text", "mode", "said"),
        [
            ("", 0o600, "one line"),
            ("two\nlines", 0o600, "one line"),
            ("x" * 5_000, 0o600, "one line"),
            (SECRET, 0o640, "chmod 600"),
        ],
        ids=["empty", "lines", "long", "open"],
    )
    def test_a_file_that_cannot_be_used(
        self, tmp_path: Path, text: str, mode: int, said: str
    ) -> None:
        """The error names the file and what to do, and never shows the token."""
        path = write_token(tmp_path / "token", text, mode)
        with pytest.raises(ConfigurationError, match=said) as caught:
            Credentials(token_file=path).read_token()
        assert path in str(caught.value)
        assert SECRET not in str(caught.value)

    def test_a_file_that_is_no_text(self, tmp_path: Path) -> None:
        """What is not UTF-8 is an error of ours, and its bytes are not shown."""
        path = tmp_path / "token"
        path.write_bytes(b"\xff\xfe")
        path.chmod(0o600)
        with pytest.raises(ConfigurationError, match="UTF-8"):
            Credentials(token_file=path).read_token()

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        """A wrong path is named."""
        with pytest.raises(ConfigurationError, match="cannot be read"):
            Credentials(token_file=tmp_path / "none").read_token()

    @pytest.mark.parametrize("token", ["", "a\nb", "x" * 4_097, 7])
    def test_what_no_token_can_be(self, token: str) -> None:
        """A proxy could not tell such a token from a mistake."""
        with pytest.raises(ConfigurationError):
            Credentials(token)

    def test_two_tokens_are_one_too_many(self) -> None:
        """One that gives both must say which."""
        with pytest.raises(ConfigurationError, match="not both"):
            Credentials(SECRET, token_file="somewhere")

    def test_nothing_is_a_mistake(self) -> None:
        """A variable that is not set, for one; who means it passes None."""
        with pytest.raises(ConfigurationError, match="show nothing: give token"):
            Credentials()
        with pytest.raises(ConfigurationError, match="credentials=None"):
            Credentials(token=None, token_file=None)
        assert as_credentials(None) is NO_CREDENTIALS
        assert credentials_of() == NO_CREDENTIALS
        assert credentials_of(token="t") == Credentials("t")
        assert pickle.loads(pickle.dumps(NO_CREDENTIALS)) == NO_CREDENTIALS


class TestKeys:
    def test_a_public_key_alone_proves_nothing(self) -> None:
        """A forgotten setting is an error, not a client without keys."""
        with pytest.raises(ConfigurationError, match="curve_secret_key_file"):
            Credentials(curve_public_key_file="mine.key")

    def test_the_secret_file_is_enough(self, files: KeyFiles) -> None:
        """It holds both keys; the public one is checked if it is named, too."""
        alone = Credentials(curve_secret_key_file=files.secret_file)
        both = Credentials(
            curve_public_key_file=files.public_file,
            curve_secret_key_file=files.secret_file,
        )
        assert alone.load_key_pair() == both.load_key_pair()
        assert NO_CREDENTIALS.load_key_pair() is None

    def test_those_of_the_name_service_are_used_too(self, files: KeyFiles) -> None:
        """Who has keys for the name service is the same to an encrypted proxy."""
        config = HAConfig(
            url="leaderserver://h:1",
            curve_public_key_file=str(files.public_file),
            curve_secret_key_file=str(files.secret_file),
            curve_server_key_file="server.key",
        )
        assert load_caller_keys(NO_CREDENTIALS, config, PLAIN) is None
        pair = load_caller_keys(NO_CREDENTIALS, config, encrypted())
        assert (
            pair == Credentials(curve_secret_key_file=files.secret_file).load_key_pair()
        )
        plain = HAConfig(url="leaderserver://h:1")
        others = Credentials(is_anonymous=True, lends_service_keys=False)
        assert load_caller_keys(others, config, encrypted()) is None
        assert load_caller_keys(NO_CREDENTIALS, plain, encrypted()) is None

    def test_keys_are_drawn_where_there_are_none(self) -> None:
        """A proxy with CURVE is spoken to encrypted, by any caller."""
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            secure_to(socket, encrypted(), None)
            assert socket.getsockopt(zmq.MECHANISM) == zmq.CURVE
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            secure_to(socket, PLAIN, None)
            assert socket.getsockopt(zmq.MECHANISM) == zmq.NULL

    def test_keys_are_not_given_up(self) -> None:
        """Who names keys expects to be encrypted: a plain proxy is refused."""
        with (
            zmq.Context() as context,
            context.socket(zmq.DEALER) as socket,
            pytest.raises(AuthenticationError, match="no CURVE"),
        ):
            secure_to(socket, PLAIN, CurveKeyPair.generate())
