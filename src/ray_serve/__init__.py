"""Replicas of the server on Ray Serve: `import_path: tokenmill.ray_serve:build` in serve.yaml."""

from __future__ import annotations

from .application import build
from .front import middlewares

__all__ = ["build", "middlewares"]
