from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import RemoteProtocolError
from zmqtransport.framing import (
    MalformedFrameError,
    OversizedFrameError,
    TruncatedMessageError,
    WrongMagicError,
    WrongVersionError,
    decode,
    encode,
)


class TestEncode:
    def test_writes_magic_version_and_payload(self) -> None:
        """The bytes on the wire are those that the specification names."""
        assert encode(b"payload") == [b"LDS\x01", b"payload"]

    @given(st.binary(max_size=100))
    def test_decode_gives_the_payload_back(self, payload: bytes) -> None:
        """What is encoded is decoded, the empty payload included."""
        assert decode(encode(payload), size_bytes_max=100) == payload


class TestDecode:
    def test_the_largest_payload_is_taken(self) -> None:
        """The limit is inclusive: exactly as many bytes pass, one more does not."""
        assert decode(encode(b"x" * 10), size_bytes_max=10) == b"x" * 10
        with pytest.raises(OversizedFrameError) as caught:
            decode(encode(b"x" * 11), size_bytes_max=10)
        assert (caught.value.size_bytes, caught.value.size_bytes_max) == (11, 10)
        assert caught.value.reason == "oversized"

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        "frames", [[], [b""], [b"L"], [b"LDS"], [b"LDS", b"payload"], [b"LDS\x01"]]
    )
    def test_truncated(self, frames: list[bytes]) -> None:
        """Rule N3: a message that ends too early is told from one of another kind."""
        with pytest.raises(TruncatedMessageError) as caught:
            decode(frames, size_bytes_max=10)
        assert caught.value.reason == "truncated"
        assert caught.value.frame_count == len(frames)

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize("version", [0, 2, 255])
    @pytest.mark.parametrize("rest", [[], [b"x"], [b"x" * 11], [b"x", b"y"]])
    def test_wrong_version(self, version: int, rest: list[bytes]) -> None:
        """Rule N3: the version is judged before what another version may change."""
        for tail in (b"", b"more"):
            with pytest.raises(WrongVersionError) as caught:
                decode([b"LDS" + bytes([version]) + tail, *rest], size_bytes_max=10)
            assert (caught.value.version, caught.value.version_expected) == (version, 1)
            assert caught.value.reason == "wrong-version"

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize("header", [b"X", b"HTTP", b"lds\x01", b"\x00LDS\x01"])
    def test_wrong_magic(self, header: bytes) -> None:
        """Rule N3: a peer that speaks something else is told so."""
        with pytest.raises(WrongMagicError) as caught:
            decode([header, b"x"], size_bytes_max=10)
        assert caught.value.reason == "wrong-magic"

    @pytest.mark.proves("N3")
    @pytest.mark.parametrize(
        "frames", [[b"LDS\x01x", b"x"], [b"LDS\x01", b"x", b"y"], [b"LDS\x01"] * 9]
    )
    def test_malformed(self, frames: list[bytes]) -> None:
        """Rule N3: what is too long by a frame or by a byte is refused."""
        with pytest.raises(MalformedFrameError) as caught:
            decode(frames, size_bytes_max=10)
        assert caught.value.reason == "malformed"

    @pytest.mark.proves("N3")
    @given(st.lists(st.binary(max_size=12), max_size=4))
    def test_anything_else_is_a_remote_protocol_error(
        self, frames: list[bytes]
    ) -> None:
        """Rule N3: no sequence of frames raises anything else."""
        try:
            payload = decode(frames, size_bytes_max=10)
        except RemoteProtocolError:
            return
        assert frames == [b"LDS\x01", payload]


@pytest.mark.parametrize(
    "error",
    [
        TruncatedMessageError(1, "the message has no payload"),
        MalformedFrameError(3, "too long"),
        OversizedFrameError(11, 10),
        WrongMagicError(),
        WrongVersionError(7),
    ],
)
def test_errors_survive_pickling(error: RemoteProtocolError) -> None:
    """An error that a Spark task raises reaches the driver whole."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
