"""Whose names the sessions' objects bear, from the lease on."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from kvferry.v1 import admin_pb2

from .harness import Region, attach_request, running

FOLDER = "org_model_0123456789ab_r0"


@pytest.mark.parametrize(("naming", "space"), [("kvferry", "model"), ("vllm", FOLDER)])
def test_the_naming_chooses_between_the_clients_two_names(socket_dir: Path, naming, space):
    with running(socket_dir, naming=naming) as world:
        world.attach(vllm_namespace=FOLDER)
        [session] = world.admin().ListSessions(admin_pb2.ListSessionsRequest()).sessions
        assert session.namespace == space


def test_vllms_naming_refuses_a_client_that_sends_none(socket_dir: Path):
    region = Region.make()
    with running(socket_dir, naming="vllm") as world:
        reply = world.try_attach(attach_request(), [region.descriptor])
        assert reply.error.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        assert reply.error.reason == "NO_VLLM_NAMESPACE"
    region.close()
