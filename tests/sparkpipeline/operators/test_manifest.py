"""Which files of a batch count (O3)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rescaling import OperatorCheckpointError
from sparkpipeline.operators.manifest import (
    FORMAT_VERSION,
    OperatorManifest,
    SubtaskFile,
    SubtaskReport,
    choose_attempts,
    decode_manifest,
    encode_manifest,
)


MANIFEST = OperatorManifest(
    format_version=FORMAT_VERSION,
    query_id="q",
    run_id="r",
    batch_id=7,
    directory="batches/7/abc",
    offsets_digest=None,
    output_schema="{}",
    subtasks=(
        SubtaskFile(
            file="part-0.parquet", attempt_id="a0", row_count=3, snapshot_size_bytes=9
        ),
        SubtaskFile(
            file="part-1.parquet", attempt_id="a1", row_count=0, snapshot_size_bytes=1
        ),
    ),
)


def report(operator_index: int, file: str) -> SubtaskReport:
    """Return what an attempt says of itself."""
    return SubtaskReport(
        operator_index=operator_index,
        attempt_id=f"attempt of {file}",
        row_count=0,
        file=file,
        snapshot=b"",
    )


class TestManifests:
    @pytest.mark.proves("O3")
    def test_a_manifest_comes_back(self) -> None:
        """O3: it pins the files and the parallelism."""
        data = encode_manifest(MANIFEST)
        assert decode_manifest(data, batch_id=7, path="p") == MANIFEST
        assert MANIFEST.parallelism == 2
        assert json.loads(data)["subtasks"][0]["attempt_id"] == "a0"

    @pytest.mark.proves("O3")
    @pytest.mark.parametrize(
        ("change", "detail"),
        [
            ({"format_version": 2}, "format version 2 is not known here"),
            ({"batch_id": 8}, "the manifest of batch 8, not 7"),
            ({"subtasks": []}, "names no files"),
            ({"more": 1}, "this is no manifest"),
            ({"directory": None}, "this is no manifest"),
        ],
    )
    def test_another_manifest_is_refused(
        self, change: dict[str, Any], detail: str
    ) -> None:
        """O3: nothing is guessed; the error says where, and what to do."""
        content = json.loads(encode_manifest(MANIFEST)) | change
        with pytest.raises(OperatorCheckpointError, match=detail) as raised:
            decode_manifest(json.dumps(content).encode(), batch_id=7, path="p")
        assert raised.value.path == "p"
        assert "Restore it" in str(raised.value)

    @pytest.mark.parametrize(
        "data", [b"", b"{", b"\xff\xfe", b"[]", b'{"query_id": "\xff"}']
    )
    def test_a_damaged_manifest_is_refused(self, data: bytes) -> None:
        """Nothing of msgspec's escapes."""
        with pytest.raises(OperatorCheckpointError, match="this is no manifest"):
            decode_manifest(data, batch_id=7, path="p")


@pytest.mark.proves("O3")
class TestAttempts:
    def test_one_attempt_of_each_subtask_counts(self) -> None:
        """O3: the first by name, in whatever order they were found."""
        reports = [report(1, "c"), report(0, "d"), report(1, "b"), report(0, "a")]
        for order in (reports, reports[::-1]):
            chosen = choose_attempts(order, 2, path="p")
            assert [one.file for one in chosen] == ["a", "b"]

    @pytest.mark.parametrize("indices", [[], [0, 1], [0, 2], [0, 1, 2, 3]])
    def test_a_subtask_that_left_nothing_is_an_error(self, indices: list[int]) -> None:
        """O3: as is one too many; rows could be missing."""
        reports = [report(index, str(index)) for index in indices]
        with pytest.raises(OperatorCheckpointError, match="another number of tasks"):
            choose_attempts(reports, 3, path="p")
