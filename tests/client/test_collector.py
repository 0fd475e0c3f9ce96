"""The collector's switch belongs to the whole process: threads and forks leave it as it was."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from kvferry_client.collector import uncollected

from .test_fork import fork, reap


@pytest.fixture(autouse=True)
def _collector_on() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


@uncollected
def short(number: int) -> bool:
    """What a tier's method is: over in microseconds."""
    return gc.isenabled() and number >= 0


def test_many_threads_leave_the_collector_on() -> None:
    """Two that overlap: the second finds it off, and must not leave it off after the first."""
    left_on = []

    def many() -> None:
        for number in range(4_000):
            short(number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            threads = [threading.Thread(target=many) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            left_on.append(gc.isenabled())
            gc.enable()
    finally:
        sys.setswitchinterval(before)
    assert all(left_on), left_on
    assert not short(1)


def test_a_call_inside_another_leaves_it_off_until_the_outer_one_ends() -> None:
    @uncollected
    def outer() -> tuple[bool, bool]:
        return short(1), gc.isenabled()

    assert outer() == (False, False)
    assert gc.isenabled()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_meanwhile_has_it_on() -> None:
    inside, over = threading.Event(), threading.Event()

    @uncollected
    def long() -> None:
        inside.set()
        over.wait(30)

    thread = threading.Thread(target=long)
    thread.start()
    assert inside.wait(10)

    def child() -> None:
        assert gc.isenabled()
        assert not short(1)
        assert gc.isenabled()

    try:
        assert reap(fork(child)) == 0
        assert not gc.isenabled()
    finally:
        over.set()
        thread.join()
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_left_as_it_was_found(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    assert not short(os.getpid())
    assert gc.isenabled() is enabled
