from __future__ import annotations

import pytest

from nameservice import (
    AuthenticationError,
    ConfigurationError,
    LocalProtocolError,
    NoLeaderError,
    RemoteProtocolError,
    UnreachableError,
)
from queryablestate import errors
from queryablestate.errors import (
    AccessDeniedError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
    WrongKeyTypeError,
)
from queryablestate.gateway.problems import (
    PROBLEMS,
    GatewayError,
    Problem,
    problem_of,
    unexpected,
)


pytestmark = pytest.mark.proves("F2")

ERRORS: list[tuple[Exception, str, int]] = [
    (UnknownJobError("j"), "unknown-job", 404),
    (UnknownStateError("j", "s"), "unknown-state", 404),
    (UnknownKeyError("j", "s", "k"), "unknown-key", 404),
    (WrongKeyTypeError("k int", "x", "no number"), "wrong-key", 400),
    (KeyTooLargeError(500, 480), "wrong-key", 400),
    (AccessDeniedError("read j/s"), "not-allowed", 403),
    (AuthenticationError("tcp://127.0.0.1:1", "no token"), "not-authenticated", 401),
    (AuthenticationError("leaderserver://x", "no key"), "unreachable", 503),
    (RateLimitedError(0.2, "caller"), "rate-limited", 429),
    (StateUnavailableError("j", "s", (1, 2), 0.5, "away"), "unavailable", 503),
    (DeadlineExceededError(5.0), "late", 504),
    (TimeoutError(), "late", 504),
    (NoLeaderError("QUERY_PROXY", 5.0), "no-proxy", 503),
    (UnreachableError("leaderserver://x", 5.0, "refused"), "unreachable", 503),
    (LocalProtocolError("a list"), "wrong-question", 400),
    (ConfigurationError("limit"), "bad-request", 400),
    (RemoteProtocolError("malformed", "x"), "not-understood", 502),
    (RemoteProtocolError("no-python-value", "x"), "not-acceptable", 406),
    (GatewayError("busy", "too much"), "busy", 503),
]


@pytest.mark.parametrize(("error", "name", "status"), ERRORS, ids=str)
def test_what_an_error_is(error: Exception, name: str, status: int) -> None:
    """One status and one name for each; whatever a reader can meet has one."""
    found = problem_of(error)
    assert found is not None
    assert (found.name, found.status) == (name, status)
    document = found.document()
    assert document["type"] == f"urn:lodestar:problem:{name}"
    assert document["status"] == status
    assert document["detail"]


def test_every_error_of_a_reader_is_here() -> None:
    """A new one is to be given a status."""
    writers = {
        *("StaleWriterError", "StateOwnedError", "SchemaMismatchError"),
        *("CheckpointRewoundError", "StagedDataMissingError", "StagingQuotaError"),
        *("CommitTimeoutError", "TableTooLargeError", "QueryableStateError"),
    }
    told = {type(error).__name__ for error, _, _ in ERRORS}
    assert set(errors.__all__) - writers <= told


def test_a_mistake_of_ours_tells_nothing() -> None:
    """Neither what it was nor where."""
    assert problem_of(ValueError("secret")) is None
    assert unexpected().status == 500
    assert b"secret" not in unexpected().encoded()


def test_what_programs_need() -> None:
    """Key groups, limits, and when to ask again: in whole seconds for the header."""
    found = problem_of(StateUnavailableError("j", "s", (1, 2), 1.2))
    assert found is not None
    assert found.document()["key_groups"] == [1, 2]
    assert found.document()["retry_after_seconds"] == 1.2
    assert found.all_headers()["retry-after"] == "2"
    found = problem_of(RateLimitedError(0.01, "state"))
    assert found is not None
    assert found.document()["limit"] == "state"
    assert found.all_headers()["retry-after"] == "1"


def test_headers() -> None:
    """No cache keeps a problem; 401 says what is wanted; others are added."""
    headers = Problem(name="late", detail="x", headers={"a": "b"}).all_headers()
    assert headers == {
        "content-type": "application/problem+json",
        "cache-control": "no-store",
        "a": "b",
    }
    assert (
        "www-authenticate" in Problem(name="not-authenticated", detail="").all_headers()
    )


def test_a_long_detail_is_cut() -> None:
    """An answer is not as long as what was asked."""
    text = "x" * 100_000
    assert len(Problem(name="wrong-key", detail=text).encoded()) < 3_000
    # Half of a pair of surrogates is no UTF-8.
    assert b"?" in Problem(name="wrong-key", detail="\ud800").encoded()


def test_names_are_unique_words() -> None:
    """A name is part of a URN; a title is a sentence without its end."""
    for name, (status, title) in PROBLEMS.items():
        assert name.replace("-", "").isalpha()
        assert name.islower()
        assert 400 <= status <= 504
        assert title[0].isupper()
        assert not title.endswith(".")
