"""Each page's commands run as they stand, in order, in a clean place; nothing is left unlooked at.

What needs a network is left to `make walk` (test_installs.py), what can't run here to kinds.py.
Links to other sites are not followed: there may be no network. Links within are checked in
tests/repo/test_docs.py.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from kvferry_server.cli.main import build_parser
from tests.repo.grpcurl_page import PAGE as GRPCURL_PAGE

from . import kinds, sandbox
from .pages import PAGES, ROOT, blocks, commands, inline, lines
from .script import READY, outputs, script_of, shell_pages
from .test_installs import FULLY_WALKED, leave_out

DAEMON = "kvferry serve 2> ~/serve.log & ready $!"
WALKED = {
    "README.md": "",
    "docs/cost.md": "",
    "docs/quickstart.md": "",
    "docs/runbook.md": DAEMON,
    "docs/vllm.md": DAEMON,
}
"""Pages, and what has to run before them."""
ELSEWHERE = {
    "docs/grpcurl.md": "tests/repo/test_grpcurl.py",
    "docs/systemd.md": "tests/walk/test_installs.py",
    "docs/install.md": "tests/walk/test_installs.py",
}
NAMES_ONLY = {"kvferry pause", "kvferry bench"}
"""Commands that a sentence names without arguments that they need, or that are planned."""
ENDS = {
    "kv/bin/kvferry check s3://bucket/prefix": "store s3://bucket/prefix: ready: path addressing",
    "kv/bin/kvferry status --socket-dir /run/kvferry": r"chunks_load_loaded +256\n",
    "kvferry lifecycle s3://bucket/prefix --days 14  ": "nothing was written; add --apply",
    "kvferry lifecycle s3://bucket/prefix --days 14 --apply": r"\nwritten",
    "kvferry pause all": "^stores paused, loads and lookups paused\n$",
    "kvferry status": r"store     file:///var/lib/kvferry/store: ready",
    "kvferry jobs": "^no jobs\n$",
    "kvferry check": "store file:///var/lib/kvferry/store: ready",
    "curl -s http://127.0.0.1:9477/readyz": "^ready\ndegraded: stores are paused\n",
}
"""What must be in the output of a line that starts so."""


@pytest.fixture(scope="module")
def place() -> None:
    if not sandbox.works():
        pytest.skip("no namespaces here: needs root, or user namespaces")


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("page", WALKED)
def test_a_page_works_as_it_stands(page: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "kv").symlink_to(sys.prefix)
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"
    start = f"ENGINE_PYTHON={sys.executable}\n{READY}{WALKED[page]}\n"
    done = sandbox.walk(start + script_of(page, leave_out=leave_out), tmp_path, path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_outputs(done.stdout)


def check_outputs(text: str) -> None:
    printed = outputs(text)
    assert printed
    for line, output in printed.items():
        for start, pattern in ENDS.items():
            if line.startswith(start) and (line == start or start.endswith((" ", "--apply"))):
                assert re.search(pattern, output), (line, output)


def test_every_line_of_every_page_is_run_or_of_a_kind_that_cannot_run() -> None:
    fetched = {bare(line) for page in FULLY_WALKED for line in lines_of(page)}
    unseen = []
    for page in shell_pages():
        if page in {*WALKED, *ELSEWHERE, *FULLY_WALKED}:
            continue
        unseen += [
            f"{page}: {line}"
            for line in lines_of(page)
            if kinds.kind_of(line) is None and bare(line) not in fetched
        ]
    assert unseen == []


def test_every_line_that_fetches_something_is_run_by_make_walk() -> None:
    fetched = {bare(line) for page in FULLY_WALKED for line in lines_of(page)}
    assert [
        f"{page}: {line}"
        for page in WALKED
        for line in lines_of(page)
        if leave_out(line) and bare(line) not in fetched
    ] == []


def bare(line: str) -> str:
    return line.partition(" #")[0].strip()


def lines_of(page: str) -> list[str]:
    return [
        line for block in blocks("bash", "console") if block.name == page for line in lines(block)
    ]


@pytest.mark.parametrize("kind", kinds.NOT_RUN, ids=lambda kind: kind.pattern)
def test_each_kind_that_cannot_run_is_used_and_has_a_test_instead(kind: kinds.Kind) -> None:
    assert any(kind.fits(line) for page in shell_pages() for line in lines_of(page))
    path, _, name = kind.instead.partition("::")
    assert (ROOT / path).is_file()
    assert f"def {name}(" in (ROOT / path).read_text() if name else True


def test_the_pages_that_are_run_elsewhere_are() -> None:
    assert GRPCURL_PAGE == ROOT / "docs" / "grpcurl.md"
    for page, path in ELSEWHERE.items():
        assert (ROOT / page).is_file()
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_in_sentences_are_whole(page: Path) -> None:
    for command in inline(page):
        if command not in NAMES_ONLY:
            build_parser().parse_args(shlex.split(command)[1:])


def test_options_of_docker_run_agree_with_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text())[
        "services"
    ]
    (daemon, engine) = (
        words
        for line in lines_of("docs/docker.md")
        for words in commands(line)
        if words[:2] == ["docker", "run"]
    )
    assert "--read-only" in daemon
    assert daemon[daemon.index("--cap-drop") + 1] == "ALL" == services["kvferry"]["cap_drop"][0]
    grace = services["kvferry"]["stop_grace_period"].removesuffix("s")
    assert daemon[daemon.index("--stop-timeout") + 1] == grace
    assert engine[engine.index("--user") + 1] == services["vllm"]["user"]
    mounts = [words[at + 1] for words in (daemon, engine) for at in _places(words, "-v")]
    sockets = [each.split(":")[1:] for each in mounts if each.startswith("kvferry-sockets:")]
    assert sockets == [["/run/kvferry"], ["/run/kvferry", "ro"]]
    assert "kvferry-state:/var/lib/kvferry" in mounts


def _places(words: list[str], flag: str) -> list[int]:
    return [at for at, word in enumerate(words) if word == flag]


def test_links_to_other_sites_are_secure_and_few() -> None:
    """They can't be followed here; this keeps their list in sight."""
    found = {
        link for page in PAGES for link in re.findall(r"\]\((\w+://[^)\s]+)\)", page.read_text())
    }
    assert found == {
        "https://github.com/fullstorydev/grpcurl",
        "https://keepachangelog.com/en/1.1.0/",
    }
