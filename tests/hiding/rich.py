"""
Hides rich from the processes that tests start: it is there for schemathesis' sake only.

structlog imports it where it can, which takes a sixth of the time in which a server
starts, thousands of times.  Users have none either.
"""

raise ImportError("hidden by the tests")
