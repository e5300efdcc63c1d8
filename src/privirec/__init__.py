"""PriviRec: recommendation that learns from people's histories without collecting them."""

import os

from privirec.version import __version__

__all__ = ["__version__"]

# BLAS and our compiled kernels take turns. By default the idle threads of each spin for tens of
# milliseconds on a core that the other one needs, which cost the second core all of its gain.
# Read when the libraries load, so it says nothing to a program that has loaded them already.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # log2 of clock cycles
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
