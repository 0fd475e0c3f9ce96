"""Errors on the wire."""

from __future__ import annotations

import pytest
from google.rpc import error_details_pb2

from kvferry_server.core import errors
from kvferry_server.service.status import code_of, cut, status_of


def subclasses(kind: type) -> set[type]:
    direct = set(kind.__subclasses__())
    return direct.union(*(subclasses(each) for each in direct)) if direct else direct


def test_every_error_class_has_a_status_code():
    found = subclasses(errors.KvferryError)
    assert len(found) >= 9
    for kind in found:
        assert code_of(kind("text", reason="REASON")).value[0] in range(1, 17)


def test_an_unmapped_class_is_noticed():
    with pytest.raises(StopIteration):
        code_of(errors.KvferryError("text", reason="REASON"))


def test_the_status_carries_reason_and_field():
    status = status_of(errors.InvalidArgument("wrong", reason="BAD_KEY", field="keys[0]"))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == (
        "BAD_KEY",
        "kvferry",
        {"field": "keys[0]"},
    )


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 2048, "x" * 2049, "é" * 20_000, "%" * 20_000, "\n" * 5000, "\ud800"]
)
def test_texts_are_cut_to_what_headers_take(text: str):
    result = cut(text)
    encoded = sum(
        1 if " " <= c <= "~" and c != "%" else 3 * len(c.encode("utf-8", "replace")) for c in result
    )
    assert encoded <= 2048
    assert result == text or result.endswith(" ...")
    if len(text) <= 100:
        assert result == text
