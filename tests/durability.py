"""`names_at_risk`: the names of files that a loss of power would take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


_CALLS = ("fsync", "link", "mkdir", "open", "rename", "replace", "unlink")


@contextmanager
def names_at_risk() -> Iterator[set[Path]]:
    """
    Yield the names made or given in the block that no `fsync` has made durable yet.

    It looks on: each call does what it does.  What libraries in C do by themselves is
    not seen, such as the log of SQLite; nor are files that may exist before, which are
    locks.
    """
    names: set[Path] = set()
    real = {name: getattr(os, name) for name in _CALLS}

    def fsync(descriptor: int) -> None:
        real["fsync"](descriptor)
        directory = Path(f"/proc/self/fd/{descriptor}").readlink()
        names.difference_update([name for name in names if name.parent == directory])

    def mkdir(path: Any, *arguments: Any) -> None:
        real["mkdir"](path, *arguments)
        names.add(_absolute(path))

    def open_file(path: Any, flags: int, *arguments: Any) -> int:
        descriptor: int = real["open"](path, flags, *arguments)
        if flags & os.O_EXCL:
            names.add(_absolute(path))
        return descriptor

    def unlink(path: Any) -> None:
        real["unlink"](path)
        names.discard(_absolute(path))

    def link(path: Any, name: Any) -> None:
        real["link"](path, name)
        names.add(_absolute(name))

    def rename(path: Any, name: Any) -> None:
        real["replace"](path, name)
        names.add(_absolute(name))
        names.discard(_absolute(path))

    with pytest.MonkeyPatch.context() as patch:
        for name, call in zip(
            _CALLS, (fsync, link, mkdir, open_file, rename, rename, unlink), strict=True
        ):
            patch.setattr(os, name, call)
        yield names


def _absolute(path: Any) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 (links are left alone)
