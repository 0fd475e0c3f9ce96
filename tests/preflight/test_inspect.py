"""What the inspector says of one object after a failed transfer."""

from __future__ import annotations

import threading

import pytest

from kvferry_server.adapters.s3_inspect import MEMORY_SECONDS, S3Inspector
from kvferry_server.adapters.s3_types import Credentials, Dialect, S3Settings
from kvferry_server.adapters.stored_checksums import ObjectFacts
from kvferry_server.core.types import TransferStatus
from tests.support.fault_server import Fault


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inspector(fault_server, clock):
    settings = S3Settings(fault_server.bucket, "pre", fault_server.endpoint_url)
    inspector = S3Inspector(settings, Dialect(), Credentials("key", "secret"), clock)
    yield inspector
    inspector.close()


def test_the_size_of_an_object(inspector, fault_server):
    fault_server.put("pre/a/b.bin", bytes(1234))
    assert inspector.facts_of("a/b.bin") == ObjectFacts(1234)
    assert inspector.classify_load("a/b.bin") is TransferStatus.UNAVAILABLE
    assert inspector.classify_store("a/b.bin") is TransferStatus.UNAVAILABLE


def test_an_absent_object(inspector):
    assert inspector.facts_of("none") is None
    assert inspector.classify_load("none") is TransferStatus.MISSING
    assert inspector.classify_store("none") is TransferStatus.UNAVAILABLE


def test_S04_a_403_is_a_refusal_and_no_outage(inspector, fault_server):
    fault_server.add(Fault(method="HEAD", key="pre/x", status=403))
    assert inspector.classify_load("x") is TransferStatus.DENIED
    assert inspector.classify_store("x") is TransferStatus.DENIED
    assert inspector.classify_load("y") is TransferStatus.MISSING


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(drop="start"), Fault(status=429)])
def test_a_failing_endpoint_is_asked_once_a_second(inspector, fault_server, clock, fault):
    rule = fault_server.add(fault)
    answers = [inspector.classify_load(f"x{number}") for number in range(20)]
    assert answers == [TransferStatus.UNAVAILABLE] * 20
    assert inspector.facts_of("x") is None
    assert len(fault_server.requests()) == 1
    fault_server.remove(rule)
    clock.now += MEMORY_SECONDS
    assert inspector.classify_load("x") is TransferStatus.MISSING


def test_many_threads_wait_for_one_timeout(inspector, fault_server):
    fault_server.add(Fault(hang="start"))
    answers: list[TransferStatus] = []
    threads = [
        threading.Thread(target=lambda: answers.append(inspector.classify_load("x")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [TransferStatus.UNAVAILABLE] * 8
    assert len(fault_server.requests()) == 1


def test_a_stopped_server(inspector, fault_server):
    fault_server.stop()
    assert inspector.classify_load("x") is TransferStatus.UNAVAILABLE
