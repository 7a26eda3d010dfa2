"""The writer of batches: staging rows at the nodes, and committing them."""
