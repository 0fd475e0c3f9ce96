"""What holds for every test: no daemon leaves its checksums in this user's state directory."""

from __future__ import annotations

import os


def pytest_configure() -> None:
    """Daemons that tests start keep their checksums in memory unless told otherwise."""
    os.environ.setdefault("KVFERRY_CATALOG_DIR", "")
