"""PriviRec: recommendation that learns from people's histories without collecting them."""

from privirec.version import __version__

__all__ = ["__version__"]
