"""What a proxy publishes as its address, and what is made of it."""

from __future__ import annotations

import pytest

from nameservice import ConfigurationError
from queryablestate.wire.address import StateAddress, parse_address
from zmqtransport import CurveKeyPair, Endpoint


ENDPOINT = Endpoint(host="10.0.0.5", port=5171)


class TestStateAddress:
    def test_without_a_key_it_is_an_endpoint(self) -> None:
        """A proxy without CURVE publishes where it listens, and nothing else."""
        address = StateAddress(endpoint=ENDPOINT)
        assert str(address) == "tcp://10.0.0.5:5171"
        assert parse_address(str(address)) == address

    def test_the_key_travels_along(self) -> None:
        """Any key can be published and read back, whatever its Z85 looks like."""
        for _ in range(50):
            key = CurveKeyPair.generate().public_key
            address = StateAddress(endpoint=ENDPOINT, server_public_key=key)
            text = str(address)
            assert text.isalnum() or set(text) <= set(
                "tcp:/?key=.0123456789abcdefghijklmnopqrstuvwxyz"
            )
            assert parse_address(text) == address

    def test_an_ipv6_address_keeps_its_brackets(self) -> None:
        """An IPv6 address and a key do not get into each other's way."""
        key = CurveKeyPair.generate().public_key
        address = StateAddress(
            endpoint=Endpoint(host="::1", port=1), server_public_key=key
        )
        assert str(address).startswith("tcp://[::1]:1?key=")
        assert parse_address(str(address)) == address

    def test_what_is_no_key_is_refused(self) -> None:
        """A malformed key is found where it is given, not where it is used."""
        with pytest.raises(ConfigurationError, match="Z85"):
            StateAddress(endpoint=ENDPOINT, server_public_key="short")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "tcp://10.0.0.5",
        "tcp://*:5171",
        "tcp://0.0.0.0:5171",
        "tcp://10.0.0.5:0",
        "tcp://10.0.0.5:5171?key=",
        "tcp://10.0.0.5:5171?key=00",
        "tcp://10.0.0.5:5171?key=" + "g" * 64,
        "tcp://10.0.0.5:5171?key=" + "A" * 64,
        "tcp://10.0.0.5:5171?key=" + "0" * 64 + "0",
        "tcp://10.0.0.5:5171?token=" + "0" * 64,
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """What cannot be connected to is an error that names it, never a guess."""
    with pytest.raises(ConfigurationError):
        parse_address(text)
