"""The comparison's programs find each other by the folder that they are started from."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4] / "benchmarks" / "cpu" / "peers"))
