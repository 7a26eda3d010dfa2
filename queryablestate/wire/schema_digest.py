"""
A schema that the leader knows already, in 16 bytes; pure.

A writer declares its states with every batch, and their schemas do not change in a run.
So the text travels once, and its digest from then on.  The leader has the text in its
store: the next leader knows it, too.  Where it does not, since the state was dropped or
the store is another one, it says so (`DeclarationWantedError`).  A writer may leave out
columns at the end of what is registered, so the digests of such schemas are known, too.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, TypeAlias, final

from attrs import evolve
from msgspec import Meta

from queryablestate.errors import QueryableStateError
from queryablestate.schema.schema_json import parse_schema, schema_json


__all__ = ["DeclarationWantedError", "SchemaDigest", "is_known_by", "schema_digest"]

_SIZE_BYTES: Final = 16
_LEFT_OUT_COUNT_MAX: Final = 32

SchemaDigest: TypeAlias = Annotated[
    bytes, Meta(min_length=_SIZE_BYTES, max_length=_SIZE_BYTES)
]


def _digest(schema: str) -> bytes:
    return blake2b(schema.encode(), digest_size=_SIZE_BYTES).digest()


@lru_cache(maxsize=1_024)
def schema_digest(schema: str) -> bytes:
    """Return the digest of a schema, given as `schema_json` writes it."""
    return _digest(schema)


@lru_cache(maxsize=1_024)
def is_known_by(digest: bytes, registered: str) -> bool:
    """
    Return whether *digest* is that of a schema which a writer may go on with.

    Args:
        digest: What it shows (`schema_digest`).
        registered: The schema of the state.  It may have more columns at its end.

    Raises:
        RemoteProtocolError: If *registered* is no schema.
    """
    if digest == schema_digest(registered):
        return True
    schema = parse_schema(registered)
    # What was added last is left out first; the text of more travels every time.
    last = len(schema.value) - 1
    return any(
        digest == _digest(schema_json(evolve(schema, value=schema.value[:count])))
        for count in range(last, max(-1, last - _LEFT_OUT_COUNT_MAX), -1)
    )


@final
class DeclarationWantedError(QueryableStateError):
    """
    The leader does not know what a writer takes for known.

    That is a schema by its digest, or an epoch that another store has given out.  The
    writer answers with all that there is to say (`queryablestate.writer`), so no user
    meets it.

    Attributes:
        job_id: The job.
        what: What is not known.
    """

    def __init__(self, job_id: str, what: str) -> None:
        super().__init__(job_id, what)
        self.job_id = job_id
        self.what = what

    def __str__(self) -> str:
        return f"this proxy does not know {self.what} of {self.job_id!r}: declare it"
