"""What is made of a driver's word; `lodestar standby` itself is in its own tests."""

from __future__ import annotations

import json
import socket

import pytest

from lodestar.driver_control import DriverControl, DriverWatch
from tests.exhausted_descriptors import no_more_descriptors
from tests.recording import wait_until


def tell(watch: DriverWatch, state: str, epoch: int | None = None) -> None:
    """Say what a driver says."""
    watch.told(json.dumps({"state": state, "epoch": epoch}).encode())


@pytest.mark.proves("H1")
class TestWatch:
    def test_a_driver_that_contends_or_leads_is_ready(self) -> None:
        """H1: one that could not warm up in time is told apart, and contends."""
        said: list[str] = []
        watch = DriverWatch("flights", said.append)
        watch.started()
        found = []
        for state, epoch in (
            ("warming", None),
            ("cold", None),
            ("leading", 7),
            ("stopping", 7),
            ("warm", None),
        ):
            tell(watch, state, epoch)
            observed = watch.observe()
            figures = observed.figures
            ready = observed.problem is None
            found.append((state, ready, figures["warm"], figures["leading"]))
        assert found == [
            ("warming", False, 0, 0),
            ("cold", True, 0, 0),
            ("leading", True, 1, 1),
            ("stopping", False, 0, 0),
            ("warm", True, 1, 0),
        ]
        assert said[1].startswith("the driver contends for flights, and is not warm")
        assert said[2] == "the driver leads flights, epoch 7"
        watch.ended()
        assert watch.observe().problem == "the driver has ended"

    @pytest.mark.parametrize(
        "line",
        [b"", b"{}", b"[]", b"warm", b'{"state": "warm", "epoch": "x"}', b"\xff"],
    )
    def test_what_is_not_understood_changes_nothing(self, line: bytes) -> None:
        """A driver of another version may say more."""
        watch = DriverWatch("flights", pytest.fail)
        watch.told(line)
        assert watch.observe().problem == "the driver has ended"


@pytest.mark.proves("H1")
class TestControl:
    def test_a_driver_that_cannot_be_heard_yet_is_heard_later(self) -> None:
        """H1: out of open files it is not told to end, and nothing else breaks."""
        lines: list[bytes] = []
        with (
            DriverControl(lines.append) as control,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as driver,
        ):
            with no_more_descriptors():
                driver.connect(control.path)
                driver.sendall(b"warm\n")
                assert not control.stop()
            wait_until(lambda: lines == [b"warm"])
            assert control.stop()
            assert driver.recv(1) == b""
