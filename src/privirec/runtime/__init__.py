"""Who carries the messages."""
