"""The node: the process that holds key groups and answers for them."""
