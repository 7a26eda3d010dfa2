"""The two collectors, as processes or threads; the first leads before the second."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from examples.flights.children import ChildProcess
from examples.flights.collector import JOB_ID, Collector
from examples.flights.messages import Report
from haservices import HAConfig, open_ha_services
from retrieval import LeaderRetriever


__all__ = ["collector_processes", "collector_threads"]

_NAMES: Final = ("a", "b")
_LEADER_TIMEOUT_SECONDS: Final = 30.0


@contextlib.contextmanager
def collector_processes(
    processes: dict[str, ChildProcess],
    retriever: LeaderRetriever,
    config: HAConfig,
    take_report: Callable[[Report], None],
    *,
    rehearsed_batch_id: int,
    log_directory: Path,
) -> Iterator[None]:
    """
    Start collectors as processes of their own; end them on exit.

    Args:
        processes: Where they are entered by name.
        retriever: A started retriever of their job.
        config: The name service; handed over in their environment.
        take_report: Takes what they report, a thread for each of them.
        rehearsed_batch_id: In which batch the leader rehearses its death.
        log_directory: Where their logs go.

    Raises:
        NoLeaderError: If the first does not come to lead in time.
    """
    environment = {
        f"LODESTAR_{setting.upper()}": str(value)
        for setting, value in config.to_settings().items()
    }

    def take_line(line: str | None) -> None:
        if line is not None:
            take_report(msgspec.json.decode(line, type=Report))

    with contextlib.ExitStack() as stack:
        for name in _NAMES:
            processes[name] = ChildProcess(
                "examples.flights.collector",
                ["--name", name, "--hold-batch", str(rehearsed_batch_id)],
                environment=environment,
                log_file=log_directory / f"collector-{name}.log",
                on_line=take_line,
            )
            stack.enter_context(contextlib.closing(processes[name]))
            retriever.wait_for_leader(_LEADER_TIMEOUT_SECONDS)
        yield


@contextlib.contextmanager
def collector_threads(
    retriever: LeaderRetriever,
    config: HAConfig,
    take_report: Callable[[Report], None],
) -> Iterator[None]:
    """
    Start the same collectors inside this process; end them on exit.

    Each opens services of its own: when one's session is expired, it is its alone.

    Raises:
        NoLeaderError: If the first does not come to lead in time.
    """
    collectors: list[Collector] = []
    with contextlib.ExitStack() as stack:
        try:
            for name in _NAMES:
                services = stack.enter_context(open_ha_services(config))
                collectors.append(
                    Collector(
                        services.get_leader_election(JOB_ID),
                        services.get_leader_store(JOB_ID),
                        name=name,
                        report=take_report,
                    )
                )
                retriever.wait_for_leader(_LEADER_TIMEOUT_SECONDS)
            yield
        finally:
            # One that lost its leadership midway waits, and leaves before it gets
            # another.
            for collector in collectors:
                collector.close()
