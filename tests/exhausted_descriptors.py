"""A process that may have no more open files, as under ``ulimit -n``."""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["no_more_descriptors"]


@contextmanager
def no_more_descriptors(*, left_count: int = 0) -> Iterator[None]:
    """Have nothing more be opened than *left_count* files, as long as the block."""
    left = [os.open(os.devnull, os.O_RDONLY) for _ in range(left_count + 1)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (left[-1], limits[1]))
    for descriptor in left:
        os.close(descriptor)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
