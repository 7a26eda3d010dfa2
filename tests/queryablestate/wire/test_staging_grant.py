"""C1: with a grant one run may stage, and none is made without the secret."""

from __future__ import annotations

import pytest

from queryablestate.wire.staging_grant import is_granted, staging_grant


SECRET = b"only nodes know it"


@pytest.mark.proves("C1")
@pytest.mark.parametrize(
    ("grant", "is_taken"),
    [
        (staging_grant(SECRET, "job", "query", 7), True),
        (staging_grant(b"of the leader before", "job", "query", 7), True),
        (staging_grant(b"of another one", "job", "query", 7), False),
        (staging_grant(SECRET, "jobq", "uery", 7), False),
        (staging_grant(SECRET, "other", "query", 7), False),
        (staging_grant(SECRET, "job", "other", 7), False),
        (staging_grant(SECRET, "job", "query", 8), False),
        (b"", False),
        (SECRET, False),
    ],
)
def test_it_is_for_one_run(grant: bytes, is_taken: bool) -> None:
    """C1: another job, query, epoch or secret makes another grant."""
    secrets = (SECRET, b"of the leader before")
    told = is_granted(grant, secrets, job_id="job", query_id="query", writer_epoch=7)
    assert told is is_taken


@pytest.mark.proves("C1")
def test_without_a_secret_nobody_has_one() -> None:
    """C1: nothing is not the digest of nothing."""
    assert staging_grant(b"", "job", "query", 7) == b""
    assert not is_granted(b"", (b"",), job_id="job", query_id="query", writer_epoch=7)
