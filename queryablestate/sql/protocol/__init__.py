"""The Postgres wire protocol as a server speaks it, without I/O: version 3."""
