"""The data source `lodestar-log`, and how the place in its files is published."""
