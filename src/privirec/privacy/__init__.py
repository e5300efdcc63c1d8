"""What a release gives away, and what is done about it."""
