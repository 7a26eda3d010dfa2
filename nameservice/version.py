"""Which version of Lodestar is installed."""

from __future__ import annotations


__all__ = ["package_version"]


def package_version() -> str:
    """Return the version of the installed distribution, or ``(not installed)``."""
    # Takes time to load, and most programs never ask.
    from importlib.metadata import (  # noqa: PLC0415 (as above)
        PackageNotFoundError,
        version,
    )

    try:
        return version("spark-lodestar")
    except PackageNotFoundError:
        return "(not installed)"
