"""The parts of this machine that `tokenmill doctor` checks."""
