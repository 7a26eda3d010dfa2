"""Queryable state for Spark: what writes it, reads it, and runs its nodes."""
