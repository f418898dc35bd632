"""The check's programs find each other by the folder that they are started from."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks" / "gpu"))
