"""Which node holds which key groups, and how that changes with few moves."""
