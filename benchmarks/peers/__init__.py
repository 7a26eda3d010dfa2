"""
Side by side with the systems that people would use instead; see benchmarks/README.md.

Theory of operation.  A *question* (``ask_*.py``) says what is measured, in which sizes
and in which unit.  A *peer* (one file each) knows how its system is installed, started
and asked, and nothing of what is made of the answers.  All peers of a question stand at
the same time, and are asked by turns, round after round, so that each meets the same
machine.  A peer that cannot be started becomes a row that says why.
"""
