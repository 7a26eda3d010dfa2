"""
Operator state as readers get it: from published rows to items; pure (rule O5).

Parts of a state are in different key groups, and what is read one after the other may
be of two batches.  Each row tells which batch it is of, by the run that wrote it and
the batch id; `OperatorStateRead` begins again until all are of one.  A state that fits
into one part, as most do, is always whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from attrs import frozen

from nameservice import RemoteProtocolError
from nameservice.clock import MS_PER_SECOND
from queryablestate.errors import StateUnavailableError
from queryablestate.schema.operator_states import published_name
from rescaling import OperatorStateError
from rescaling.operator_state import decode_items
from rescaling.redistribution import RedistributionMode


if TYPE_CHECKING:
    from collections.abc import Mapping

    from queryablestate.client.requests import KeysRead


__all__ = [
    "OperatorStateRead",
    "OperatorStateView",
]

PARTS_AT_ONCE_MAX: Final = 8
_RETRY_AFTER_SECONDS: Final = 1.0


@final
@frozen(kw_only=True)
class OperatorStateView:
    """
    One operator state as it was after a batch.

    Attributes:
        job_id: The job.
        name: The state's name within its operator.
        mode: How its items are shared among subtasks.
        subtasks: The items of each subtask, by operator index; of a broadcast state
            pairs of key and value.
        generation: The ownership of the published copy that it was read in.
        batch_id: The batch after which it was like this.
        age_seconds: How long ago that was published.
        cached: Whether the proxy had the answer from before.
    """

    job_id: str
    name: str
    mode: RedistributionMode
    subtasks: tuple[tuple[Any, ...], ...]
    generation: int
    batch_id: int
    age_seconds: float
    cached: bool

    @property
    def parallelism(self) -> int:
        """How many subtasks there were in that batch."""
        return len(self.subtasks)

    @property
    def items(self) -> tuple[tuple[int, Any], ...]:
        """Every item with the index of its subtask, in the order of both."""
        return tuple(
            (index, item) for index, items in enumerate(self.subtasks) for item in items
        )


@final
class OperatorStateRead:
    """
    Reads one operator state, part by part.

    Use: until `view` is there, ask for the keys that are `wanted`, and hand in the
    answered question with `take`.

    Args:
        job_id: The job.
        name: The state's name within its operator.

    Attributes:
        state_name: What the published copy is called.
        view: What was read, as soon as all of it is of one batch.

    Raises:
        ConfigurationError: If no state can have that name.
    """

    def __init__(self, job_id: str, name: str) -> None:
        self.state_name = published_name(name)
        self.view: OperatorStateView | None = None
        self._job_id = job_id
        self._name = name
        self._head: Mapping[str, Any] | None = None
        self._contents: list[bytes] = []
        self._ages_seconds: list[float] = []
        self._is_cached = False

    def wanted(self) -> tuple[int, ...]:
        """Return the parts to ask for now."""
        if self._head is None:
            return (0,)
        first = len(self._contents)
        return tuple(
            range(first, min(self._head["part_count"], first + PARTS_AT_ONCE_MAX))
        )

    def take(self, read: KeysRead) -> None:
        """
        Take the answers for the parts that were `wanted`.

        Raises:
            StateUnavailableError: If no batch has been published yet.
            RemoteProtocolError: If the rows are not those of an operator state.
        """
        rows = read.rows
        reading = read.reading
        assert reading is not None
        if self._head is None:
            (head,) = rows
            if head is None:
                raise StateUnavailableError(
                    self._job_id,
                    self.state_name,
                    (),
                    _RETRY_AFTER_SECONDS,
                    "no batch of it is published yet",
                )
            self._head = head
        # A part may be older than part 0 where an answer came from a cache, and newer
        # where a batch was applied in between; or be gone.
        if any(row is None or _batch(row) != _batch(self._head) for row in rows):
            self._begin_again()
            return
        self._contents += [row["content"] for row in rows]
        self._ages_seconds.append(reading.age_ms / MS_PER_SECOND)
        self._is_cached |= reading.is_cached
        if len(self._contents) >= self._head["part_count"]:
            self.view = OperatorStateView(
                job_id=self._job_id,
                name=self._name,
                mode=_mode(self._head),
                subtasks=_subtasks(self._head, b"".join(self._contents)),
                generation=reading.generation,
                batch_id=self._head["batch_id"],
                age_seconds=max(self._ages_seconds),
                cached=self._is_cached,
            )

    def _begin_again(self) -> None:
        """
        Forget what was read.

        What was seen is nothing to wait for: a new query may have begun, whose batch
        ids are lower.
        """
        self._head = None
        self._contents.clear()
        self._ages_seconds.clear()
        self._is_cached = False


def _batch(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return which batch *row* is of, among all batches of all runs."""
    return row["writer_epoch"], row["batch_id"]


def _mode(row: Mapping[str, Any]) -> RedistributionMode:
    try:
        return RedistributionMode(row["mode"])
    except ValueError as error:
        raise RemoteProtocolError("malformed", str(error)) from error


def _subtasks(row: Mapping[str, Any], content: bytes) -> tuple[tuple[Any, ...], ...]:
    try:
        encoded = _content_decoder.decode(content)
        subtasks = tuple(
            () if items is None else tuple(decode_items(items)) for items in encoded
        )
    except (msgspec.MsgspecError, OperatorStateError) as error:
        raise RemoteProtocolError("malformed", f"no operator state: {error}") from error
    if len(subtasks) != row["parallelism"]:
        raise RemoteProtocolError(
            "malformed",
            f"{len(subtasks)} subtasks of an operator that has {row['parallelism']}",
        )
    return subtasks


_content_decoder: Final = msgspec.msgpack.Decoder(list[bytes | None])
