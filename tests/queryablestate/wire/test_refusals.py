"""Errors on the wire and back."""

from __future__ import annotations

import pytest

from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    RemoteProtocolError,
    SessionExpiredError,
    StorageError,
)
from queryablestate import (
    AccessDeniedError,
    CheckpointRewoundError,
    CommitTimeoutError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    SchemaMismatchError,
    StagedDataMissingError,
    StagingQuotaError,
    StaleWriterError,
    StateOwnedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownStateError,
)
from queryablestate.wire import codec
from queryablestate.wire.questions import Refusal
from queryablestate.wire.refusals import error_label, error_of, refusal_of
from queryablestate.wire.schema_digest import DeclarationWantedError


def one_of_each() -> list[NameServiceError]:
    """Return errors of every type that travels, new ones: to raise one alters it."""
    return [
        AccessDeniedError("read flights/aircraft"),
        AuthenticationError("tcp://host:1", "no such key"),
        CheckpointRewoundError("query", 4, 7),
        CommitTimeoutError(4, 1.5, ["a", "b"], is_decided=True),
        CommitTimeoutError(4, 1.5, [], is_decided=False),
        CommitTimeoutError(4, 1.5, ["a"], is_decided=True, failures={"a": "full"}),
        ConfigurationError("no"),
        DeadlineExceededError(1.5, "batch 4"),
        DeclarationWantedError("flights", "the epoch 4"),
        DidNotHappenError("no"),
        KeyTooLargeError(500, 480),
        LocalProtocolError("no"),
        MayHaveHappenedError("who knows"),
        RateLimitedError(0.5, "caller"),
        RemoteProtocolError("malformed", "a byte"),
        SchemaMismatchError("flights", "aircraft", "kind"),
        StagedDataMissingError(4, ["a"]),
        StagingQuotaError("n", "flights", 101, 100),
        StaleWriterError("query", 4, 7),
        StateOwnedError("flights", "aircraft", "owner", "query"),
        StateUnavailableError("flights", "aircraft", (1, 2), 0.5, "away"),
        StorageError("full"),
        UnknownJobError("flights"),
        UnknownStateError("flights", "aircraft"),
    ]


@pytest.mark.parametrize("error", one_of_each(), ids=lambda e: type(e).__name__)
def test_an_error_comes_over_the_wire(error: NameServiceError) -> None:
    """L4: the same type, the same data, the same sentence on the other side."""
    frame = codec.encode(refusal_of(error, 5))
    refusal = codec.decode_to_client(frame)
    assert isinstance(refusal, Refusal)
    assert refusal.request_id == 5
    again = error_of(refusal)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_an_error_without_a_code_keeps_its_sentence() -> None:
    """What a peer cannot act on, a person can read."""
    refusal = refusal_of(SessionExpiredError("over"), 5)
    assert refusal == Refusal(request_id=5, code="failed", data=("over",))
    assert type(error_of(refusal)) is NameServiceError


def test_an_unknown_code_is_an_error_all_the_same() -> None:
    """A peer of a newer version may refuse for reasons that we do not know."""
    error = error_of(Refusal(request_id=5, code="too-new", data=("because",)))
    assert type(error) is NameServiceError
    assert str(error) == "because"


@pytest.mark.proves("F1")
def test_refusals_are_counted_under_words_of_ours() -> None:
    """F1: labels are bounded, whatever a peer calls a refusal."""
    assert error_label("access-denied") == "access_denied"
    assert error_label("ask-proxy") == "ask_proxy"
    assert {error_label(f"code-{n}") for n in range(1_000)} == {"other"}


@pytest.mark.parametrize("code", ["stale-writer", "commit-timeout", "malformed"])
def test_data_that_does_not_fit_is_malformed(code: str) -> None:
    """A peer that lies does not make us fail in another way."""
    error = error_of(Refusal(request_id=5, code=code, data=(1,)))
    assert isinstance(error, RemoteProtocolError)
    assert "malformed" in str(error)
