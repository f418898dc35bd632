"""Tests with a Ray cluster: see machines.py, which starts it, and test_in_namespaces.py."""

SWITCH = "TOKENMILL_TEST_INSIDE"
"""An environment variable that is set where the cluster runs."""
