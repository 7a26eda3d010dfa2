"""Functions with operator state over the micro-batches of a stream."""
