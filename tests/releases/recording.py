"""
Messages and records as a release writes them: one a line, and how they are made.

Beside them stand the fields of those whose bytes do not name them all.

``python -m tests.releases.recording 0.1.0`` writes the file of a release.  Do that with
each change of a message until it is released, and never again:
`tests/releases/test_release_before.py` compares what comes after with it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.releases.parties import PARTIES
from tests.releases.samples import field_list, full_name, samples, structs_within


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["recorded", "recorded_fields", "release_before"]

_DIRECTORY: Final = Path(__file__).parent
_FIELDS: Final = "fields"


def release_before() -> Path:
    """Return the file of the newest release that is recorded."""
    releases = {
        tuple(int(number) for number in path.stem.split(".")): path
        for path in _DIRECTORY.glob("*.txt")
    }
    return releases[max(releases)]


def recorded(path: Path) -> list[tuple[str, bytes]]:
    """Return who reads what in the file of a release, in its order."""
    lines = [line.split() for line in path.read_text("ascii").splitlines()]
    return [
        (party, bytes.fromhex(payload))
        for party, _, payload in lines
        if party != _FIELDS
    ]


def recorded_fields(path: Path) -> dict[str, list[str]]:
    """Return the fields of structs in the file of a release, as `field_list`."""
    lines = [line.split() for line in path.read_text("ascii").splitlines()]
    return {
        struct: fields.split(",") for party, struct, fields in lines if party == _FIELDS
    }


def _lines() -> Sequence[str]:
    structs = set().union(*(structs_within(party.kind) for party in PARTIES.values()))
    fields = {full_name(struct): ",".join(field_list(struct)) for struct in structs}
    return [
        *(
            f"{name} {type(sample).__name__} {party.encode(sample).hex()}"
            for name, party in PARTIES.items()
            for sample in samples(party.kind)
        ),
        *(
            f"{_FIELDS} {name} {fields[name]}"
            for name in sorted(fields)
            if fields[name]
        ),
    ]


if __name__ == "__main__":
    (release,) = sys.argv[1:]
    text = "\n".join(_lines()) + "\n"
    (_DIRECTORY / f"{release}.txt").write_text(text, encoding="ascii")
