"""Who may take part: identities, the roster, folders, certificates."""
