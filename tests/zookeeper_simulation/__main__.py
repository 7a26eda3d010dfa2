"""``python -m tests.zookeeper_simulation --seeds N``: see its `command`."""

from __future__ import annotations

import sys


def main() -> int:
    """Mutate the shipped rule first, if a mutation is asked for; then run."""
    # Nothing of ours is imported before: a mutation changes modules as they load.
    from tests.simulation.mutations import install_from_arguments  # noqa: PLC0415
    from tests.zookeeper_simulation.mutations import (  # noqa: PLC0415
        STORE_MUTATIONS,
        ZOOKEEPER_MUTATIONS,
    )

    install_from_arguments(sys.argv[1:], (*ZOOKEEPER_MUTATIONS, *STORE_MUTATIONS))
    from tests.zookeeper_simulation.command import run  # noqa: PLC0415

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
