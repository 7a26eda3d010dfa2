"""What a LeaderServer decides without I/O: tables, queues, limits and watches."""
