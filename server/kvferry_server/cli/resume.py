"""`kvferry resume`: `pause` does both."""

from __future__ import annotations

from .pause import run

__all__ = ["run"]
