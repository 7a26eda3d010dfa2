"""The proxy server: sockets, rights, limits, cache and routing."""
