"""Rows as they are staged and stored: what is legal, who wins, what has expired."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from queryablestate.node_messages import StagedRows


__all__ = ["check_staged_rows"]


def check_staged_rows(rows: StagedRows) -> None:
    """
    Raise unless a chunk can be applied: otherwise it would stop the chain of its job.

    Raises:
        KeyTooLargeError: If a key does not fit.
        RemoteProtocolError: If lists are not of one length, or keys are not sorted.
    """
    raise NotImplementedError
