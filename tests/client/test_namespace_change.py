"""A client that goes on under another namespace."""

from __future__ import annotations

from collections.abc import Callable

from kvferry_client import Client
from tests.client.conftest import eventually
from tests.client.scripted import ScriptedDaemon

MakeClient = Callable[..., Client]


def test_a_change_ends_the_session_and_attaches_under_the_new_name(
    daemon: ScriptedDaemon, make_client: MakeClient
) -> None:
    client = make_client(namespace="before", vllm_namespace="v")
    assert client.wait_attached(10)
    assert daemon.sessions[0].request.vllm_namespace == "v"
    client.change_namespace("after", "")
    eventually(lambda: [s.request.namespace for s in daemon.sessions] == ["after"])
    assert daemon.sessions[0].request.vllm_namespace == ""
    assert client.wait_attached(10)


def test_a_change_while_there_is_no_daemon_counts(
    daemon: ScriptedDaemon, make_client: MakeClient
) -> None:
    daemon.die()
    client = make_client(namespace="before")
    client.change_namespace("after", "")
    daemon.start()
    assert client.wait_attached(10)
    assert [session.request.namespace for session in daemon.sessions] == ["after"]
