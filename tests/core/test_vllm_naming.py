import pytest

from kvferry_server.core.errors import FailedPrecondition, InvalidArgument
from kvferry_server.core.naming import (
    MAX_VLLM_NAMESPACE_BYTES,
    Naming,
    check_vllm_namespace,
    object_name,
    space_name,
)
from kvferry_server.core.types import ObjectRef

FOLDER = "org_m@r=1+x y_0123456789ab_r0"


@pytest.mark.parametrize("good", ["", FOLDER, "_models_x_0123456789ab_r12", ".._0123456789ab_r0"])
def test_folders_that_vllm_writes_pass(good):
    check_vllm_namespace(good)


@pytest.mark.parametrize(
    "bad",
    [
        "a/b_0123456789ab_r0",
        "/m_0123456789ab_r0",
        "..",
        "m",
        "m_0123456789ab",
        "m_0123456789AB_r0",
        "m_0123456789ab_r0/..",
        "m_0123456789ab_r0\n",
        "a\nb_0123456789ab_r0",
        "m\0_0123456789ab_r0",
        "_0123456789ab_r0",
        "m" * MAX_VLLM_NAMESPACE_BYTES + "_0123456789ab_r0",
        "é" * (MAX_VLLM_NAMESPACE_BYTES // 2) + "_0123456789ab_r0",
    ],
)
def test_K06_folders_that_vllm_can_not_have_written_are_refused(bad):
    with pytest.raises(InvalidArgument) as refused:
        check_vllm_namespace(bad)
    assert refused.value.field == "vllm_namespace"


def test_each_naming_has_its_space():
    assert space_name(Naming.KVFERRY, "ns", FOLDER) == "ns"
    assert space_name(Naming.KVFERRY, "ns", "") == "ns"
    space = space_name(Naming.VLLM, "ns", "m_0123456789ab_r0")
    key = bytes.fromhex("abcdef0123") + b"\0\0\0\2"
    assert object_name(ObjectRef(space, key)) == "m_0123456789ab_r0/abc/de_g2/abcdef0123.bin"


def test_a_client_without_vllms_folder_is_refused_under_vllms_naming():
    with pytest.raises(FailedPrecondition) as refused:
        space_name(Naming.VLLM, "ns", "")
    assert refused.value.reason == "NO_VLLM_NAMESPACE"
