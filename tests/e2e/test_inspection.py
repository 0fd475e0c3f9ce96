"""The looks at processes find what is there, or the proof's "no secret" would mean nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .inspection import NAMESPACES, environment, namespaces, pids_that_know, process_tree, real_uid

SECRET = "a-secret-" + "of-this-test"
"""In two parts, so that this file's own bytes in memory don't count."""
READER = "import sys; kept = sys.stdin.readline(); print(flush=True); sys.stdin.read()"


@contextmanager
def child(*arguments: str, known: str = "", **variables: str) -> Iterator[int]:
    """A Python that has read `known` and keeps it in memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", READER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )
    with process:
        process.stdin.write(f"{known}\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


def test_a_secret_in_memory_alone_is_found():
    with child(known=SECRET) as knows, child(known="nothing") as knows_not:
        assert pids_that_know([knows, knows_not], SECRET) == [knows]


def test_a_secret_in_the_arguments_is_found():
    with child(SECRET) as knows, child() as knows_not:
        assert pids_that_know([knows, knows_not], SECRET) == [knows]


def test_a_secret_in_the_environment_is_found():
    with child(AWS_SECRET_ACCESS_KEY=SECRET) as knows, child() as knows_not:
        assert pids_that_know([knows, knows_not], SECRET) == [knows]
        assert environment(knows)["AWS_SECRET_ACCESS_KEY"] == SECRET
        assert "AWS_SECRET_ACCESS_KEY" not in environment(knows_not)


def test_the_tree_holds_children_of_children():
    script = "sleep 60 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        sleeper = int(shell.stdout.readline())
        assert process_tree(shell.pid) == [shell.pid, sleeper]
        assert {shell.pid, sleeper} < set(process_tree(os.getpid()))
        os.kill(sleeper, 15)


def test_a_child_lives_where_its_parent_does():
    with child() as pid:
        assert set(namespaces(pid)) == set(NAMESPACES)
        assert namespaces(pid) == namespaces(os.getpid())
        assert real_uid(pid) == os.getuid()
