"""Program: `toy_serve` whose event loop has half a second to drain before it is known to hang."""

from __future__ import annotations

import runpy

from tokenmill.api import stopping

if __name__ == "__main__":
    stopping.DRAINING_SECONDS = 0.5
    runpy.run_module("tests.api.toy_serve", run_name="__main__")
