"""Tables and figures of the paper and the documentation, tuning, and other methods."""
