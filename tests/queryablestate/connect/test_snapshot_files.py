"""Tests for snapshot files and the manifest of a snapshot."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from nameservice import ConfigurationError, StorageError
from queryablestate.connect.snapshot_claims import claimed
from queryablestate.connect.snapshot_files import SnapshotDirectory
from queryablestate.schema.schema import Field, StateKind, StateSchema
from queryablestate.schema.schema_json import parse_fields, schema_json
from queryablestate.wire.copy_messages import CopiedRows
from queryablestate.wire.records import QueryProgress, StateProgress, StateRecord
from queryablestate.wire.snapshot_manifest import (
    MANIFEST_FORMAT,
    SnapshotFile,
    SnapshotManifest,
    SnapshotState,
    checksum_of,
    decode_manifest,
    encode_manifest,
    files_with,
)
from tests.faults.disk import FaultyDisk
from tests.tiers import nightly_after


SNAPSHOT_ID = "0123456789abcdef" * 2
DATA = f"data-{SNAPSHOT_ID}/at-7/node-0"


def row_key(key_group: int, number: int) -> bytes:
    """Return a row key of *key_group*."""
    return key_group.to_bytes(2, "big") + number.to_bytes(4, "big")


def rows_of(state_number: int, key_groups: range, row_count: int) -> CopiedRows:
    """Return *row_count* rows in each of these key groups."""
    keys = [row_key(group, n) for group in key_groups for n in range(row_count)]
    return CopiedRows(
        state_number=state_number, keys=keys, values=[b"v" + key for key in keys]
    )


def state_of(number: int, *queries: QueryProgress) -> SnapshotState:
    """Return a state that these queries have written."""
    schema = StateSchema(
        kind=StateKind.VALUE,
        key=columns("k"),
        value=columns("v"),
    )
    return SnapshotState(
        state=StateRecord(
            state_name=f"state-{number}",
            state_number=number,
            schema=schema_json(schema),
        ),
        progress=StateProgress(
            state_number=number,
            query_id="q",
            owner_epoch=1,
            generation=1,
            batch_id=3,
            decided_at_us=5,
            queries=queries,
        ),
    )


def columns(name: str) -> tuple[Field, ...]:
    """Return one column of integers."""
    field = {"name": name, "type": "integer", "nullable": True, "metadata": {}}
    return parse_fields(json.dumps({"type": "struct", "fields": [field]}))


def manifest_of(*files: SnapshotFile) -> SnapshotManifest:
    """Return a manifest of two states with these files."""
    return SnapshotManifest(
        format=MANIFEST_FORMAT,
        snapshot_id=SNAPSHOT_ID,
        job_id="flights",
        max_parallelism=16,
        sequence=7,
        taken_at_us=1_000,
        states=(state_of(1), state_of(2)),
        files=files,
    )


FILE = SnapshotFile(
    name=f"{DATA}/0.arrow",
    state_number=1,
    key_group_first=0,
    key_group_last=3,
    row_count=4,
    size_bytes=100,
    checksum="ab" * 32,
)


@pytest.fixture
def directory(tmp_path: Path) -> SnapshotDirectory:
    """Return an empty directory for a snapshot."""
    return SnapshotDirectory(str(tmp_path))


class TestRows:
    """What a node writes, a node reads."""

    def test_rows_come_back_as_they_were(self, directory: SnapshotDirectory) -> None:
        """Each row of each state, in order, and nothing else (W4)."""
        pages = [rows_of(1, range(2), 30), rows_of(1, range(2, 4), 30)]
        pages += [rows_of(2, range(4), 5)]
        files = directory.write_rows(DATA, iter(pages))
        assert [file.state_number for file in files] == [1, 2]
        first, second = files
        assert (first.key_group_first, first.key_group_last) == (0, 3)
        assert (first.row_count, second.row_count) == (120, 20)
        found = list(directory.read_rows(first, tuple(range(16))))
        assert [k for keys, _ in found for k in keys] == pages[0].keys + pages[1].keys
        assert [v for _, values in found for v in values] == (
            pages[0].values + pages[1].values
        )

    def test_only_the_key_groups_that_are_asked_for_are_read(
        self, directory: SnapshotDirectory
    ) -> None:
        """A node that gets some of the key groups of a file gets their rows alone."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(8), 3)])
        found = list(directory.read_rows(file, (1, 2, 6, 9)))
        keys = [key for page, _ in found for key in page]
        assert keys == [row_key(g, n) for g in (1, 2, 6) for n in range(3)]

    def test_the_last_key_group_there_can_be_is_read(
        self, directory: SnapshotDirectory
    ) -> None:
        """32,767 has no successor that two bytes could not hold."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(32_766, 32_768), 2)])
        found = list(directory.read_rows(file, (32_767,)))
        assert [key for page, _ in found for key in page] == [
            row_key(32_767, 0),
            row_key(32_767, 1),
        ]

    def test_a_file_that_is_full_is_followed_by_another(
        self, directory: SnapshotDirectory
    ) -> None:
        """So that the reader of one needs no more memory than that."""
        pages = [rows_of(1, range(group, group + 1), 10) for group in range(4)]
        files = directory.write_rows(DATA, pages, file_size_bytes_max=200)
        assert [(f.key_group_first, f.key_group_last) for f in files] == [
            (0, 1),
            (2, 3),
        ]

    def test_a_file_has_the_size_and_the_checksum_that_are_said(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """They are computed on the way, and are those of the file."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 1_000)])
        stored = (tmp_path / file.name).read_bytes()
        assert file.size_bytes == len(stored)
        assert file.checksum == checksum_of(stored)

    def test_no_rows_are_no_file(self, directory: SnapshotDirectory) -> None:
        """A state without rows has no file."""
        assert directory.write_rows(DATA, [rows_of(1, range(0), 1)]) == ()

    @pytest.mark.parametrize("harm", ["flipped", "truncated", "other", "gone"])
    def test_a_file_that_is_damaged_yields_nothing(
        self, directory: SnapshotDirectory, tmp_path: Path, harm: str
    ) -> None:
        """Not a single row is believed before the checksum is right."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 100)])
        path = tmp_path / file.name
        stored = path.read_bytes()
        match harm:
            case "flipped":
                half = len(stored) // 2
                damaged = stored[:half] + bytes([stored[half] ^ 1]) + stored[half + 1 :]
                path.write_bytes(damaged)
            case "truncated":
                path.write_bytes(stored[:-20])
            case "other":
                path.write_bytes(b"x" * len(stored))
            case _:
                path.unlink()
        rows = directory.read_rows(file, (0, 1, 2, 3))
        with pytest.raises(StorageError, match=r"damaged|No such file"):
            next(rows)

    def test_what_is_no_file_of_rows_is_refused(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """Also if its checksum is the one that the manifest names."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        (tmp_path / file.name).write_bytes(b"rubbish")
        file = replace(file, size_bytes=7, checksum=checksum_of(b"rubbish"))
        with pytest.raises(StorageError, match="cannot read"):
            next(directory.read_rows(file, (0,)))

    def test_a_part_that_fails_leaves_nothing(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """What was written of it is removed."""

        def pages() -> Any:
            yield rows_of(1, range(4), 10)
            yield rows_of(2, range(4), 10)
            raise StorageError("the disk of the node")

        with pytest.raises(StorageError, match="the disk of the node"):
            directory.write_rows(DATA, pages())
        assert not (tmp_path / DATA).exists()


class TestManifest:
    """Written last, and believed only if it makes sense."""

    def test_it_comes_back_as_it_was(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """With the checksum of what lies there."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        manifest = manifest_of(file)
        assert not directory.has_manifest()
        directory.write_manifest(manifest)
        assert directory.has_manifest()
        found, checksum = directory.read_manifest()
        assert found == manifest
        assert checksum == checksum_of((tmp_path / "manifest.json").read_bytes())
        assert (found.row_count, found.size_bytes) == (40, file.size_bytes)

    @pytest.mark.proves("S6")
    def test_one_that_has_changed_is_refused(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """
        S6: a bit that has flipped in a number leaves no row and no batch out.

        What it says makes sense still: the file has rows of key group 1 and above, and
        batch 3 is batch 7.
        """
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        directory.write_manifest(manifest_of(file))
        path = tmp_path / "manifest.json"
        sound = path.read_bytes()
        for before, after in (
            (b'"key_group_first": 0', b'"key_group_first": 1'),
            (b'"batch_id": 3', b'"batch_id": 7'),
        ):
            assert before in sound
            path.write_bytes(sound.replace(before, after, 1))
            with pytest.raises(StorageError, match=r"manifest\.json in .* is damaged"):
                directory.read_manifest()
        path.write_bytes(sound)
        assert directory.read_manifest() == (manifest_of(file), checksum_of(sound))

    @pytest.mark.proves("S6")
    def test_one_with_another_id_is_refused(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """
        S6: the checksum is found by the id, and is not passed over where that changed.

        A manifest without one is taken for that of an earlier version.
        """
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        directory.write_manifest(manifest_of(file))
        path = tmp_path / "manifest.json"
        damaged = path.read_bytes().replace(b'"batch_id": 3', b'"batch_id": 7', 1)
        damaged = damaged.replace(
            SNAPSHOT_ID.encode(), b"1" + SNAPSHOT_ID[1:].encode(), 1
        )
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match="makes no sense"):
            directory.read_manifest()

    def test_one_of_an_earlier_version_is_read(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """Its checksum was not kept."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        directory.write_manifest(manifest_of(file))
        (tmp_path / f"data-{SNAPSHOT_ID}" / "manifest.checksum").unlink()
        assert directory.read_manifest()[0] == manifest_of(file)

    def test_no_manifest_is_no_snapshot(self, directory: SnapshotDirectory) -> None:
        """Whatever else is there."""
        directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        with pytest.raises(StorageError, match="there is no snapshot"):
            directory.read_manifest()

    @pytest.mark.parametrize("harm", ["gone", "short"])
    def test_files_that_are_not_here_make_no_snapshot(
        self, directory: SnapshotDirectory, tmp_path: Path, harm: str
    ) -> None:
        """A node that wrote to a disk of its own is found out."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        path = tmp_path / file.name
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(StorageError, match=r"share|has written"):
            directory.write_manifest(manifest_of(file))
        assert not directory.has_manifest()

    @pytest.mark.parametrize("stored", [b"", b"{", b"[]", b'{"format":1}', b"\xff{}"])
    def test_what_is_none_is_refused(
        self, directory: SnapshotDirectory, tmp_path: Path, stored: bytes
    ) -> None:
        """A manifest that was cut off, or written by somebody else."""
        (tmp_path / "manifest.json").write_bytes(stored)
        with pytest.raises(StorageError, match=f"in {tmp_path}: .*cannot be read"):
            directory.read_manifest()

    def test_another_format_is_refused_by_its_number(self) -> None:
        """Whatever else that format has."""
        with pytest.raises(StorageError, match="format 2; this program reads format 1"):
            decode_manifest(b'{"format":2,"pages":[]}')

    @pytest.mark.parametrize(
        "name",
        [
            "../other/0.arrow",
            "data-1/../../0.arrow",
            "/etc/passwd",
            "data-1//0.arrow",
            "data-1/./0.arrow",
            "data-1\\0.arrow",
            "0.arrow",
            "",
        ],
    )
    def test_a_file_elsewhere_is_refused(self, name: str) -> None:
        """A manifest cannot make a node read what is not below the directory."""
        stored = encode_manifest(manifest_of(replace(FILE, name=name)))
        with pytest.raises(StorageError, match="no name of a file"):
            decode_manifest(stored)

    @pytest.mark.parametrize(
        ("file", "what"),
        [
            (replace(FILE, state_number=9), "no state"),
            (replace(FILE, key_group_last=16), "no such job"),
            (replace(FILE, key_group_first=4), "no such job"),
        ],
    )
    def test_a_file_of_nothing_is_refused(self, file: SnapshotFile, what: str) -> None:
        """Files belong to states and key groups that the job has."""
        with pytest.raises(StorageError, match=what):
            decode_manifest(encode_manifest(manifest_of(file)))

    def test_what_is_named_twice_is_refused(self) -> None:
        """A file, or a state."""
        with pytest.raises(StorageError, match=r"the file .* twice"):
            decode_manifest(encode_manifest(manifest_of(FILE, FILE)))
        twice = replace(manifest_of(), states=(state_of(1), state_of(1)))
        with pytest.raises(StorageError, match="a state twice"):
            decode_manifest(encode_manifest(twice))

    def test_files_are_chosen_by_key_group(self) -> None:
        """A node opens those alone that may have rows for it."""
        files = [
            replace(FILE, name=f"{DATA}/{n}.arrow", key_group_first=n, key_group_last=n)
            for n in range(4)
        ]
        assert files_with(manifest_of(*files), (1, 3)) == (files[1], files[3])

    def test_batch_ids_are_those_of_the_queries(self) -> None:
        """The newest batch of each query, whichever states it wrote."""
        one = QueryProgress(query_id="a", batch_id=4, writer_epoch=1, sequence=2)
        other = QueryProgress(query_id="a", batch_id=6, writer_epoch=1, sequence=3)
        third = QueryProgress(query_id="b", batch_id=1, writer_epoch=1, sequence=4)
        states = (state_of(1, one), state_of(2, other, third))
        manifest = replace(manifest_of(), states=states)
        assert manifest.batch_ids == {"a": 6, "b": 1}


class TestPlaces:
    """Where a snapshot may be."""

    @pytest.mark.parametrize("uri", ["relative/path", "nonsense://place", ""])
    def test_what_names_no_place_is_refused(self, uri: str) -> None:
        """With what would be one."""
        with pytest.raises(ConfigurationError, match="no place for a snapshot"):
            SnapshotDirectory(uri)

    def test_a_uri_is_a_place(self, tmp_path: Path) -> None:
        """The file systems of pyarrow are named by URIs."""
        directory = SnapshotDirectory(tmp_path.as_uri())
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 1)])
        assert (tmp_path / file.name).exists()

    def test_pyarrow_that_is_missing_is_asked_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing else of Lodestar's needs it: the error says what to install."""
        imported = builtins.__import__

        def without_arrow(name: str, *arguments: Any) -> Any:
            if name.partition(".")[0] == "pyarrow":
                raise ImportError(name)
            return imported(name, *arguments)

        for name in [n for n in sys.modules if n.partition(".")[0] == "pyarrow"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(builtins, "__import__", without_arrow)
        with pytest.raises(ConfigurationError, match=r"lodestar\[snapshots\]"):
            SnapshotDirectory("/tmp")


class TestClaims:
    """S5: of two snapshots into one place one is refused."""

    @pytest.mark.proves("S5")
    def test_a_place_is_claimed_once(
        self, directory: SnapshotDirectory, tmp_path: Path
    ) -> None:
        """Until the first has ended, well or not."""
        other = SnapshotDirectory(str(tmp_path))
        with directory.claimed("first"):
            with (
                pytest.raises(ConfigurationError, match="is being made"),
                other.claimed("second"),
            ):
                pytest.fail("two have it")
            assert (tmp_path / "claim").exists()
        with other.claimed("second"):
            pass
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.proves("S5")
    def test_a_snapshot_stays(self, directory: SnapshotDirectory) -> None:
        """The place of one is never claimed again."""
        (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
        with directory.claimed(SNAPSHOT_ID):
            directory.write_manifest(manifest_of(file))
        with (
            pytest.raises(ConfigurationError, match="already"),
            directory.claimed("second"),
        ):
            pytest.fail("it is written over")

    @pytest.mark.proves("S5")
    def test_object_stores_never_give_one_place_to_two(self) -> None:
        """Nothing there is created by one only: each looks for claims of others."""
        files = pa.fs._MockFileSystem()
        with claimed(pa, files, "bucket/place", "first"):
            with (
                pytest.raises(ConfigurationError, match="claim-first"),
                claimed(pa, files, "bucket/place", "second"),
            ):
                pytest.fail("two have it")
            names = [
                info.base_name
                for info in files.get_file_info(pa.fs.FileSelector("bucket/place"))
            ]
            assert names == ["claim-first"]
        with claimed(pa, files, "bucket/place", "second"):
            pass


WRITE_TO_A_FAULTY_DISK = """
import sys
from nameservice import StorageError
from queryablestate.connect.snapshot_files import SnapshotDirectory
from tests.queryablestate.connect.test_snapshot_files import (
    DATA, manifest_of, rows_of
)
directory = SnapshotDirectory(sys.argv[1])
try:
    (file,) = directory.write_rows(DATA, [rows_of(1, range(4), 10)])
    directory.write_manifest(manifest_of(file))
except StorageError as error:
    print("refused", error)
else:
    print("written")
"""

TAKE_ON_A_FAULTY_DISK = """
import sys
from msgspec.structs import replace
from nameservice import StorageError
from queryablestate.connect.snapshot_files import SnapshotDirectory
from queryablestate.operations.snapshots import take_snapshot
from queryablestate.wire.snapshot_messages import SnapshotTaken
from tests.queryablestate.connect.test_snapshot_files import manifest_of, rows_of

def call(answer_type, build):
    snapshot_id = build(1, b"session").snapshot_id
    part = f"data-{snapshot_id}/at-7/node-0"
    directory = SnapshotDirectory(sys.argv[1])
    (file,) = directory.write_rows(part, [rows_of(1, range(4), 10)])
    manifest = replace(manifest_of(file), snapshot_id=snapshot_id)
    return SnapshotTaken(request_id=1, manifest=manifest)

try:
    take_snapshot(call, "flights", sys.argv[1], timeout_seconds=10.0)
except StorageError as error:
    print("refused", error)
else:
    print("written")
"""


def refused_by_disk(program: str, directory: Path, good_count: int) -> Path:
    """Return where *program* was refused a snapshot, after that many good syncs."""
    disk = FaultyDisk(directory / "disk", directory / "faults")
    disk.fail("sync", after=good_count)
    place = disk.directory / "snapshots" / "monday"
    done = subprocess.run(
        [sys.executable, "-c", program, str(place)],
        env=disk.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.startswith("refused cannot write to"), done
    return place


@pytest.mark.shells
class TestDurability:
    """S5: what is reported outlives a loss of power."""

    # A file and the directories that lead to it, the manifest twice.
    @pytest.mark.proves("S5")
    @pytest.mark.parametrize("good_count", nightly_after(2, range(11)))
    def test_what_cannot_be_synced_is_no_snapshot(
        self, tmp_path: Path, good_count: int
    ) -> None:
        """Whichever file or directory it is."""
        place = refused_by_disk(WRITE_TO_A_FAULTY_DISK, tmp_path, good_count)
        assert not (place / DATA / "0.arrow").exists() or good_count >= 6

    @pytest.mark.proves("S5")
    @pytest.mark.parametrize("good_count", nightly_after(1, [5, 9, 10, 14]))
    def test_what_is_refused_leaves_no_manifest_without_files(
        self, tmp_path: Path, good_count: int
    ) -> None:
        """
        Also when the disk fails after the manifest has its name.

        A directory with a manifest is taken for a snapshot, by people and by the next
        one, which is refused there; what it names was removed.
        """
        place = refused_by_disk(TAKE_ON_A_FAULTY_DISK, tmp_path, good_count)
        assert list(place.iterdir()) == []
