"""`python -m tokenmill` is the command line."""

import sys

from .api.cli import main

sys.exit(main())
