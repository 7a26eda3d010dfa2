"""The LeaderServer: one thread that decides, and its sockets and storage."""
