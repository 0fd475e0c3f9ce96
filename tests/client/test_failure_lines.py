"""Calls to the daemon that fail: one line with the status, then only the counter."""

from __future__ import annotations

import grpc
import pytest

from kvferry_client import Client
from kvferry_client.shared import NOTICE_SECONDS, Shared

from .conftest import eventually, key, replies, results
from .scripted import ScriptedDaemon

WORDS = "a call to the kvferry daemon failed"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if WORDS in line]


@pytest.mark.parametrize("method", ["Store", "Lookup", "Poll"])
def test_J12_the_first_failed_call_of_a_streak_is_logged_with_its_status(
    daemon: ScriptedDaemon, client: Client, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    eventually(lambda: daemon.sessions)
    daemon.fail(method, grpc.StatusCode.UNAVAILABLE, times=3)
    for number in range(3 if method == "Lookup" else 1):
        if method == "Lookup":
            client.lookup([key(number)])
            replies(client, 1)
        else:
            client.store([key(number)], [number])
            results(client, 1)
    eventually(lambda: client.counters["calls_failed"] == 3)
    [line] = lines(caplog)
    assert "UNAVAILABLE" in line


def test_J12_another_streak_soon_after_is_only_counted(
    daemon: ScriptedDaemon, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        daemon.fail("Lookup", grpc.StatusCode.INTERNAL)
        for _ in range(2):
            client.lookup([key(1)])
            replies(client, 1)
    assert client.counters["calls_failed"] == 2
    assert len(lines(caplog)) == 1


def test_J12_a_streak_is_news_again_after_an_answer_and_some_time(client: Client) -> None:
    shared: Shared = client._shared
    eventually(lambda: shared.session is not None)
    session = shared.session
    assert session is not None
    with shared.lock:
        assert shared.call_failed(session, 100.0)
        assert not shared.call_failed(session, 101.0 + NOTICE_SECONDS)
        shared.call_answered()
        assert not shared.call_failed(session, 99.0 + NOTICE_SECONDS)
        shared.call_answered()
        assert shared.call_failed(session, 101.0 + NOTICE_SECONDS)


def test_calls_that_fail_because_the_session_ends_are_no_news(client: Client) -> None:
    shared: Shared = client._shared
    eventually(lambda: shared.session is not None)
    session = shared.session
    assert session is not None
    with shared.lock:
        session.ending = True
        assert not shared.call_failed(session, 100.0)
        session.ending = False
    assert client.counters["calls_failed"] == 1
