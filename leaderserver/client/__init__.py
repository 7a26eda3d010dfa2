"""A client of a LeaderServer: its pure core, and the sockets around it."""
