"""
Lend an environment packages of this one, by links: ``lend_packages.py TARGET NAME…``.

TARGET is a site-packages directory.  What a NAME requires is lent, too, unless it is
there already.  So an environment of its own has the extra ``spark`` of a wheel, in the
locked versions, and half a gigabyte need not be unpacked again.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement


if TYPE_CHECKING:
    from collections.abc import Sequence


def lend(target: Path, names: Sequence[str]) -> None:
    """Link the distributions *names*, and what they require, into *target*."""
    pending = [Requirement(name) for name in names]
    while pending:
        requirement = pending.pop()
        distribution = metadata.distribution(requirement.name)
        pending += [
            wanted
            for wanted in map(Requirement, distribution.requires or ())
            if wanted.marker is None
            or any(
                wanted.marker.evaluate({"extra": extra})
                for extra in requirement.extras or {""}
            )
        ]
        entries = {file.parts[0] for file in distribution.files or ()}
        entries -= {"..", "__pycache__"}
        if any((target / one).exists() for one in entries if one.endswith("-info")):
            continue
        for entry in entries:
            link = target / entry
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(entry))).resolve())


if __name__ == "__main__":
    lend(Path(sys.argv[1]), sys.argv[2:])
