"""Enrolment of clients: identities, the roster, folders and certificates."""
