"""The files of the live page."""

from __future__ import annotations

from ..static_files import PageFiles

FILES = PageFiles(__file__)
