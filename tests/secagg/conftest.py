"""Disable hypothesis deadlines: the first call of a kernel compiles it."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
