"""``python -m tests.state_simulation --seeds N``: see its ``command`` module."""

from __future__ import annotations

import sys


def main() -> int:
    """Mutate the shipped code first, if a mutation is asked for; then run."""
    # Nothing of ours is imported before: a mutation changes modules as they load.
    from tests.state_simulation.mutations import (  # noqa: PLC0415
        install_from_arguments,
    )

    install_from_arguments(sys.argv[1:])
    from tests.state_simulation.command import run  # noqa: PLC0415

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
