"""From what a server refuses, or leaves unanswered, to the errors that callers see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leaderserver.client.core.exchanges import Purpose
from leaderserver.messages import FailedReply, Failure, RefusedHello, RegisterRequest
from leaderserver.operator_messages import ExpireRequest, TransferRequest
from leaderserver.store_messages import CleanupRequest, CommitRequest
from nameservice.errors import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    EpochAheadError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    RemoteProtocolError,
    StaleEpochError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
    VersionMismatchError,
)


if TYPE_CHECKING:
    from leaderserver.client.core.exchanges import Exchange
    from leaderserver.messages import RequestBody


__all__ = ["error_of_failure", "error_of_refusal", "error_of_silence"]


def error_of_refusal(refused: RefusedHello, target: str) -> NameServiceError:
    """Return what an application hears when *target* gives it no session."""
    match refused.reason:
        case Failure.NOT_ALLOWED:
            return AuthenticationError(target, refused.detail)
        case Failure.LIMIT_REACHED:
            return DidNotHappenError(f"{target}: {refused.detail}")
        case _:
            return RemoteProtocolError(refused.reason, f"{target}: {refused.detail}")


def error_of_failure(
    failed: FailedReply, body: RequestBody, target: str
) -> NameServiceError:
    """Return what an application hears when *target* has refused *body*."""
    component_id = getattr(body, "component_id", "").rpartition("/")[2]
    match failed.reason:
        case Failure.NOT_ALLOWED:
            return AuthenticationError(target, failed.detail)
        case Failure.STALE:
            if isinstance(body, CommitRequest):
                return StaleEpochError(component_id, body.epoch, failed.epoch_max)
            return LeadershipLostError(component_id, None)
        case Failure.EPOCH_AHEAD if isinstance(body, RegisterRequest):
            claimed = 0 if body.claim is None else body.claim.epoch
            epoch = max(body.epoch_ended, claimed)
            return EpochAheadError(component_id, epoch, failed.epoch_max)
        case Failure.VERSION_MISMATCH:
            return VersionMismatchError(
                failed.path or "", failed.version_expected or 0, failed.version
            )
        case Failure.NO_LEADER:
            return NoLeaderError(component_id, 0.0)
        case Failure.UNKNOWN_SESSION if isinstance(body, ExpireRequest):
            return UnknownSessionError(body.session_id)
        case Failure.UNKNOWN_CONTENDER if isinstance(body, TransferRequest):
            return UnknownContenderError(component_id, body.contender_id)
        case Failure.INVALID:
            return ConfigurationError(f"{target}: {failed.detail}")
        case _:
            return DidNotHappenError(f"{target}: {failed.detail} ({failed.reason})")


def error_of_silence(
    exchange: Exchange, *, target: str, waited_ns: int
) -> NameServiceError:
    """Return what an application hears when *target* has not answered in time."""
    waited_seconds = round(waited_ns / 1e9, 3)
    is_write = (
        exchange.key[0] is Purpose.CONFIRM
        or not exchange.is_repeatable
        or isinstance(exchange.body, CleanupRequest)
    )
    if not is_write:
        return UnreachableError(target, waited_seconds)
    if exchange.was_sent:
        message = (
            f"{target} did not answer within {waited_seconds:g} s: "
            "the request may have taken effect"
        )
        return MayHaveHappenedError(message)
    message = f"{target} was out of reach for {waited_seconds:g} s: nothing was sent"
    return DidNotHappenError(message)
