"""How a node copies key groups from another one."""
