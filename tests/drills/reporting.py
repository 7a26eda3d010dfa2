"""What a drill has to say: lines for people, figures for programs."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from tests.drills.beliefs import handovers_ns, overlaps


if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.drills.beliefs import Span
    from tests.drills.state_answers import Verdict


__all__ = ["Report", "machine"]

_ROOT: Final = Path(__file__).parent.parent.parent


@final
class Report:
    """
    The report of one drill.

    Args:
        drill: Which.
        purpose: What it shows, in a sentence.

    Attributes:
        lines: What was done and found, in order.
        figures: What was measured, by name.
    """

    def __init__(self, drill: str, purpose: str) -> None:
        self.drill = drill
        self.purpose = purpose
        self.outcome = "not run"
        self.lines: list[str] = []
        self.figures: dict[str, Any] = {}

    def say(self, line: str, **figures: Any) -> None:
        """Add a line, and the figures that it is about."""
        self.lines.append(line)
        self.figures.update(figures)

    def durations(self, name: str, what: str, seconds: Sequence[float]) -> float:
        """Add how long something took each time; return the median."""
        median = statistics.median(seconds)
        self.say(
            f"{what}: n {len(seconds)}, min {min(seconds):.3f} s, "
            f"median {median:.3f} s, max {max(seconds):.3f} s",
            **{name: [round(value, 6) for value in seconds]},
        )
        return median

    def check_beliefs(self, spans: Sequence[Span]) -> None:
        """
        Assert that no two ever believed at once; say on what grounds.

        Args:
            spans: Of all processes, which have ended.
        """
        assert spans, "nobody believed anything: nothing was shown"
        assert overlaps(spans) == []
        question_count = sum(span.count for span in spans)
        self.say(
            f"{len(spans)} leaderships in {question_count:,} answers: no two believed "
            "at once",
            leaderships=len(spans),
            answers=question_count,
        )
        gaps_ns = handovers_ns(spans)
        if gaps_ns:
            self.say(
                f"shortest time in which nobody believed: {min(gaps_ns) / 1e9:.3f} s",
                handover_seconds_min=min(gaps_ns) / 1e9,
            )

    def check_answers(self, verdict: Verdict) -> None:
        """
        Assert that no answer of queryable state was wrong; say how many there were.

        Args:
            verdict: On all of them.
        """
        assert not verdict.problems, "\n".join(verdict.problems[:10])
        assert verdict.answer_count, "nobody was answered: nothing was shown"
        self.say(
            f"{verdict.answer_count:,} answers, each a whole batch from the last one "
            "acknowledged before the question to the last one begun before the answer, "
            f"and never older than before; {verdict.decision_count:,} times not before "
            f"the decision itself; the longest took {verdict.seconds_max:.3f} s",
            answers=verdict.answer_count,
            answer_seconds_max=verdict.seconds_max,
        )
        if verdict.error_count:
            self.say(
                f"{verdict.error_count:,} questions were refused, all of them for key "
                "groups of a node that was away; the longest took "
                f"{verdict.error_seconds_max:.3f} s",
                refusals=verdict.error_count,
                refusal_seconds_max=verdict.error_seconds_max,
            )

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        return {
            "drill": self.drill,
            "purpose": self.purpose,
            "outcome": self.outcome,
            "lines": self.lines,
            "figures": self.figures,
        }


def machine() -> dict[str, Any]:
    """Return what figures depend on: the machine, its load, the commit."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "commit": commit.stdout.strip(),
    }
