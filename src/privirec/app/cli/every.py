"""`app`: the command line with all commands imported, for tests and documentation."""

from __future__ import annotations

from privirec.app.cli.main import COMMANDS, app_of

app = app_of(COMMANDS)
