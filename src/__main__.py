"""`tokenmill` and `python -m tokenmill` are the command line."""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Run the command line, whose imports take a while: Ctrl-C ends them without a traceback."""
    import_ends = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if import_ends:  # else the parent process ignores Ctrl-C
        signal.signal(signal.SIGINT, _leave)
    from .api import cli

    if import_ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
