"""One file a command, no logic of its own."""
