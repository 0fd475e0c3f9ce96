"""Telemetry that nobody reads takes everything."""

from kvferry_server.core.telemetry import SILENCE, Answer, Checked, Verb
from kvferry_server.core.types import JobKind


def test_silence_takes_every_measurement():
    SILENCE.queue_waited(JobKind.STORE, 1.0)
    SILENCE.transfer_ended(JobKind.LOAD, 1.0)
    SILENCE.probe_ended(1.0)
    SILENCE.call_ended("Lookup", "OK", 1.0)
    SILENCE.lease_lost()
    SILENCE.requests_ended(Verb.HEAD, Answer.NOT_FOUND, 3)
    SILENCE.load_checked(Checked.VERIFIED)
    SILENCE.credentials_expire(None)
