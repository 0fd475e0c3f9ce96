"""The status page without a browser: its words, numbers, drawings and what it allows itself.

What a browser makes of it: tests/browser (`make browser-test`).
"""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from kvferry.v1 import admin_pb2
from kvferry_server.adapters.telemetry import Recorder
from kvferry_server.cli.history import SAMPLE_SECONDS, SAMPLES, History, Sample, sample
from kvferry_server.cli.pages import degraded
from kvferry_server.cli.snapshot import take_snapshot
from kvferry_server.cli.sparkline import HEIGHT, WIDTH, Line, draw
from kvferry_server.cli.status_page import render_page
from kvferry_server.cli.status_style import POLICY
from kvferry_server.core.telemetry import Checked
from kvferry_server.core.types import JobKind

CLOSED, OPEN = admin_pb2.BREAKER_STATE_CLOSED, admin_pb2.BREAKER_STATE_OPEN


def info(**changes) -> admin_pb2.GetServerInfoResponse:
    store = admin_pb2.StoreStatus(
        url="s3://bucket/p", ready=True, read_breaker=CLOSED, write_breaker=CLOSED
    )
    made = admin_pb2.GetServerInfoResponse(version="1.2.3", store=store, **changes)
    made.counters["chunks_store_stored"] = 1234
    made.counters["verdicts_present_index"] = 3
    made.counters["verdicts_absent_probe"] = 1
    return made


def page(shown: admin_pb2.GetServerInfoResponse, recorder: Recorder | None = None) -> str:
    snapshot = take_snapshot(shown, (recorder or Recorder()).read())
    history = History()
    history.add(Sample(0.0, 0, 0, 0, 0.0, 0, 0))
    rates = history.rates(sample(snapshot, 10.0))
    return render_page(shown, snapshot, rates, degraded(shown), 1000.0)


def test_the_numbers_are_in_the_page_itself():
    recorder = Recorder()
    recorder.transfer_ended(JobKind.LOAD, 0.25)
    recorder.load_checked(Checked.CORRUPT)
    text = page(info(sessions=3, dead_engine_bytes=2048), recorder)
    for name, value in (
        ("stored", "1,234"),
        ("corrupt", "1"),
        ("present, from index", "3"),
    ):
        assert f"<th scope=row>{name}</th><td>{value}</td>" in text
    assert '<div class="name">engines attached</div><div class="value">3</div>' in text
    assert '<div class="name">held for dead engines</div><div class="value">2 KiB</div>' in text
    assert "<b>75 %</b>" in text
    assert "<b>250.0 ms</b>" in text
    assert "kvferry: working" in text


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"stores_paused": True}, "paused", "stores are paused"),
        ({"ready": False, "problem": "no bucket"}, "store not ready", "no bucket"),
        ({"write_breaker": OPEN}, "degraded", "the breaker for writing is open"),
    ],
)
def test_what_is_wrong_is_said(change, state, said):
    shown = info()
    for name, value in change.items():
        setattr(shown if name == "stores_paused" else shown.store, name, value)
    text = page(shown)
    assert f"kvferry: {state}" in text
    assert said in text


def test_switches_and_breakers_are_in_the_metrics():
    shown = info(stores_paused=True)
    shown.store.write_breaker = OPEN
    values = take_snapshot(shown, Recorder().read()).values
    assert (values["paused", ("store",)], values["paused", ("load",)]) == (1, 0)
    states = ("closed", "open", "half_open")
    assert [values["breaker_state", ("write", state)] for state in states] == [0, 1, 0]
    assert [values["breaker_state", ("read", state)] for state in states] == [1, 0, 0]


def test_what_others_chose_is_escaped():
    shown = info()
    shown.store.url = "s3://<script>alert(1)</script>"
    shown.store.ready = False
    shown.store.problem = '<img src=x onerror="x">'
    text = page(shown)
    assert "<script>alert" not in text
    assert "<img" not in text


def test_the_page_needs_nothing_from_elsewhere_and_allows_only_itself():
    text = page(info())
    assert not re.search(r'(src|href)="(?!data:|metrics|readyz)', text)
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        [body] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in POLICY
    assert "default-src 'none'" in POLICY
    assert '<noscript><meta http-equiv="refresh"' in text


def test_rates_between_samples():
    history = History()
    history.add(Sample(0.0, 0, 0, 0, 0.0, 0, 0))
    history.add(Sample(5.0, 1000, 500, 2, 0.5, 3, 1))
    first, second = history.rates(Sample(10.0, 1000, 500, 2, 0.5, 3, 1))
    assert (first.stored, first.loaded, first.load_seconds) == (200.0, 100.0, 0.25)
    assert first.hit_ratio == 0.75
    assert (second.stored, second.load_seconds, second.hit_ratio) == (0.0, None, None)


def test_the_history_is_bounded():
    history = History()
    for number in range(10 * SAMPLES):
        history.add(Sample(number * SAMPLE_SECONDS, 0, 0, 0, 0.0, 0, 0))
    now = Sample(10 * SAMPLES * SAMPLE_SECONDS, 0, 0, 0, 0.0, 0, 0)
    assert len(history.rates(now)) == SAMPLES + 1
    assert len(history._samples) == SAMPLES + 1


def test_a_reading_right_after_a_sample_takes_its_place():
    history = History()
    history.add(Sample(0.0, 0, 0, 0, 0.0, 0, 0))
    history.add(Sample(5.0, 0, 0, 0, 0.0, 0, 0))
    assert len(history.rates(Sample(5.1, 0, 0, 0, 0.0, 0, 0))) == 1
    assert History().rates(Sample(5.1, 0, 0, 0, 0.0, 0, 0)) == []


def test_a_line_with_a_gap_is_drawn_in_two_pieces():
    svg = draw([Line("load", [(0, 0.0), (0.5, 2.0), (0.6, None), (1, 1.0)])], 2.0, "a & b")
    first, second = re.findall(r'<polyline class="load" points="([^"]+)"/>', svg)
    assert first == f"0.0,{HEIGHT - 1}.0 {WIDTH / 2},4.0"
    assert len(second.split()) == 2, "a lone value is a short dash"
    assert "a &amp; b" in svg


def test_a_chart_of_nothing_is_a_base_line():
    assert "polyline" not in draw([Line("load", [])], 0.0, "nothing")
