"""Messages between clients, proxies and nodes, and their encoding."""
