"""A refused engine tries again twice a second; the log says so once, then counts."""

from __future__ import annotations

import logging
import os

import grpc
import pytest

from kvferry_server.core.errors import InvalidArgument, PermissionDenied
from kvferry_server.service.refusals import (
    FORGET_SECONDS,
    MAX_REMEMBERED,
    SUMMARY_SECONDS,
    Refusals,
)

from .harness import Region, World, attach_request

DENIED = PermissionDenied("uid 7 may not attach", reason="PEER_NOT_ALLOWED")
BAD = InvalidArgument("namespace must not be empty", reason="BAD_FIELD")


def test_J12_the_first_refusal_is_a_line_the_others_a_count_a_minute():
    refusals = Refusals()
    lines = [refusals.line(7, DENIED, second / 2) for second in range(241)]
    assert {second / 2: line for second, line in enumerate(lines) if line} == {
        0.0: "refused uid 7: uid 7 may not attach",
        SUMMARY_SECONDS: "refused uid 7 120 more times in 60 s: uid 7 may not attach",
        2 * SUMMARY_SECONDS: "refused uid 7 120 more times in 60 s: uid 7 may not attach",
    }


def test_another_reason_and_another_peer_have_lines_of_their_own():
    refusals = Refusals()
    assert refusals.line(7, DENIED, 0.0)
    assert refusals.line(7, BAD, 1.0) == "refused uid 7: namespace must not be empty"
    assert refusals.line(8, BAD, 1.0) == "refused uid 8: namespace must not be empty"
    assert not refusals.line(8, BAD, 2.0)


def test_after_a_long_silence_it_is_news_again():
    refusals = Refusals()
    refusals.line(7, DENIED, 0.0)
    refusals.line(7, DENIED, 1.0)
    assert refusals.line(7, DENIED, FORGET_SECONDS) == "refused uid 7: uid 7 may not attach"


def test_what_is_remembered_is_bounded():
    refusals = Refusals()
    for uid in range(MAX_REMEMBERED + 1):
        assert refusals.line(uid, DENIED, 0.0)
    assert refusals.line(0, DENIED, 1.0)
    assert not refusals.line(MAX_REMEMBERED, DENIED, 1.0)


def test_J12_a_daemon_that_refuses_again_and_again_logs_once(
    world: World, caplog: pytest.LogCaptureFixture
):
    region = Region.make()
    caplog.set_level(logging.WARNING, "kvferry_server.service.lease")
    for _ in range(5):
        reply = world.try_attach(attach_request(namespace=".."), [region.descriptor])
        assert reply.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    region.close()
    assert [line for line in caplog.messages if "refused" in line] == [
        f"lease: refused uid {os.geteuid()}: {reply.error.message}"
    ]
