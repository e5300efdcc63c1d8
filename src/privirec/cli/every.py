"""`app`: all commands at once, for whoever looks at every one of them."""

from __future__ import annotations

from privirec.cli.main import COMMANDS, app_of

app = app_of(COMMANDS)
