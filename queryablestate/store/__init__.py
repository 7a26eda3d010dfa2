"""The store of one node: rows, staged batches and copies in LMDB."""
