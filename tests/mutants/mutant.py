"""What a mutant is, and the folders that the lists of them name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
CORE = "server/kvferry_server/core/"
ADAPTERS = "server/kvferry_server/adapters/"
SERVICE = "server/kvferry_server/service/"
CLI = "server/kvferry_server/cli/"
CLIENT = "client/kvferry_client/"


@dataclass(frozen=True)
class Mutant:
    """One broken build.

    Args:
        ident: `M01` and so on.
        fence: what it takes away.
        file: relative to the repository.
        old: text that occurs once in the file.
        new: what stands there instead.
        test: path and name of the test that must fail.
    """

    ident: str
    fence: str
    file: str
    old: str
    new: str
    test: str
