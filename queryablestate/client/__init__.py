"""The client of queryable state, synchronous and asynchronous."""
