"""Delivering a summary to the leader, until it is acknowledged."""

from __future__ import annotations

import http.client
import os
import time
from typing import Final
from urllib.parse import urlsplit

import msgspec

from examples.flights.endpoint import DELIVERY_PATH
from examples.flights.messages import (
    Accepted,
    Answer,
    PartitionSummary,
    Receipt,
    Refused,
    Retry,
)
from examples.flights.totals import flight_count
from nameservice import NoLeaderError, SystemClock
from retrieval import LeaderInformation, LeaderRetriever


__all__ = ["DeliveryError", "deliver"]

_ANSWER_TIMEOUT_SECONDS: Final = 5.0
_PAUSE_SECONDS_MIN: Final = 0.05
_PAUSE_SECONDS_MAX: Final = 0.5
_FINAL_REASONS: Final = frozenset({"other-stream", "malformed"})


class DeliveryError(Exception):
    """
    A summary was not acknowledged, and will not be.

    Attributes:
        summary: What was to be delivered.
        retries: What was tried, in order.
    """

    def __init__(self, summary: PartitionSummary, retries: tuple[Retry, ...]) -> None:
        super().__init__(summary, retries)
        self.summary = summary
        self.retries = retries

    def __str__(self) -> str:
        last = self.retries[-1].reason if self.retries else "not tried"
        return (
            f"batch {self.summary.batch_id} partition {self.summary.partition_id} was "
            f"not acknowledged in {len(self.retries)} attempts; the last: {last}"
        )


def deliver(
    summary: PartitionSummary, retriever: LeaderRetriever, *, timeout_seconds: float
) -> Receipt:
    """
    Return once the leader has *summary* in the store.

    An attempt that fails is repeated, with the leader of that time.  That is safe
    however it failed: what is counted already is not counted again.

    Raises:
        DeliveryError: If it was not acknowledged within *timeout_seconds*, or refused
            for good.
    """
    deadline = time.monotonic() + timeout_seconds
    pause_seconds = _PAUSE_SECONDS_MIN
    retries: list[Retry] = []
    while (remaining_seconds := deadline - time.monotonic()) > 0:
        if retriever.leader is None:
            retries.append(Retry(address="", epoch=0, reason="no leader"))
        try:
            leader = retriever.wait_for_leader(remaining_seconds)
        except NoLeaderError as error:
            retries.append(Retry(address="", epoch=0, reason=str(error)))
            break
        answer = _attempt(summary, leader)
        if isinstance(answer, Accepted):
            return Receipt(
                partition_id=summary.partition_id,
                flight_count=flight_count(summary.carriers),
                process_id=os.getpid(),
                epoch=answer.epoch,
                is_repeated=answer.is_repeated,
                retries=tuple(retries),
                acknowledged_at_ns=SystemClock().now_ns(),
            )
        reason = answer.reason if isinstance(answer, Refused) else answer
        retries.append(Retry(address=leader.address, epoch=leader.epoch, reason=reason))
        if reason in _FINAL_REASONS:
            break
        # The same leader may answer in a moment, or another be found: no event tells
        # which, so ask again, less often the longer it takes.
        time.sleep(pause_seconds)  # noqa: TID251 - paces repetitions
        pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
    raise DeliveryError(summary, tuple(retries))


def _attempt(summary: PartitionSummary, leader: LeaderInformation) -> Answer | str:
    """Return the answer of *leader*, or why there is none."""
    parts = urlsplit(leader.address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(
        parts.hostname, parts.port, timeout=_ANSWER_TIMEOUT_SECONDS
    )
    try:
        connection.request("POST", DELIVERY_PATH, body=msgspec.json.encode(summary))
        response = connection.getresponse()
        return msgspec.json.decode(response.read(), type=Accepted | Refused)
    except ConnectionRefusedError:
        return "connection refused"
    except TimeoutError:
        return f"no answer within {_ANSWER_TIMEOUT_SECONDS:g} s"
    except (OSError, http.client.HTTPException):
        return "connection closed before an answer"
    except msgspec.DecodeError as error:
        return f"not an answer: {error}"
    finally:
        connection.close()
