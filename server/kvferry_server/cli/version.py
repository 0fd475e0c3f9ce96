"""`kvferry version`."""

from __future__ import annotations

import argparse

from kvferry_server import __version__


def run(_args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"kvferry {__version__}")
    return 0
