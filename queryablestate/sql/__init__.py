"""`lodestar sql`: states as tables for tools that speak to Postgres (rule F6)."""
