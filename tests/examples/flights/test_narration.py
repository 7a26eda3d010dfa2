"""The demo says who speaks, and is never silent for long."""

from __future__ import annotations

import io
import threading
from typing import final

from examples.flights.messages import Confirmed, Granted
from examples.flights.timeline import Timeline


@final
class Listening(io.StringIO):
    """Output that tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_reassured = threading.Event()

    def write(self, text: str) -> int:
        """Take *text*, and see whether it reassures."""
        if "still at work" in text:
            self.has_reassured.set()
        return super().write(text)


def test_it_says_who_speaks() -> None:
    """Every speaker of the demo is introduced."""
    output = io.StringIO()
    Timeline(output).introduce()
    for who in ("collector", "retriever", "asker", "DISRUPTION", "RESCALED"):
        assert who in output.getvalue()


def test_it_is_never_silent_for_long() -> None:
    """After a silence it says that it is still at work."""
    output = Listening()
    timeline = Timeline(output)
    with timeline.never_silent(seconds_max=0.05):
        timeline.say("spark", "starts")
        assert output.has_reassured.wait(timeout=60)
    assert "demo          is still at work" in output.getvalue()


def test_epochs_are_short() -> None:
    """The first epoch that is seen is 1, and the order stays."""
    output = io.StringIO()
    timeline = Timeline(output)
    for epoch in (934455411820462081, 934455411820462083):
        timeline.take_report(Granted(name="a", at_ns=0, epoch=epoch, flight_count=0))
        timeline.take_report(Confirmed(name="a", at_ns=0, epoch=epoch, address="h:1"))
    assert "LEADS under epoch 1\n" in output.getvalue()
    assert "LEADS under epoch 3\n" in output.getvalue()
    assert "9344" not in output.getvalue() + timeline.summary()
