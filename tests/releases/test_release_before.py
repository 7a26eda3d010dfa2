"""
Processes of this version and of the release before understand each other.

Each line of the file of a release is a message, or a record, with every field that it
had.  What this version makes of it is what it would send, or store, for the same: so
the release before can read that, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.releases.parties import PARTIES
from tests.releases.recording import recorded, release_before
from tests.releases.samples import samples


if TYPE_CHECKING:
    from typing import Any


BEFORE = recorded(release_before())


@pytest.mark.proves("N3")
@pytest.mark.parametrize(
    ("name", "payload"),
    [
        pytest.param(name, payload, id=f"{number}-{name}")
        for number, (name, payload) in enumerate(BEFORE)
    ],
)
def test_what_the_release_before_wrote_is_read(name: str, payload: bytes) -> None:
    """It is read, and what says the same now is the same to the byte (N3)."""
    party = PARTIES[name]
    assert party.encode(party.decode(payload)) == payload


@pytest.mark.parametrize("name", PARTIES)
def test_every_kind_has_a_sample(name: str) -> None:
    """What is recorded with the next release is all that there is."""
    party = PARTIES[name]
    made = samples(party.kind)
    kinds = {type(sample) for sample in made}
    assert kinds == set(_structs(party.kind))
    for sample in made:
        payload = party.encode(sample)
        assert party.encode(party.decode(payload)) == payload


@pytest.mark.parametrize("name", PARTIES)
def test_no_party_is_left_out(name: str) -> None:
    """A party without a line would be compared with nothing."""
    assert name in {party for party, _ in BEFORE}


def _structs(kind: Any) -> list[Any]:
    return list(getattr(kind, "__args__", (kind,)))
