"""How Spark finds ``format("lodestar")``: by the name of this package."""

from __future__ import annotations

from pyspark_lodestar.source import DefaultSource


__all__ = ["DefaultSource"]
