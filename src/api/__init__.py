"""HTTP and the command line.

structlog imports rich, if that is installed, for tracebacks on a terminal. They are not used here,
and rich takes 6 MB, which is much for a server's process of 80 MB. So structlog is imported
without it.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it raises ImportError
    import structlog  # noqa: F401

    del sys.modules["rich"]
