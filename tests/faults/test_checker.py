"""The checker notices what it is there for, and the network does what it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from kvferry_client import JobKind, JobResult, Outcome
from tests.support.tcp_proxy import TcpProxy

from .content import Ledger, Region, content_of, key_in_name, key_of

KEY = key_of(1)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(Region(slots=4))


def run(ledger: Ledger, kind: JobKind, outcome: Outcome, data: bytes, job: int = 1) -> int:
    """One job on one slot that holds `data` when it is reported; the slot."""
    [slot] = ledger.take_slots(1)
    ledger.submitted(job, kind, [KEY], [slot])
    ledger.region.write(slot, data)
    ledger.reported([JobResult(job, kind, (outcome,))])
    return slot


def test_right_jobs_leave_a_clean_tally(ledger: Ledger):
    run(ledger, JobKind.LOAD, Outcome.LOADED, content_of(KEY))
    run(ledger, JobKind.LOAD, Outcome.MISSING, bytes(ledger.region.chunk), job=2)
    ledger.check_all()
    tally = ledger.tally
    assert (tally.submitted, tally.reported, tally.wrong_loads, tally.wrong_slots) == (2, 2, 0, 0)


def test_a_loaded_chunk_with_one_wrong_byte_is_noticed(ledger: Ledger):
    run(ledger, JobKind.LOAD, Outcome.LOADED, content_of(KEY)[:-1] + b"?")
    assert ledger.tally.wrong_loads == 1


def test_a_store_that_changed_its_slot_is_noticed(ledger: Ledger):
    run(ledger, JobKind.STORE, Outcome.STORED, bytes(ledger.region.chunk))
    assert ledger.tally.wrong_loads == 1


@pytest.mark.parametrize("place", [0, 30_000, -1])
def test_a_byte_that_changes_after_the_report_is_noticed(ledger: Ledger, place: int):
    slot = run(ledger, JobKind.LOAD, Outcome.UNAVAILABLE, bytes(ledger.region.chunk))
    changed = bytearray(ledger.region.read(slot))
    changed[place] ^= 1
    ledger.region.write(slot, bytes(changed))
    ledger.check_all()
    assert ledger.tally.wrong_slots == 1


def test_a_result_that_comes_twice_or_out_of_the_blue_is_noticed(ledger: Ledger):
    run(ledger, JobKind.LOAD, Outcome.MISSING, bytes(ledger.region.chunk))
    ledger.reported([JobResult(1, JobKind.LOAD, (Outcome.MISSING,))])
    ledger.reported([JobResult(9, JobKind.LOAD, (Outcome.MISSING,))])
    assert (ledger.tally.reported_twice, ledger.tally.reported_unknown) == (1, 1)


def test_names_of_objects_lead_back_to_their_keys():
    name = f"p/faults/000/00_g0/{KEY[:-4].hex()}.bin"
    assert key_in_name(name) == KEY
    assert key_in_name("p/.kvferry-preflight/x.bin") is None


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(4096):
                connection.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=carry, args=[connection], daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"word")
    return connection.recv(100)


def test_the_network_goes_silent_and_is_cut_and_comes_back(echo: int):
    with TcpProxy(echo) as proxy, contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            made = socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
            return stack.enter_context(made)

        first = connect()
        assert ask(first) == b"word"
        proxy.silent()
        first.settimeout(0.3)
        with pytest.raises(TimeoutError):
            ask(first)
        proxy.fine()
        with pytest.raises(TimeoutError):
            ask(first)
        assert ask(connect()) == b"word"
        assert proxy.counters.swallowed_bytes == 8
        second = connect()
        assert ask(second) == b"word"
        proxy.cut()
        with pytest.raises(ConnectionError):
            second.recv(100)
        with pytest.raises(ConnectionError):
            ask(connect())
        proxy.slow(delay_seconds=0.01)
        assert ask(connect()) == b"word"
        assert proxy.counters.delayed_pieces == 2
        assert (proxy.counters.refused, proxy.counters.reset) == (1, 3)
