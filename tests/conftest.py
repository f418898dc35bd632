"""For all tests: one compute thread, so that a busy machine does not make them ten times slower.

OpenMP's threads wait for each other by spinning; with as many of them as cores, any other process
stalls all of them.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
