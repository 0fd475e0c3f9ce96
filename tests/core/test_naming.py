import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.errors import InvalidArgument
from kvferry_server.core.naming import (
    MAX_NAMESPACE_CHARS,
    MIN_KEY_BYTES,
    check_namespace,
    object_name,
)
from kvferry_server.core.types import ObjectRef

block_keys = st.binary(min_size=MIN_KEY_BYTES, max_size=40)
spaces = st.from_regex(r"[A-Za-z0-9._-]{1,8}(/[A-Za-z0-9._-]{1,8})?", fullmatch=True)


def test_the_name_fans_out_as_vllms_file_mapper_does():
    name = object_name(ObjectRef("t/ns", bytes.fromhex("abcdef0123") + b"\0\0\0\2"))
    assert name == "t/ns/abc/de_g2/abcdef0123.bin"


def test_the_shortest_key_has_a_name_without_empty_parts():
    assert object_name(ObjectRef("ns", b"\xab\0\0\0\1")) == "ns/ab/_g1/ab.bin"


@given(spaces, block_keys)
def test_K05_names_use_harmless_characters_only(space, key):
    name = object_name(ObjectRef(space, key))
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._/-")
    assert all(name.split("/"))


@given(st.lists(block_keys, min_size=2, max_size=2, unique=True))
def test_two_keys_never_share_a_name(pair):
    first, second = (object_name(ObjectRef("ns", each)) for each in pair)
    assert first != second


@pytest.mark.parametrize("good", ["m", "Model_1.5-b", "a" * MAX_NAMESPACE_CHARS, "..x", "a.."])
def test_namespaces_that_pass(good):
    check_namespace(good)


@pytest.mark.parametrize(
    "bad",
    ["", "a" * (MAX_NAMESPACE_CHARS + 1), ".", "..", "...", "a/b", "/a", "../x", "a b", "a\n", "é"],
)
def test_K06_namespaces_that_could_leave_the_prefix_are_refused(bad):
    with pytest.raises(InvalidArgument) as refused:
        check_namespace(bad)
    assert refused.value.field == "namespace"
    assert refused.value.reason == "BAD_NAMESPACE"
