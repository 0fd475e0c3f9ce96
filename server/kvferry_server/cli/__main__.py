"""`python -m kvferry_server.cli`: the same as `kvferry`."""

from __future__ import annotations

import sys

from .main import main

sys.exit(main())
