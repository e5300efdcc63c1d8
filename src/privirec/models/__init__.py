"""One file a model: its config and its scorer."""
