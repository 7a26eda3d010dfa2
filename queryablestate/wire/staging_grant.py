"""
What a run shows a node to stage rows; pure (rule C1).

Theory of operation.  A node's port is open to all who write and to all other nodes, and
nothing that they say there tells what they may write.  The proxy leader knows: it draws
a ticket, and binds a run, only for who may write all states of the query.  With that it
gives a *grant* for one query, in one job, under one writer epoch: a keyed digest of
these (BLAKE2b).  The key is the secret that it gives to nodes when it takes them in
(`NodeRegistered.copy_secret`), so that they can tell whether it is one, and a writer
that has one grant can make no other.

The secret is another one with each leader.  A node goes by the present one and the one
before; who is refused all the same, and has a right, binds again.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta


if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = ["StagingGrant", "is_granted", "staging_grant"]

_SIZE_BYTES: Final = 16
_PURPOSE: Final = b"lodestar-staging"
"""16 bytes at most: the secret is shown to other nodes, too, and means this here."""

StagingGrant: TypeAlias = Annotated[bytes, Meta(max_length=_SIZE_BYTES)]


def staging_grant(
    secret: bytes, job_id: str, query_id: str, writer_epoch: int
) -> bytes:
    """Return what a run shows to stage; nothing if there is no secret."""
    if not secret:
        return b""
    digest = blake2b(key=secret, digest_size=_SIZE_BYTES, person=_PURPOSE)
    for part in (job_id.encode(), query_id.encode(), str(writer_epoch).encode()):
        digest.update(len(part).to_bytes(4, "big"))
        digest.update(part)
    return digest.digest()


def is_granted(
    grant: bytes,
    secrets: Iterable[bytes],
    *,
    job_id: str,
    query_id: str,
    writer_epoch: int,
) -> bool:
    """Return whether *grant* was made with one of *secrets*, for that run."""
    return any(
        bool(secret)
        and compare_digest(grant, staging_grant(secret, job_id, query_id, writer_epoch))
        for secret in secrets
    )
