"""Privacy of releases: accounting, policies and attacks."""
