"""Faults of content: the server answers 200 and the bytes are not the chunk's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvferry_client import Outcome, Presence
from tests.support.fault_server import Fault

from .catalogue import fault
from .content import CHUNK, content_of, key_in_name
from .s3_faults import CHUNKS, LOADED, STORED, expect

if TYPE_CHECKING:
    from .rig import Scenario

KIND = "S3 content"
BAD = (Outcome.CORRUPT, Outcome.WRONG_SIZE, Outcome.MISSING, Outcome.UNAVAILABLE)


def name_of(s: Scenario, key: bytes) -> str:
    """The object's name in the bucket."""
    return next(name for name in s.backing.objects() if key_in_name(name) == key)


def load_bad(s: Scenario, rule: Fault | None, keys: list[bytes]) -> None:
    """The loads fail, lookups forget the objects, the next stores overwrite them."""
    number = s.stub.add(rule) if rule else 0
    s.engine.load(keys)
    expect(s.engine.settle(), *BAD)
    if number:
        s.stub.remove(number)
    s.over()


@fault("F20", KIND, "a 500's error body lands in the slot", store="stub")
def error_body(s: Scenario) -> None:
    """NIXL writes the XML into the slot; nothing of it is ever reported as loaded."""
    keys = s.engine.stored(4)
    s.stub.add(Fault(method="GET", key=CHUNKS, status=500, code="InternalError", times=2))
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)
    s.over()
    s.prove(s.answered("GET", 500) == 2, "2 GET answered 500 with a body")


@fault("F21", KIND, "200 OK with an error in the body", store="stub")
def error_as_success(s: Scenario) -> None:
    """Never loaded, however right the status looks."""
    keys = s.engine.stored(4)
    load_bad(s, Fault(method="GET", key=CHUNKS, status=200, code="InternalError"), keys)
    s.prove(s.answered("GET", 200) >= 4, f"{s.answered('GET', 200)} GET answered 200 with XML")


@fault("F22", KIND, "objects cut to half their length", store="stub", gate=True)
def cut_short(s: Scenario) -> None:
    """NIXL calls it done; the checksum and the canary don't."""
    keys = s.engine.stored(4)
    load_bad(s, Fault(method="GET", key=CHUNKS, size=CHUNK // 2), keys)
    s.prove(s.answered("GET", 206) + s.answered("GET", 200) >= 4, "4 GET answered with half")


@fault("F23", KIND, "objects cut by one byte, unknown to the daemon", store="stub")
def cut_by_one(s: Scenario) -> None:
    """No checksum is known after a loss of the catalog: the canary alone notices."""
    keys = s.engine.new_keys(8)
    for key in keys:
        name = f"p/faults/{key[:-4].hex()[:3]}/{key[:-4].hex()[3:5]}_g0/{key[:-4].hex()}.bin"
        s.stub.put(name, content_of(key)[:-1])
        s.damaged.add(key)
    s.engine.load(keys)
    outcomes = s.engine.settle()
    s.prove(s.stub.requests("GET", CHUNKS), f"{len(s.stub.requests('GET', CHUNKS))} GET")
    expect(outcomes, Outcome.WRONG_SIZE)
    s.over()


@fault("F24", KIND, "objects longer than a chunk, unknown to the daemon", store="stub")
def too_long(s: Scenario) -> None:
    """NIXL cuts them silently; the size request notices."""
    keys = s.engine.new_keys(4)
    for key in keys:
        name = f"p/faults/{key[:-4].hex()[:3]}/{key[:-4].hex()[3:5]}_g0/{key[:-4].hex()}.bin"
        s.stub.put(name, content_of(key) + b"x")
        s.damaged.add(key)
    s.engine.load(keys)
    expect(s.engine.settle(), Outcome.WRONG_SIZE)
    s.over()
    s.prove(s.stub.requests("HEAD", CHUNKS), "sizes were asked for")


@fault("F25", KIND, "the server stores other bytes than it was sent", store="stub", gate=True)
def mangled(s: Scenario) -> None:
    """CORRUPT, then a miss, then the next store overwrites."""
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, mangle=True))
    keys = s.engine.stored(4)
    s.stub.remove(rule)
    wrong = [key for key in keys if s.stub.get(name_of(s, key)) != content_of(key)]
    s.prove(wrong == keys, "4 objects differ from what was sent")
    load_bad(s, None, keys)
    if set(s.engine.look_up(keys)) != {Presence.ABSENT}:
        raise AssertionError("a damaged object must be a miss")
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)


@fault("F26", KIND, "PUT answers 200 and stores nothing", store="stub")
def discarded(s: Scenario) -> None:
    """The load is a miss, lookups say so, and the next store writes."""
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, discard=True))
    keys = s.engine.stored(4)
    s.stub.remove(rule)
    s.prove(not s.backing.objects(), "no object after 4 successful PUT")
    load_bad(s, None, keys)
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)


@fault("F27", KIND, "an object is replaced by another of the same length", store="stub")
def swapped(s: Scenario) -> None:
    """The checksum in the catalog notices; the next store overwrites."""
    keys = s.engine.stored(2)
    names = [name_of(s, key) for key in keys]
    first, second = (s.stub.get(name) or b"" for name in names)
    s.stub.put(names[0], second)
    s.stub.put(names[1], first)
    s.prove(s.stub.get(names[0]) == content_of(keys[1]), "two objects swapped")
    load_bad(s, None, keys)
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)


@fault("F28", KIND, "objects vanish, as by a lifecycle rule", store="stub")
def vanished(s: Scenario) -> None:
    """One failed load each, then a miss; the next store writes."""
    keys = s.engine.stored(4)
    for key in keys:
        s.stub.delete(name_of(s, key))
    s.prove(not s.backing.objects(), "4 objects deleted behind the daemon")
    s.engine.load(keys)
    expect(s.engine.settle(), Outcome.MISSING)
    if set(s.engine.look_up(keys)) != {Presence.ABSENT}:
        raise AssertionError("a missing object must be a miss")
    s.engine.store_keys(keys)
    expect(s.engine.settle(), STORED)
    s.over()
