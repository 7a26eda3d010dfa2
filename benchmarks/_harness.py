"""What every benchmark shares: sizes, rounds, the machine, and the report."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import asdict, frozen


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


__all__ = [
    "Figure",
    "choose_tiny_sizes",
    "environment",
    "figure",
    "keep",
    "report",
    "rounds",
    "sized",
    "timed_ns",
    "wait_until",
]

_TIMEOUT_SECONDS: Final = 60.0
_LOOK_PAUSE_SECONDS: Final = 0.05
_RESULTS: Final = Path(__file__).parent / "results"

# Of the environment, so that processes which a benchmark starts have the same sizes.
# Not LODESTAR_…: the command line refuses such a variable that it does not know.
_TINY_VARIABLE: Final = "BENCHMARKS_TINY"

_Size = TypeVar("_Size")


@frozen(kw_only=True)
class Figure:
    """
    One measured quantity.

    Attributes:
        name: What was measured, with its parameters.
        unit: Of the values.
        count: How many values there are.
        median: Half of them are below.
        p99: 99 % of them are below; the maximum if there are fewer than a hundred.
        maximum: The largest.
    """

    name: str
    unit: str
    count: int
    median: float
    p99: float
    maximum: float


def choose_tiny_sizes() -> None:
    """Have `sized` return tiny sizes, here and in child processes."""
    os.environ[_TINY_VARIABLE] = "1"


def sized(full: _Size, *, tiny: _Size) -> _Size:
    """
    Return how much is measured: *full*, or *tiny* after `choose_tiny_sizes`.

    Args:
        full: What the figures are made with.
        tiny: The least with which each line of the benchmark still runs.
    """
    return tiny if _is_tiny() else full


def _is_tiny() -> bool:
    return os.environ.get(_TINY_VARIABLE) == "1"


def figure(name: str, unit: str, values: Iterable[float]) -> Figure:
    """Return the figure of *values*, of which there must be one at least."""
    ordered = sorted(values)
    return Figure(
        name=name,
        unit=unit,
        count=len(ordered),
        median=ordered[len(ordered) // 2],
        p99=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
        maximum=ordered[-1],
    )


def rounds(
    measure: Callable[[], float], *, count: int, warm_up: int = 1
) -> list[float]:
    """Return what *measure* returns in *count* rounds after *warm_up* more."""
    for _ in range(warm_up):
        measure()
    return [measure() for _ in range(count)]


def timed_ns(action: Callable[[], object], *, repeat: int) -> float:
    """Return nanoseconds per call of *action*, over *repeat* calls in one go."""
    began = time.perf_counter_ns()
    for _ in range(repeat):
        action()
    return (time.perf_counter_ns() - began) / repeat


def wait_until(
    is_so: Callable[[], bool], *, pause_seconds: float = _LOOK_PAUSE_SECONDS
) -> None:
    """Return once *is_so*, of which nothing tells; fail if it is not in time."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited {_TIMEOUT_SECONDS} s in vain"
        time.sleep(pause_seconds)  # noqa: TID251 (there is no event)


def report(benchmark: str, figures: Sequence[Figure]) -> None:
    """
    Print *figures* as a table, and keep them as JSON under results/.

    Those of tiny sizes are not kept: they say nothing of speed.
    """
    width = max(len(item.name) for item in figures)
    sizes = "tiny sizes, " if _is_tiny() else ""
    print(f"\n{benchmark}  ({sizes}{_commit()}, load {os.getloadavg()[0]:.1f})")
    print(f"{'':{width}}  {'median':>12} {'p99':>12} {'max':>12}  n")
    for item in figures:
        print(
            f"{item.name:{width}}  {item.median:12,.1f} {item.p99:12,.1f} "
            f"{item.maximum:12,.1f}  {item.count}  {item.unit}"
        )
    sys.stdout.flush()
    if not _is_tiny():
        keep(benchmark, {"figures": [asdict(item) for item in figures]})


def keep(benchmark: str, content: Mapping[str, object]) -> Path:
    """Keep *content* as JSON under results/, with the machine; return the file."""
    _RESULTS.mkdir(exist_ok=True)
    path = _RESULTS / f"{benchmark}-{time.strftime('%Y%m%dT%H%M%S')}.json"
    kept = {"benchmark": benchmark, **environment(), **content}
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return path


def environment() -> dict[str, object]:
    """Return what is measured, and where."""
    return {
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "load": os.getloadavg(),
    }


def _commit() -> str:
    """Return the commit that is measured; a ``+`` says that there are changes."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "no commit"
