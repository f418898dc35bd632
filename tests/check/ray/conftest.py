"""The tests of `inside` are collected only where their cluster runs."""

from __future__ import annotations

import os

from .inside import SWITCH

collect_ignore = [] if SWITCH in os.environ else ["inside"]
