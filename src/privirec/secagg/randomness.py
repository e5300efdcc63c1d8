"""Where random bytes come from. Sessions are handed a source and never look for one themselves."""

from __future__ import annotations

from collections.abc import Callable

RandomBytes = Callable[[int], bytes]
