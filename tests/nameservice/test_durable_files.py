"""What was said to be on the disk is there after a loss of power, under its name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from nameservice.durable_files import (
    make_directory,
    rename,
    replace_text,
    sync_directory,
    sync_file,
    sync_tree,
)
from tests.durability import names_at_risk


# Its directories say of themselves that they cannot be synced.
UNSYNCED = Path("/proc/self")


class TestDirectories:
    def test_all_that_are_made_have_durable_names(self, tmp_path: Path) -> None:
        """Those above it, too."""
        with names_at_risk() as names:
            make_directory(tmp_path / "a" / "b" / "c")
            assert (tmp_path / "a" / "b" / "c").is_dir()
        assert not names

    def test_the_mode_is_that_of_the_last(self, tmp_path: Path) -> None:
        """As with `Path.mkdir`."""
        make_directory(tmp_path / "a" / "b", mode=0o700)
        assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) & 0o050

    def test_who_made_it_may_have_been_killed_before_it_was_synced(
        self, tmp_path: Path
    ) -> None:
        """So the next one sees to it."""
        with names_at_risk() as names:
            os.mkdir(tmp_path / "a")  # noqa: PTH102 (that is watched)
            assert names == {tmp_path / "a"}
            make_directory(tmp_path / "a")
        assert not names

    def test_a_relative_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is below the working directory."""
        monkeypatch.chdir(tmp_path)
        with names_at_risk() as names:
            make_directory(Path("a/b"))
        assert (tmp_path / "a" / "b").is_dir()
        assert not names

    def test_a_file_is_in_the_way(self, tmp_path: Path) -> None:
        """It is no directory, nor is what would be below it."""
        (tmp_path / "a").touch()
        with pytest.raises(FileExistsError):
            make_directory(tmp_path / "a")
        with pytest.raises(NotADirectoryError):
            make_directory(tmp_path / "a" / "b")

    def test_one_that_cannot_be_synced(self) -> None:
        """Some file systems know no such thing; then there is nothing to be done."""
        sync_directory(UNSYNCED)

    def test_one_that_is_not_there(self, tmp_path: Path) -> None:
        """That is an error."""
        with pytest.raises(FileNotFoundError):
            sync_directory(tmp_path / "a")


class TestFiles:
    def test_text_is_replaced(self, tmp_path: Path) -> None:
        """Nothing is left beside it."""
        with names_at_risk() as names:
            replace_text(tmp_path / "note", "one\n")
            replace_text(tmp_path / "note", "two\n")
        assert (tmp_path / "note").read_text("utf-8") == "two\n"
        assert list(tmp_path.iterdir()) == [tmp_path / "note"]
        assert not names

    def test_text_that_cannot_be_written(self, tmp_path: Path) -> None:
        """What was there stays."""
        (tmp_path / "note").write_text("one\n")
        with pytest.raises(UnicodeEncodeError):
            replace_text(tmp_path / "note", "\ud800")
        assert (tmp_path / "note").read_text("utf-8") == "one\n"

    def test_a_name(self, tmp_path: Path) -> None:
        """It is durable, and the file that had it is gone."""
        (tmp_path / "fresh").write_text("new")
        (tmp_path / "name").write_text("old")
        with names_at_risk() as names:
            rename(tmp_path / "fresh", tmp_path / "name")
        assert (tmp_path / "name").read_text("utf-8") == "new"
        assert not names

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        """That is an error."""
        with pytest.raises(FileNotFoundError):
            sync_file(tmp_path / "a")

    def test_all_directories_that_lead_to_a_file(self, tmp_path: Path) -> None:
        """Up to the one that they are all in."""
        with names_at_risk() as names:
            for name in ("a", "a/b", "a/b/c"):
                os.mkdir(tmp_path / name)  # noqa: PTH102 (that is watched)
            (tmp_path / "a/b/c/file").touch()
            sync_tree(tmp_path / "a/b/c/file", below=tmp_path / "a" / "b")
            assert names == {tmp_path / "a"}
