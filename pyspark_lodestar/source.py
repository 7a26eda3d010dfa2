"""The class that Spark looks for; see `sparkpipeline.state.data_source`."""

from __future__ import annotations

from typing import final

from sparkpipeline.state.data_source import LodestarDataSource


__all__ = ["DefaultSource"]


@final
class DefaultSource(LodestarDataSource):
    """`LodestarDataSource` under the name by which Spark finds data sources."""
