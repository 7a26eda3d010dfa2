"""
Processes of this version and of the release before understand each other.

Each line of the file of a release is a message, or a record, with every field that it
had.  What this version makes of it is what it would send, or store, for the same: so
the release before can read that, too.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import msgspec
import pytest

from tests.releases.parties import PARTIES
from tests.releases.recording import recorded, recorded_fields, release_before
from tests.releases.samples import field_list, full_name, samples, structs_within


if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


BEFORE = recorded(release_before())
FIELDS_BEFORE = recorded_fields(release_before())
COMPARED = {
    full_name(struct): struct
    for party in PARTIES.values()
    for struct in structs_within(party.kind)
}
# What no other release of ours writes: between a node or a SQL server and its workers,
# between the driver and the executors of one query, and what is in Spark's own files.
OF_ONE_RELEASE = (
    "queryablestate.node.readers.",
    "queryablestate.sql.jobs",
    "queryablestate.writer.batches",
    "sparkpipeline.attach.",
    "sparkpipeline.failures",
)
# Bases, and what is looked at before the message itself.
NO_MESSAGES = {
    "Head",
    "Row",
    "WireStruct",
    "_Format",
    "_HelloEnvelope",
    "_RequestEnvelope",
}


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
    read = party.decode(payload)
    assert read is not None
    if party.is_read_back:
        assert party.encode(read) == payload


@pytest.mark.proves("N3")
@pytest.mark.parametrize("name", FIELDS_BEFORE)
def test_what_bytes_do_not_show_is_as_it_was(name: str) -> None:
    """
    N3: fields have their places, and what is left out means what it meant.

    Samples of one type look alike in each place, and none is without a field.
    """
    before, now = FIELDS_BEFORE[name], field_list(COMPARED[name])
    if COMPARED[name].__struct_config__.array_like:
        assert now[: len(before)] == before
    else:
        assert set(before) <= set(now)


@pytest.mark.proves("N3")
@pytest.mark.parametrize(
    "package", ["leaderserver", "haservices", "queryablestate", "sparkpipeline"]
)
def test_every_message_and_record_is_compared(package: str) -> None:
    """
    N3: also what nodes, snapshots and checkpoints keep, and what readers ask nodes.

    Most of that was compared with nothing: a field that was added to the mark of a
    state would have made the directories of all nodes unreadable, and no test failed.
    """
    for module in pkgutil.walk_packages(
        importlib.import_module(package).__path__, f"{package}."
    ):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    all_structs = {
        full_name(struct)
        for struct in _subclasses(msgspec.Struct)
        if struct.__module__.startswith(f"{package}.")
        and not struct.__module__.startswith(OF_ONE_RELEASE)
        and struct.__name__ not in NO_MESSAGES
    }
    assert all_structs <= COMPARED.keys()


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_no_list_of_fields_is_left_out(name: str) -> None:
    """What is recorded with the next release has them all."""
    assert bool(field_list(COMPARED[name])) == (name in FIELDS_BEFORE)


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


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    each: type[msgspec.Struct]
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _structs(kind: Any) -> list[Any]:
    return list(getattr(kind, "__args__", (kind,)))
