"""The class that Spark looks for; see `sparkpipeline.log.source`."""

from __future__ import annotations

from typing import final

from sparkpipeline.log.source import LodestarLogSource


__all__ = ["DefaultSource"]


@final
class DefaultSource(LodestarLogSource):
    """`LodestarLogSource` under the name by which Spark finds data sources."""
