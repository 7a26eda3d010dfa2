"""What operators ask of a proxy: states, moves, drains, snapshots."""
