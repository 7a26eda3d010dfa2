"""Files of whole lines, and what they must not do (O4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nameservice import StorageError
from rescaling import LogPartitionError, LogRecordError
from sparkpipeline.log import files as log_files
from sparkpipeline.log.files import find_end, is_gone, list_partitions, read_lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the test's partition is."""
    return tmp_path / "a.jsonl"


@pytest.fixture(params=[1, 3, 256 * 1024])
def chunk_size_bytes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Have files read in chunks of that many bytes: lines end anywhere in them."""
    monkeypatch.setattr(log_files, "_CHUNK_SIZE_BYTES", request.param)
    size_bytes: int = request.param
    return size_bytes


class TestDirectory:
    def test_partitions_are_files_of_such_names(self, tmp_path: Path) -> None:
        """Hidden ones, other names and directories are not; the order is theirs."""
        for name in ("b.jsonl", "a.jsonl", ".c.jsonl", "_d.jsonl", "e.json", "F.JSONL"):
            (tmp_path / name).touch()
        (tmp_path / "g.jsonl").mkdir()
        assert list_partitions(tmp_path, "*.jsonl") == ["a.jsonl", "b.jsonl"]
        assert list_partitions(tmp_path, "[ae].*") == ["a.jsonl", "e.json"]

    def test_a_directory_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        """Nothing of the operating system's escapes."""
        with pytest.raises(StorageError, match="cannot be read"):
            list_partitions(tmp_path / "none", "*")

    def test_a_name_that_is_no_text_is_told(self, tmp_path: Path) -> None:
        """Spark's offset log cannot hold it; it is named so that it can be found."""
        (tmp_path / "\u00e9.jsonl").touch()
        (tmp_path / os.fsdecode(b"\xff'.jsonl")).touch()
        (tmp_path / os.fsdecode(b"\xff.txt")).touch()
        with pytest.raises(StorageError, match="not UTF-8") as raised:
            list_partitions(tmp_path, "*.jsonl")
        assert repr(b"\xff'.jsonl") in str(raised.value)
        assert "rename it" in str(raised.value)
        assert list_partitions(tmp_path, "\u00e9*") == ["\u00e9.jsonl"]


@pytest.mark.usefixtures("chunk_size_bytes")
class TestEnds:
    @pytest.mark.proves("O4")
    def test_a_line_that_is_being_written_is_waited_for(self, path: Path) -> None:
        """O4: it is there once its line end is."""
        path.write_bytes(b"12\n45\n78")
        assert find_end(path, 0) == 6
        assert find_end(path, 3) == 6
        assert find_end(path, 6) == 6
        with path.open("ab") as file:
            file.write(b"9\n\n")
        assert find_end(path, 6) == 11

    def test_nothing_is_nothing(self, path: Path) -> None:
        """An empty file, and one without a line end."""
        path.touch()
        assert find_end(path, 0) == 0
        path.write_bytes(b"12")
        assert find_end(path, 0) == find_end(path, 0, size_bytes_max=1) == 0

    @pytest.mark.proves("O4")
    @pytest.mark.parametrize(
        ("begin", "size_bytes_max", "end"),
        [
            (0, 3, 3),  # the very line
            (0, 5, 3),  # one byte less than the second
            (0, 6, 6),
            (0, 1, 3),  # a line that is longer is read all the same
            (3, 1, 6),
            (6, 100, 12),
            (12, 5, 12),
        ],
    )
    def test_a_batch_is_bounded(
        self, path: Path, begin: int, size_bytes_max: int, end: int
    ) -> None:
        """O4: it reads whole lines, one at least."""
        path.write_bytes(b"12\n45\n78901\n34")
        assert find_end(path, begin, size_bytes_max=size_bytes_max) == end

    @pytest.mark.parametrize("limit", [1, 4, None])
    def test_a_line_that_does_not_end_is_an_error(
        self, path: Path, limit: int | None
    ) -> None:
        """It says where it begins; one that is just short enough is waited for."""
        path.write_bytes(b"12\n" + b"x" * 600_000)
        kept = find_end(path, 0, size_bytes_max=3, line_size_bytes_max=10)
        assert kept == 3
        with pytest.raises(LogRecordError, match="longer than 10 bytes") as raised:
            find_end(path, 3, size_bytes_max=limit, line_size_bytes_max=10)
        assert raised.value.offset == 3
        # To leave out bad records does not help: it is not known where this one ends.
        assert "bad_records" not in str(raised.value)
        path.write_bytes(b"12\n" + b"x" * 600_000 + b"\n")
        end = find_end(path, 3, size_bytes_max=600_001, line_size_bytes_max=10)
        assert end == path.stat().st_size
        path.write_bytes(b"12\n" + b"x" * 10)
        assert find_end(path, 3, size_bytes_max=limit, line_size_bytes_max=10) == 3

    @pytest.mark.proves("O4")
    def test_a_line_that_one_batch_could_read_is_waited_for(self, path: Path) -> None:
        """O4: half of it stops no query that would read it whole."""
        limits = {"size_bytes_max": 20, "line_size_bytes_max": 10}
        path.write_bytes(b"12\n" + b"x" * 19)
        assert find_end(path, 3, **limits) == 3
        path.write_bytes(b"12\n" + b"x" * 20)
        assert find_end(path, 3, **limits) == 3
        path.write_bytes(b"12\n" + b"x" * 20 + b"\n")
        assert find_end(path, 3, **limits) == 24
        path.write_bytes(b"12\n" + b"x" * 600_000)
        with pytest.raises(LogRecordError, match="longer than 20 bytes"):
            find_end(path, 3, **limits)


@pytest.mark.usefixtures("chunk_size_bytes")
class TestLines:
    def test_lines_come_with_their_offsets(self, path: Path) -> None:
        """Empty ones, too; and nothing before *begin* or behind *end*."""
        path.write_bytes(b"12\n\n56\xff\n9\n")
        assert list(read_lines(path, 0, 10)) == [
            (0, b"12"),
            (3, b""),
            (4, b"56\xff"),
            (8, b"9"),
        ]
        assert list(read_lines(path, 3, 8)) == [(3, b""), (4, b"56\xff")]
        assert list(read_lines(path, 4, 4)) == []

    @pytest.mark.proves("O4")
    @pytest.mark.parametrize(
        ("content", "detail"),
        [
            (None, "is gone"),
            (b"", "has 0 bytes"),
            (b"1\n", "has 2 bytes"),
            (b"123456\n", "has no line end there"),
        ],
    )
    def test_another_file_is_an_error(
        self, path: Path, content: bytes | None, detail: str
    ) -> None:
        """O4: gone, shorter, or written anew: what was in it is not known."""
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(LogPartitionError, match=detail) as raised:
            find_end(path, 3)
        assert (raised.value.path, raised.value.offset) == (str(path), 3)
        with pytest.raises(LogPartitionError, match=detail):
            list(read_lines(path, 3, 6))

    @pytest.mark.proves("O4")
    @pytest.mark.parametrize("end", [5, 7])
    def test_lines_that_were_there_are_missed(self, path: Path, end: int) -> None:
        """O4: a batch that is run again wants the very lines that it had."""
        path.write_bytes(b"12\n45\n")
        with pytest.raises(LogPartitionError):
            list(read_lines(path, 3, end))

    def test_what_cannot_be_read_is_an_error(self, path: Path) -> None:
        """Nothing of the operating system's escapes."""
        path.mkdir()
        with pytest.raises(StorageError, match="cannot be read"):
            find_end(path, 0)

    def test_a_file_is_gone_only_if_the_system_says_so(self, path: Path) -> None:
        """What cannot be looked at may hold records still."""
        assert is_gone(path)
        path.touch()
        assert not is_gone(path)
        with pytest.raises(StorageError, match="cannot be read"):
            is_gone(path / "below a file")
