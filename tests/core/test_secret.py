"""A secret shows only where it is asked for by name."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle

import pytest

from kvferry_server.core.secret import Secret

TEXT = "kEeP-tHiS-oUt"


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        "{}".format,
        "{:>40}".format,
        "{!r}".format,
        lambda secret: f"{secret}",
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031 - a way to print like the others
        lambda secret: str([secret, {"key": secret}]),
        lambda secret: logging.LogRecord("", 0, "", 0, "%s", (secret,), None).getMessage(),
        lambda secret: str(dir(secret)),
    ],
)
def test_no_way_of_printing_shows_it(show):
    assert TEXT not in show(Secret(TEXT))


@pytest.mark.parametrize(
    "use",
    [
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        json.dumps,
        hash,
        vars,
        lambda secret: secret == TEXT,
        lambda secret: secret != Secret(TEXT),
        lambda secret: {secret: 1},
        lambda secret: "x" + secret,
        bytes,
        list,
    ],
)
def test_what_would_spread_it_is_refused_without_it(use):
    with pytest.raises(TypeError) as caught:
        use(Secret(TEXT))
    assert TEXT not in str(caught.value)


def test_a_dataclass_with_a_secret_does_not_copy_it_by_accident():
    @dataclasses.dataclass
    class Holder:
        secret: Secret

    with pytest.raises(TypeError):
        dataclasses.asdict(Holder(Secret(TEXT)))


def test_it_is_there_for_who_asks():
    secret = Secret(TEXT)
    assert secret.reveal() == TEXT
    assert secret.same_as(Secret(TEXT))
    assert not secret.same_as(Secret("other"))
    assert secret
    assert not Secret("")
