from __future__ import annotations

import pickle

import pytest

from nameservice import NameServiceError
from rescaling import (
    LogPartitionError,
    LogRecordError,
    OperatorCheckpointError,
    OperatorOutputError,
    OperatorStateError,
    SnapshotTooLargeError,
    UnsupportedItemError,
)
from rescaling import errors as operator_errors


EXAMPLES = [
    (
        UnsupportedItemError("offsets", "a value of the type set"),
        (
            "an item of the state 'offsets' cannot be kept: a value of the type set. "
            "Items are None, bool, int, float, str, bytes, and lists, tuples and "
            "dicts of them"
        ),
    ),
    (
        SnapshotTooLargeError("rules", 1_500, 2_000, 1_024),
        (
            "the snapshot of this subtask is 2,000 bytes, above its limit of 1,024; "
            "the largest state, 'rules', is 1,500. Keep less in it, use more "
            "subtasks, or raise the limit"
        ),
    ),
    (
        SnapshotTooLargeError("rules", 1_500, 2_000, 1_024, is_union=True),
        (
            "the union states of all subtasks, and the broadcast states, are 2,000 "
            "bytes: each would have to take over all of it when their number changes, "
            "above the limit of 1,024; the largest, 'rules', is 1,500. Keep less in "
            "it, use list_state, or raise the limit"
        ),
    ),
    (OperatorCheckpointError("a/b", "it is gone"), "a/b: it is gone"),
    (OperatorOutputError(3, "there is no column n"), "subtask 3: there is no column n"),
    (
        LogPartitionError("a.jsonl", 7, "it is gone"),
        (
            "a.jsonl was read up to byte 7, and now it is gone: records may be lost. "
            "Partitions of a log only grow"
        ),
    ),
    (
        LogRecordError("a.jsonl", 7, "no JSON"),
        (
            "a.jsonl: the line at byte 7 is no record: no JSON. Read on with "
            '.option("bad_records", "skip")'
        ),
    ),
    (
        LogRecordError("a.jsonl", 7, "it is longer than 9 bytes", is_unended=True),
        (
            "a.jsonl: the line at byte 7 is no record: it is longer than 9 bytes. Read "
            'on with .option("bytes_per_partition_max", ...), above its length'
        ),
    ),
]


class TestBranch:
    def test_every_error_is_of_the_branch(self) -> None:
        """L4: catching OperatorStateError misses none; there is one of each."""
        names = set(operator_errors.__all__)
        assert {type(error).__name__ for error, _ in EXAMPLES} == (
            names - {"OperatorStateError"}
        )
        assert all(isinstance(error, OperatorStateError) for error, _ in EXAMPLES)
        assert issubclass(OperatorStateError, NameServiceError)

    def test_the_drawing_names_them_all(self) -> None:
        """L4: the branch is drawn where it is defined."""
        assert operator_errors.__doc__ is not None
        for name in operator_errors.__all__:
            assert f"─ {name}" in operator_errors.__doc__

    @pytest.mark.parametrize(("error", "sentence"), EXAMPLES)
    def test_data_and_sentence_survive_pickling(
        self, error: OperatorStateError, sentence: str
    ) -> None:
        """L4: an error of a Spark task comes back with what it carries."""
        copy = pickle.loads(pickle.dumps(error))
        assert str(error) == str(copy) == sentence
        assert type(copy) is type(error)
        assert vars(copy) == vars(error)
