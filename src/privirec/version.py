"""The package version, as pyproject.toml states it."""

from importlib.metadata import version

__version__ = version("privirec")
