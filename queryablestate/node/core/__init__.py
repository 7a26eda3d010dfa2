"""The node as a pure state machine: events and time in, effects out."""
