"""Faults of the S3 server's answers: refusals, silence, broken connections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvferry_client import Outcome, Presence
from tests.support.fault_server import Fault

from .catalogue import fault
from .rig import wait_for

if TYPE_CHECKING:
    from .rig import Scenario

KIND = "S3 answers"
STORED, LOADED = Outcome.STORED, Outcome.LOADED
UNAVAILABLE, DENIED = Outcome.UNAVAILABLE, Outcome.DENIED
CHUNKS = "p/faults/*"


def expect(got: list[Outcome], *allowed: Outcome) -> None:
    """Every outcome is one of those."""
    wrong = set(got) - set(allowed)
    if wrong or not got:
        raise AssertionError(f"outcomes {got}, allowed are {allowed}")


def put_and_get(s: Scenario, *faults: Fault) -> tuple[list[Outcome], list[Outcome]]:
    """Store and load while rules bite; what became of each."""
    before = s.engine.stored(4)
    rules = [s.stub.add(each) for each in faults]
    s.engine.store(4)
    stores = s.engine.settle()
    s.engine.load(before)
    loads = s.engine.settle()
    for rule in rules:
        s.stub.remove(rule)
    s.over()
    return stores, loads


@fault("F01", KIND, "503 SlowDown three times, then fine", store="stub", gate=True)
def slow_down(s: Scenario) -> None:
    """Retried with pauses; everything is stored and loaded."""
    bad = Fault(key=CHUNKS, status=503, code="SlowDown", times=3)
    both = [replace(bad, method=method) for method in ("PUT", "GET")]
    stores, loads = put_and_get(s, *both)
    for method in ("PUT", "GET"):
        s.prove(s.answered(method, 503) == 3, f"3 {method} answered 503")
    expect(stores, STORED)
    expect(loads, LOADED)


@fault("F02", KIND, "429 twice, then fine", store="stub")
def too_many_requests(s: Scenario) -> None:
    """Retried; everything is stored and loaded."""
    bad = Fault(key=CHUNKS, status=429, code="TooManyRequests", times=2)
    both = [replace(bad, method=method) for method in ("PUT", "GET")]
    stores, loads = put_and_get(s, *both)
    for method in ("PUT", "GET"):
        s.prove(s.answered(method, 429) == 2, f"2 {method} answered 429")
    expect(stores, STORED)
    expect(loads, LOADED)


@fault("F03", KIND, "500 on everything for a while", store="stub")
def internal_errors(s: Scenario) -> None:
    """Bounded tries, then breakers: failed or shed, never a hang, and it comes back."""
    stores, loads = put_and_get(s, Fault(key=CHUNKS, status=500, code="InternalError"))
    puts, gets = s.answered("PUT", 500), s.answered("GET", 500)
    s.prove(4 <= puts <= 16 and 4 <= gets <= 16, f"{puts} PUT and {gets} GET answered 500")
    expect(stores, UNAVAILABLE, Outcome.SHED)
    expect(loads, UNAVAILABLE, Outcome.SHED)


@fault("F04", KIND, "connections reset instead of an answer", store="stub")
def reset_before_answer(s: Scenario) -> None:
    """Retried; everything is stored and loaded."""
    both = [Fault(method=m, key=CHUNKS, drop="start", times=3) for m in ("PUT", "GET")]
    stores, loads = put_and_get(s, *both)
    s.prove(s.answered("PUT", 0) == 3 and s.answered("GET", 0) == 3, "3 PUT and 3 GET reset")
    expect(stores, STORED)
    expect(loads, LOADED)


@fault("F05", KIND, "connections reset in the middle of the body", store="stub")
def reset_in_body(s: Scenario) -> None:
    """The half that came is not taken for the whole; retried and loaded."""
    keys = s.engine.stored(4)
    s.stub.add(Fault(method="GET", key=CHUNKS, drop="body", times=3))
    s.engine.load(keys)
    expect(s.engine.settle(), LOADED)
    s.over()
    cut = sum(each.finished == 0.0 for each in s.stub.requests("GET", CHUNKS))
    s.prove(cut == 3, f"{cut} GET cut in the body")


@fault("F06", KIND, "no answer to a GET at all", store="stub")
def hang_before_answer(s: Scenario) -> None:
    """Each request ends by the SDK's own timeout; the job by its deadline; nothing is loaded."""
    keys = s.engine.stored(4)
    rule = s.stub.add(Fault(method="GET", key=CHUNKS, hang="start"))
    s.engine.load(keys)
    wait_for(lambda: s.stub.counters().in_flight, "a request that hangs")
    s.prove(True, f"{s.stub.counters().in_flight} GET hung")
    expect(s.engine.settle(), UNAVAILABLE, Outcome.EXPIRED)
    s.stub.remove(rule)
    s.over()


@fault("F07", KIND, "a GET's body stops half-way", store="stub")
def hang_in_body(s: Scenario) -> None:
    """The slot stays fenced while the transfer hangs; the job is reported only after its end."""
    keys = s.engine.stored(2)
    rule = s.stub.add(Fault(method="GET", key=CHUNKS, hang="body"))
    s.engine.load(keys)
    wait_for(lambda: s.stub.counters().in_flight >= 2, "two requests that hang")
    s.prove(not s.engine.take(), "2 GET hung in the body, the job unreported")
    s.stub.remove(rule)
    s.over()
    expect(s.engine.settle(), LOADED, UNAVAILABLE, Outcome.EXPIRED)


@fault("F08", KIND, "no answer to a PUT for 8 s", store="stub")
def hang_put(s: Scenario) -> None:
    """Longer than the job's deadline: the active chunk is awaited, never failed early."""
    rule = s.stub.add(Fault(method="PUT", key=CHUNKS, hang="start"))
    s.engine.store(2)
    wait_for(lambda: s.stub.counters().in_flight >= 2, "two requests that hang")
    s.prove(not s.engine.client.wait_results(8.0), "2 PUT hung for 8 s, the job unreported")
    s.stub.remove(rule)
    s.over()
    expect(s.engine.settle(), STORED)


@fault("F09", KIND, "301 to a bucket of another region", store="stub")
def moved_permanently(s: Scenario) -> None:
    """Not followed (keys would go elsewhere), not loaded: the redirect's body is no chunk."""
    headers = {"x-amz-bucket-region": "eu-west-1"}
    stores, loads = put_and_get(
        s, Fault(key=CHUNKS, status=301, code="PermanentRedirect", headers=headers)
    )
    s.prove(s.answered("PUT", 301) and s.answered("GET", 301), "PUT and GET answered 301")
    expect(stores, UNAVAILABLE, DENIED, Outcome.SHED)
    expect(loads, UNAVAILABLE, DENIED, Outcome.SHED)


@fault("F10", KIND, "307 to another address", store="stub")
def moved_for_now(s: Scenario) -> None:
    """The SDK follows; what it finds elsewhere is never taken for the chunk."""
    headers = {"Location": f"{s.stub.endpoint_url}/elsewhere"}
    stores, loads = put_and_get(
        s, Fault(key=CHUNKS, status=307, code="TemporaryRedirect", headers=headers)
    )
    s.prove(s.answered("PUT", 307) and s.answered("GET", 307), "PUT and GET answered 307")
    expect(stores, STORED, UNAVAILABLE, DENIED, Outcome.SHED)
    expect(loads, Outcome.WRONG_SIZE, Outcome.CORRUPT, UNAVAILABLE, DENIED, Outcome.SHED)


@fault("F11", KIND, "403 RequestTimeTooSkewed", store="stub")
def clock_skew(s: Scenario) -> None:
    """Failed, not loaded; works again once the clocks agree."""
    stores, loads = put_and_get(
        s, Fault(key=CHUNKS, status=403, code="RequestTimeTooSkewed", times=40)
    )
    s.prove(s.answered("PUT", 403) and s.answered("GET", 403), "PUT and GET answered 403")
    expect(stores, DENIED, UNAVAILABLE, Outcome.SHED)
    expect(loads, DENIED, UNAVAILABLE, Outcome.SHED)


@fault("F12", KIND, "403 instead of 404 for a missing key", store="stub")
def forbidden_not_missing(s: Scenario) -> None:
    """A miss, never a hit; no breaker opens and other keys go on."""
    good = s.engine.stored(4)
    missing = s.engine.new_keys(4)
    hashes = [key[:-4].hex() for key in missing]
    rules = [
        s.stub.add(Fault(key=f"*{each}.bin", status=403, code="AccessDenied")) for each in hashes
    ]
    verdicts = s.engine.look_up(missing)
    s.engine.load(missing)
    expect(s.engine.settle(), DENIED, Outcome.MISSING)
    s.prove(s.answered("HEAD", 403) >= 4, f"{s.answered('HEAD', 403)} HEAD answered 403")
    if Presence.PRESENT in verdicts:
        raise AssertionError(f"a missing key was a hit: {verdicts}")
    s.engine.load(good)
    expect(s.engine.settle(), LOADED)
    for rule in rules:
        s.stub.remove(rule)
    s.over()


@fault("F13", KIND, "PUT denied while reads work", store="stub", gate=True)
def read_only(s: Scenario) -> None:
    """Stores fail until the write breaker sheds them, loads go on as before."""
    stores, loads = put_and_get(s, Fault(method="PUT", key=CHUNKS, status=403, code="AccessDenied"))
    s.prove(s.answered("PUT", 403) >= 4, f"{s.answered('PUT', 403)} PUT answered 403")
    expect(stores, DENIED, UNAVAILABLE, Outcome.SHED)
    expect(loads, LOADED)


@fault("F14", KIND, "the server is not there when the daemon starts", store="stub", started=False)
def late_server(s: Scenario) -> None:
    """Degraded service: attached at once, stores shed, lookups unknown; then it works by itself."""
    s.proxy.cut()
    s.make_daemon()
    s.daemon.start()
    s.add_engine().attach()
    wait_for(lambda: s.proxy.counters.refused, "a refused connection")
    s.prove(True, "the daemon's connections were reset at its start")
    s.engine.store(4)
    expect(s.engine.settle(), Outcome.SHED)
    if set(s.engine.look_up(s.engine.new_keys(2))) != {Presence.UNKNOWN}:
        raise AssertionError("lookups must be UNKNOWN without a store")
    s.proxy.fine()
    s.over()


@fault("F15", KIND, "the answer to the preflight's PUT is lost", store="stub", started=False)
def preflight_lost(s: Scenario) -> None:
    """The SDK gives that try up, and another preflight comes: the daemon does not stay degraded."""
    rule = s.stub.add(Fault(method="PUT", hang="start"))
    s.make_daemon()
    s.daemon.start()
    s.add_engine().attach()
    wait_for(lambda: s.stub.requests("PUT"), "the preflight's PUT")
    s.proxy.forget_peers()
    s.stub.remove(rule)
    s.prove(not s.info().store.ready, "the PUT's connection went silent")
    s.over()
    s.await_ready()
