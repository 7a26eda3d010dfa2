"""Publishing the state that a running query of Spark keeps in its checkpoint."""
