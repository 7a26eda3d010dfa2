"""
`tests.queryablestate.writing_store` in the data directory of a node.

Run as ``python -m tests.queryablestate.writing_directory DIRECTORY``.
"""

from __future__ import annotations

import sys

from queryablestate.node.config import NodeConfig
from queryablestate.node.directory import NodeDirectory
from queryablestate.store.store import StateStore
from tests.queryablestate.store_batches import NODE
from tests.queryablestate.writing_store import write


def opened(directory: str) -> StateStore:
    """Return the store that a node has there, with the settings of its own."""
    return NodeDirectory(NodeConfig(data_dir=directory, node_id=NODE)).open()


def main(directory: str) -> None:
    """Write until there is an end of it."""
    with opened(directory) as store:
        write(store)


if __name__ == "__main__":
    main(sys.argv[1])
