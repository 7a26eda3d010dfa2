"""High availability over a ZooKeeper ensemble: cores that decide, shells over kazoo."""
