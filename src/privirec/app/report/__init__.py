"""Output for people: tables, progress, pictures and the audit page."""
