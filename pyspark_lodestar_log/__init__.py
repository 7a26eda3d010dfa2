"""How Spark finds ``format("lodestar-log")``: by the name of this package."""

from __future__ import annotations

from pyspark_lodestar_log.source import DefaultSource


__all__ = ["DefaultSource"]
