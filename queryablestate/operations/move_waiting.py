"""
Waiting for moves of key groups: whether what the proxy says is the end; pure.

`queryablestate.operations.polling` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, final

from nameservice.clock import seconds_to_ns
from nameservice.errors import DidNotHappenError
from queryablestate.operations.move_progress import MoveFigures, MoveProgress
from queryablestate.operations.rescaling_information import (
    DrainInformation,
    RescalingInformation,
)


__all__ = ["DrainWaiting", "RescaleWaiting"]

_STUCK_SECONDS: Final = 5.0
"""How long nothing must be copied or change for a node that is not empty."""


@final
class RescaleWaiting:
    """
    Waits until jobs are as wanted.

    Args:
        on_progress: Is told of every step.
        since: What was asked for, and how things were then: what was done before the
            first step counts, too.
        now_ns: The time.
    """

    def __init__(
        self,
        on_progress: (
            Callable[[Sequence[RescalingInformation], MoveFigures], None] | None
        ),
        *,
        since: RescalingInformation | None,
        now_ns: int,
    ) -> None:
        self._on_progress = on_progress
        self._progress = MoveProgress()
        self._left_count: int | None = None
        self._asked = since
        if since is not None:
            _observe(self._progress, [since], now_ns=now_ns)

    def step(
        self,
        rescalings: Sequence[RescalingInformation],
        *,
        is_settled: bool,
        now_ns: int,
    ) -> Sequence[RescalingInformation] | None:
        """
        Take note of what the proxy said; return it if that is the end.

        Args:
            rescalings: Of the jobs that are waited for.
            is_settled: Whether the proxy changes assignments already: before, it has
                not looked who is there.
            now_ns: The time.

        Raises:
            DidNotHappenError: If it is something else by now that is wanted.
        """
        figures = _observe(self._progress, rescalings, now_ns=now_ns)
        self._left_count = figures.left_count
        if self._on_progress is not None:
            self._on_progress(rescalings, figures)
        self._check_wanted(rescalings)
        is_over = is_settled and all(each.is_done for each in rescalings)
        return rescalings if is_over else None

    def _check_wanted(self, rescalings: Sequence[RescalingInformation]) -> None:
        """Return if what was asked for is what is wanted still."""
        asked = self._asked
        if asked is None:
            return
        for each in rescalings:
            # The numbers change when somebody asks for others, and never else: the end
            # of that move is not the end of ours.
            if each.job_id == asked.job_id and _wanted(each) != _wanted(asked):
                raise DidNotHappenError(
                    f"something else was asked for meanwhile: {each.job_id} is to have "
                    f"{_wanted(each)} now, not {_wanted(asked)}"
                )

    def missing(self) -> str:
        """Return what is still waited for, as a part of a sentence."""
        if not self._left_count:
            return "key groups are still being moved"
        return f"{self._left_count} copies of key groups are still to be made"


@final
class DrainWaiting:
    """
    Waits until a node is empty.

    Args:
        node_id: Which.
        on_progress: Is told of every step.
    """

    def __init__(
        self,
        node_id: str,
        on_progress: Callable[[DrainInformation, MoveFigures], None] | None,
    ) -> None:
        self._node_id = node_id
        self._on_progress = on_progress
        self._progress = MoveProgress()
        self._left_count: int | None = None
        self._planned_counts: dict[str, int] = {}
        self._idle: tuple[Mapping[str, int], Collection[str]] | None = None
        self._idle_since_ns = 0

    def step(
        self,
        drain: DrainInformation,
        rescalings: Sequence[RescalingInformation],
        *,
        away_ids: Collection[str] = (),
        is_settled: bool,
        now_ns: int,
    ) -> DrainInformation | None:
        """
        Take note of what the proxy said; return it if that is the end.

        Args:
            drain: How far the node is from being empty.
            rescalings: Of all jobs.
            away_ids: Nodes that are out of contact.
            is_settled: Whether the proxy changes assignments already.
            now_ns: The time.

        Raises:
            DidNotHappenError: If the node will not be empty.
        """
        self._left_count = drain.left_count
        seconds_left = _seconds_left(
            each for each in rescalings if each.job_id in drain.copy_counts
        )
        for job_id, count in drain.copy_counts.items():
            self._planned_counts.setdefault(job_id, count)
        figures = self._progress.observe(
            planned_counts=self._planned_counts,
            left_counts=drain.copy_counts,
            fetched_sizes=_fetched_sizes(rescalings),
            # Nothing may be planned yet for what is left.
            seconds_left=seconds_left or (None if drain.left_count else 0.0),
            now_ns=now_ns,
        )
        if self._on_progress is not None:
            self._on_progress(drain, figures)
        if not drain.is_draining and not (drain.is_empty and drain.is_away):
            # Also if it is empty just now: it is there, and may be given key groups at
            # any moment.  One that was forgotten meanwhile is not.
            raise DidNotHappenError(
                f"{self._node_id} is not being drained any more: it was started anew, "
                "or was told to take part again (drain --undo)"
            )
        if drain.is_empty:
            return drain
        idle = self._idle
        self._idle = None
        if not is_settled or not drain.left_count:
            return None  # batches that were begun come to an end
        concerned = [each for each in rescalings if each.job_id in drain.copy_counts]
        if any(not _is_idle(each, away_ids) for each in concerned):
            return None
        # A node that has just gone away may be expected back: the plan counts on it.
        versions = {each.job_id: each.assignment_version for each in concerned}
        self._idle = versions, frozenset(away_ids)
        if self._idle != idle:
            self._idle_since_ns = now_ns
        if now_ns - self._idle_since_ns >= seconds_to_ns(_STUCK_SECONDS):
            if drain.is_away:
                raise DidNotHappenError(
                    f"{self._node_id} is away, and has the only copies of "
                    f"{drain.left_count} key groups: they are unavailable until it is "
                    "back"
                )
            raise DidNotHappenError(
                f"no other node can take the {drain.left_count} copies of key groups "
                f"that {self._node_id} still has: start one, and they go there"
            )
        return None

    def missing(self) -> str:
        """Return what is still waited for, as a part of a sentence."""
        if not self._left_count:
            return f"{self._node_id} is still being emptied"
        return f"{self._left_count} copies of key groups are still on {self._node_id}"


def _observe(
    progress: MoveProgress, rescalings: Sequence[RescalingInformation], *, now_ns: int
) -> MoveFigures:
    return progress.observe(
        planned_counts={each.job_id: each.planned_count for each in rescalings},
        left_counts={each.job_id: each.left_count for each in rescalings},
        fetched_sizes=_fetched_sizes(rescalings),
        seconds_left=_seconds_left(rescalings),
        now_ns=now_ns,
    )


def _is_idle(rescaling: RescalingInformation, away_ids: Collection[str]) -> bool:
    """
    Return whether nothing goes on in a job, nor will before a node comes.

    Copies that wait for their turn wait for others that are being made; copies that
    wait for a node that is away are not begun, or no node is there that they are made
    from.  Copies that are only to be given up go as soon as their nodes report.
    """
    if not rescaling.left_count:
        return rescaling.is_done
    return not any(
        moves.copying_count and not set(moves.source_ids) <= set(away_ids)
        for moves in rescaling.moves
    )


def _wanted(rescaling: RescalingInformation) -> str:
    """Return what a job is to have, as a part of a sentence."""
    nodes, replicas = rescaling.node_count, rescaling.replica_count
    return (
        f"{nodes} {'node' if nodes == 1 else 'nodes'} and {replicas} "
        f"{'copy' if replicas == 1 else 'copies'} of each key group"
    )


def _seconds_left(rescalings: Iterable[RescalingInformation]) -> float | None:
    """Return the longest of what jobs may take yet, or None if one is not known."""
    longest = 0.0
    for each in rescalings:
        if each.seconds_left is None:
            return None
        longest = max(longest, each.seconds_left)
    return longest


def _fetched_sizes(
    rescalings: Sequence[RescalingInformation],
) -> dict[tuple[str, str], int]:
    return {
        (each.job_id, moves.node_id): moves.size_bytes
        for each in rescalings
        for moves in each.moves
    }
