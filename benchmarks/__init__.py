"""Measurements; see benchmarks/README.md."""
