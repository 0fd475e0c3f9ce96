"""What holds for every test: where checksums are kept, and that Ctrl-C reaches a child."""

from __future__ import annotations

import os
import signal


def pytest_configure() -> None:
    """Daemons that tests start keep their checksums in memory unless told otherwise.

    A shell starts background jobs with SIGINT ignored, and children would inherit that.
    """
    os.environ.setdefault("KVFERRY_CATALOG_DIR", "")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
