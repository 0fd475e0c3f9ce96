"""`kvferry pause`, `resume`, `jobs` and `completion`, and a watched status in a real terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from kvferry_client import Outcome
from tests.cli.harness import COMMAND, attached, environment, key, kvferry, result_of, wait_for
from tests.support.fault_server import Fault


def test_paused_stores_are_shed_at_once_and_loads_go_on(serve):
    daemon = serve()
    daemon.wait_ready()
    where = ("--socket-dir", str(daemon.sockets))
    with attached(daemon.sockets) as client:
        assert result_of(client, client.store([key(1)], [0])).outcomes == (Outcome.STORED,)
        done = kvferry("pause", "stores", *where)
        assert (done.status, done.out) == (0, "stores paused, loads and lookups on\n")
        assert result_of(client, client.store([key(2)], [0])).outcomes == (Outcome.SHED,)
        assert result_of(client, client.load([key(1)], [1])).outcomes == (Outcome.LOADED,)
        assert "paused    stores" in kvferry("status", *where).out
        assert kvferry("pause", "loads", *where).out == "stores paused, loads and lookups paused\n"
        assert result_of(client, client.load([key(1)], [1])).outcomes == (Outcome.SHED,)
        assert kvferry("resume", "all", *where).out == "stores on, loads and lookups on\n"
        assert result_of(client, client.store([key(2)], [0])).outcomes == (Outcome.STORED,)
        assert result_of(client, client.load([key(2)], [1])).outcomes == (Outcome.LOADED,)


def test_the_log_level_changes_at_run_time(serve):
    daemon = serve()
    daemon.wait_ready()
    where = ("--socket-dir", str(daemon.sockets))
    assert kvferry("log-level", "debug", *where).out == "debug (was info)\n"
    kvferry("status", *where)
    assert "GetServerInfo: OK after" in daemon.log
    assert kvferry("log-level", "warning", *where).out == "warning (was debug)\n"
    assert kvferry("log-level", "loud", *where).status == 2


def test_a_switch_without_a_daemon_fails_in_one_line(tmp_path):
    done = kvferry("pause", "all", "--socket-dir", str(tmp_path))
    assert done.status == 1
    assert "no daemon listens" in done.err


@pytest.mark.parametrize("what", [(), ("everything",)])
def test_a_switch_needs_to_know_what(what):
    done = kvferry("pause", *what)
    assert done.status == 2
    assert done.err.count("\n") == 1
    assert "everything" not in done.err


def test_jobs_in_words_and_as_json(serve, s3):
    daemon = serve("--store-url", f"s3://{s3.bucket}/p", env=environment(**s3.environment()))
    daemon.wait_ready()
    where = ("--socket-dir", str(daemon.sockets))
    assert kvferry("jobs", *where).out == "no jobs\n"
    rule = s3.add(Fault(method="PUT", key="*.bin", delay=30))
    with attached(daemon.sockets) as client:
        job = client.store([key(1), key(2)], [0, 1])
        wait_for(lambda: s3.counters().in_flight == 2)
        head, line = kvferry("jobs", *where).out.splitlines()
        assert head.startswith("job  session   kind   queued  in transfer  ended")
        assert line.split()[2:6] == ["store", "0", "2", "0"]
        [found] = json.loads(kvferry("jobs", "--json", *where).out)["jobs"]
        assert (found["job_id"], found["active_chunks"]) == (str(job), 2)
        session = found["session_id"]
        same = kvferry("jobs", "--session", session[:6], *where).out.splitlines()[1]
        assert same.split()[:6] == line.split()[:6]
        nobody = kvferry("jobs", "--session", "zzz", *where)
        assert nobody.status == 1
        assert "0 sessions have an id that starts so" in nobody.err
        s3.remove(rule)
        result_of(client, job)


def test_watched_jobs_as_json_are_one_line_each(serve):
    daemon = serve()
    daemon.wait_ready()
    command = [*COMMAND, "jobs", "--watch", "--json", "--socket-dir", str(daemon.sockets)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout
        assert [json.loads(process.stdout.readline()) for _ in range(2)] == [{"jobs": []}] * 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def complete(line: str) -> list[str]:
    """What bash offers at the end of a command line."""
    words = line.split(" ")
    script = (
        'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvferry; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", kvferry("completion", "bash").out, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()


def test_bash_completes_commands_options_and_values():
    assert complete("kvferry st") == ["status"]
    assert set(complete("kvferry pause ")) >= {"stores", "loads", "all", "--socket-dir"}
    assert complete("kvferry status --w") == ["--watch"]
    assert complete("kvferry completion f") == ["fish"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_have_no_syntax_error(shell, tmp_path):
    done = kvferry("completion", shell)
    assert done.status == 0
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(done.out)
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)
    for word in ("pause", "stores", "--watch", "serve"):
        assert word in done.out


@pytest.mark.skipif(not shutil.which("tmux"), reason="no tmux")
def test_a_watched_status_in_a_terminal(serve, tmp_path):
    """Redraws in place, shows a stopped daemon and its successor, and leaves the screen as it was.

    With KVFERRY_SCREENSHOTS=DIR the screens are kept there.
    """
    daemon = serve()
    daemon.wait_ready()
    name = f"kvferry-{uuid.uuid4().hex[:8]}"
    tmux = ["tmux", "-L", name, "-f", "/dev/null"]
    shots = Path(os.environ.get("KVFERRY_SCREENSHOTS", tmp_path))
    env = environment(TERM="xterm-256color", PYTHONPATH=str(Path.cwd()), LANG="C.UTF-8")

    def screen() -> str:
        shown = [*tmux, "capture-pane", "-p", "-t", "main"]
        return subprocess.run(shown, env=env, capture_output=True, text=True, check=True).stdout

    def keep(step: str) -> None:
        (shots / f"watch-{step}.txt").write_text(screen())

    watch = f"{' '.join(COMMAND)} status --watch --socket-dir {daemon.sockets}"
    size = ("-x", "100", "-y", "30")
    subprocess.run([*tmux, "new-session", "-d", "-s", "main", *size, "sh"], env=env, check=True)
    try:
        type_line(tmux, env, "echo before")
        wait_for(lambda: "before" in screen())
        type_line(tmux, env, watch)
        wait_for(lambda: "none: no engine has attached" in screen())
        keep("idle")
        with attached(daemon.sockets) as client:
            result_of(client, client.store([key(1)], [0]))
            wait_for(lambda: "engine-of-test" in screen() and "chunks_store_stored" in screen())
            keep("busy")
            lines = screen().splitlines()
            assert sum(line.startswith("kvferry ") for line in lines) == 1, "drawn over itself"
            result_of(client, client.store([key(2)], [0]))
            wait_for(lambda: any(line.split() == STORED for line in screen().splitlines()))
        daemon.terminate()
        wait_for(lambda: "no daemon listens" in screen())
        assert screen().strip().endswith("waiting")
        keep("gone")
        serve().wait_ready(starts=2)
        wait_for(lambda: "none: no engine has attached" in screen())
        subprocess.run([*tmux, "send-keys", "-t", "main", "C-c"], env=env, check=True)
        wait_for(lambda: "before" in screen() and "no engine has attached" not in screen())
        type_line(tmux, env, "echo status=$?")
        wait_for(lambda: "status=0" in screen())
        type_line(tmux, env, f"{watch} &")
        wait_for(lambda: "no engine has attached" in screen())
        type_line(tmux, env, "kill $!; wait $!; echo killed=$?")
        wait_for(lambda: "killed=143" in screen() and "status=0" in screen())
        flag = [*tmux, "display-message", "-p", "-t", "main", "#{cursor_flag}"]
        assert subprocess.run(flag, env=env, capture_output=True, check=True).stdout == b"1\n"
    finally:
        subprocess.run([*tmux, "kill-server"], env=env, check=False)


STORED = ["chunks_store_stored", "2"]


def type_line(tmux: list[str], env: dict[str, str], text: str) -> None:
    subprocess.run([*tmux, "send-keys", "-t", "main", text, "Enter"], env=env, check=True)
