"""Processes that answer clients beside the node's own, from the same store."""
