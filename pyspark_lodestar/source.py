"""The class that Spark looks for; see `sparkpipeline.data_source`."""

from __future__ import annotations

from typing import final

from sparkpipeline.data_source import LodestarDataSource


__all__ = ["DefaultSource"]


@final
class DefaultSource(LodestarDataSource):
    """`LodestarDataSource` under the name by which Spark finds data sources."""
