"""The control plane as pure state machines: commits, membership, moves, snapshots."""
