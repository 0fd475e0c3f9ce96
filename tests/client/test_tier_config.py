"""The tier's options, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from kvferry_client.tier_config import TierConfig, parse


def test_defaults() -> None:
    assert parse({}) == (TierConfig(), [])
    config = TierConfig()
    assert (config.socket_dir, config.lookup_timeout_s) == ("/run/kvferry", 2.0)
    assert (config.enable_kv_events, config.locality) == (False, "REMOTE")


def test_all_options() -> None:
    options = {
        "socket_dir": "/s",
        "model_revision": "abc",
        "cache_epoch": "2",
        "lookup_timeout_s": 1,
        "enable_kv_events": True,
        "locality": None,
    }
    assert parse(options) == (TierConfig(**options), [])


@pytest.mark.parametrize(
    "name",
    [
        "access_key",
        "secret_key",
        "aws_secret_access_key",
        "session_token",
        "AWS_ACCESS_KEY_ID",
        "password",
        "credentials",
        "Api-Key",
    ],
)
def test_X02_credentials_are_refused_without_their_value(name: str) -> None:
    for options in ({name: "hunter2"}, {"extra": {"deep": {name: "hunter2"}}}):
        with pytest.raises(ValueError, match=name) as caught:
            parse(options)
        assert "hunter2" not in str(caught.value)
        assert "daemon" in str(caught.value)


def test_store_config_moves_to_the_daemon() -> None:
    with pytest.raises(ValueError, match="move it to the daemon"):
        parse({"store_config": {"bucket": "b"}})


def test_unknown_options_warn_by_name_only() -> None:
    _, warnings = parse({"socket_dirr": "hunter2", "prefix": "hunter2", "io_threads": 4})
    assert len(warnings) == 3
    assert "did you mean 'socket_dir'" in warnings[0]
    assert "lookup_timeout_s" in warnings[1]
    assert "io_threads" in warnings[2]
    assert "hunter2" not in "".join(warnings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("socket_dir", 5),
        ("socket_dir", ""),
        ("model_revision", None),
        ("cache_epoch", 3),
        ("lookup_timeout_s", 0),
        ("lookup_timeout_s", -1),
        ("lookup_timeout_s", 61),
        ("lookup_timeout_s", True),
        ("lookup_timeout_s", "2"),
        ("enable_kv_events", "yes"),
        ("locality", "NEAR"),
    ],
)
def test_wrong_values_name_their_key(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        parse({name: value})
