"""A daemon that is slow to greet: the machine is busy, and the first call must wait for it."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

from kvferry_client import Client, Presence

from .conftest import key, replies
from .scripted import ScriptedDaemon

GREETING_DELAY_SECONDS = 0.6


def pipe(source: socket.socket, target: socket.socket) -> None:
    while data := source.recv(65_536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


def greet_late(listener: socket.socket, behind: Path) -> None:
    """Connect the first caller to the socket `behind`, after a while."""
    caller, _ = listener.accept()
    with caller, socket.socket(socket.AF_UNIX) as server:
        server.connect(str(behind))
        time.sleep(GREETING_DELAY_SECONDS)
        ways = [
            threading.Thread(target=pipe, args=ends)
            for ends in ((caller, server), (server, caller))
        ]
        for way in ways:
            way.start()
        for way in ways:
            way.join()


def test_the_first_lookup_waits_for_a_slow_greeting(
    daemon: ScriptedDaemon, client: Client, socket_dir: Path
) -> None:
    daemon.objects[key(1)] = b""
    behind = socket_dir / "behind.sock"
    (socket_dir / "kvferry.sock").rename(behind)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_dir / "kvferry.sock"))
        listener.listen()
        greeter = threading.Thread(target=greet_late, args=(listener, behind))
        greeter.start()
        client.lookup([key(1)])
        [reply] = replies(client, 1)
        assert reply.verdicts == (Presence.PRESENT,)
        client.close()
        greeter.join(10)
