"""Faults of the checksum catalog's file."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry_client import ClientState, Outcome

from .catalogue import fault
from .content import damaged
from .rig import wait_for
from .s3_faults import LOADED, STORED, expect

if TYPE_CHECKING:
    from .rig import Scenario

KIND = "Checksum catalog"


def begin(s: Scenario) -> list[bytes]:
    """A daemon with a catalog file, and four chunks whose checksums are in it."""
    s.start(environment={"KVFERRY_CATALOG_DIR": str(s.root / "catalog")})
    return s.engine.stored(4)


def catalog_of(s: Scenario) -> Path:
    """The catalog's file."""
    [file] = (s.root / "catalog").glob("*.sqlite3")
    return file


def stop(s: Scenario) -> None:
    """End the daemon cleanly."""
    s.daemon.running.signal(signal.SIGTERM)
    if s.daemon.ended():
        raise AssertionError("the daemon must end with status 0")
    wait_for(lambda: s.engine.client.state is ClientState.CONNECTING, "the lease's end")


def go_on(s: Scenario) -> None:
    """Start it again and wait until it works."""
    s.over()
    s.daemon.start()
    s.engine.attach()
    s.await_ready()


def damage(s: Scenario) -> None:
    """Flip a bit of every object on the disk."""
    paths = list(s.directory.view.rglob("*.bin"))
    for path in paths:
        path.write_bytes(damaged(path.read_bytes()))
    s.prove(len(paths) == 4, "a bit flipped in each of 4 objects")


@fault("F80", KIND, "objects change while the daemon is down", store="file", started=False)
def survives(s: Scenario) -> None:
    """The checksums survive the restart: CORRUPT, then overwritten."""
    keys = begin(s)
    stop(s)
    damage(s)
    go_on(s)
    s.engine.load(keys)
    expect(s.engine.settle(), Outcome.CORRUPT)
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)


@fault(
    "F81",
    KIND,
    "the file is overwritten with noise while the daemon is down",
    store="file",
    started=False,
)
def corrupted(s: Scenario) -> None:
    """Set aside and begun anew; what was stored is loaded, checked for its length only."""
    keys = begin(s)
    stop(s)
    file = catalog_of(s)
    noise = os.urandom(file.stat().st_size)
    file.write_bytes(noise)
    s.prove(file.read_bytes() == noise, f"{len(noise)} bytes of noise in the catalog's file")
    go_on(s)
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)


@fault("F82", KIND, "the file is cut to half under a running daemon", store="file", started=False)
def truncated(s: Scenario) -> None:
    """The daemon lives; stores and loads go on, then and after a restart."""
    keys = begin(s)
    file = catalog_of(s)
    before = file.stat().st_size
    os.truncate(file, before // 2)
    s.prove(file.stat().st_size < max(before, 1), f"cut from {before} bytes to half")
    keys += s.engine.stored(4)
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)
    stop(s)
    go_on(s)
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)


@fault("F83", KIND, "the checksums are lost and objects change", store="file", started=False)
def lost(s: Scenario) -> None:
    """With `verify = "require"` what has no checksum is a miss, and the next store overwrites."""
    s.start(settings={"integrity": {"verify": "require"}})
    keys = s.engine.stored(4)
    stop(s)
    damage(s)
    go_on(s)
    s.prove(not (s.root / "catalog").exists(), "no catalog's file")
    s.engine.load(keys)
    expect(s.engine.settle(), Outcome.CORRUPT)
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)
