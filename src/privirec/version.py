"""The package's version, as pyproject.toml says it."""

from importlib.metadata import version

__version__ = version("privirec")
