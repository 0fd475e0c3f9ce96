"""Turns a page into a script that runs its lines as they stand.

A line that serves is put into the background until the daemon is ready, as if it had a terminal of
its own. A line of a kind that can't run here has a stand-in or is left out. A configuration file
that the page shows under its path is written there. Each line's output follows a mark.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from .kinds import kind_of
from .pages import ROOT, Block, blocks, lines

MARK = "=== line: "
_SERVE = re.compile(r"(?:\w+=\S+ )*\S*kvferry serve\b.*")
_SHOWN_FILE = re.compile(r".*`(/etc/[\w./]+)`")
READY = """\
ready() {
    for _ in $(seq 600); do
        if grep -q ': ready: ' ~/serve.log; then return; fi
        kill -0 "$1" || break
        sleep 0.1
    done
    cat ~/serve.log >&2
    return 1
}
"""


def script_of(
    page: str,
    *,
    leave_out: Callable[[str], bool] = lambda _line: False,
    before: Mapping[str, str] | None = None,
) -> str:
    """The script of a page.

    Args:
        page: relative to the repository.
        leave_out: which lines not to run.
        before: what the page says in words only: commands, by the start of the line that they
            come before.
    """
    said = dict(before or {})
    parts = [READY]
    for block in blocks("bash", "console", "toml", "ini"):
        if block.name == page:
            parts += _parts(block, leave_out, said)
    if said:
        raise LookupError(f"{page} has no line that starts with {', '.join(said)}")
    return "\n".join(parts)


def _parts(block: Block, leave_out: Callable[[str], bool], said: dict[str, str]) -> list[str]:
    if block.language in ("toml", "ini"):
        shown = _SHOWN_FILE.match(block.before)
        if not shown:
            return []
        return [f"cat > {shown[1]} <<'END OF FILE'\n{block.text}END OF FILE"]
    parts = []
    for line in lines(block):
        parts += [said.pop(start) for start in list(said) if line.startswith(start)]
        if leave_out(line):
            continue
        parts += [f"echo {shlex.quote(MARK + line)}", runnable(line)]
    return parts


def runnable(line: str) -> str:
    """What runs in the place of a line: itself, but for those that serve or can't run here."""
    kind = kind_of(line)
    if kind is not None:
        socket_dir = re.search(r'"socket_dir": "([^"]+)"', line)
        return kind.stand_in.format(socket_dir=socket_dir[1] if socket_dir else "") or ":"
    if _SERVE.fullmatch(line):
        return f"{line} 2> ~/serve.log & ready $!"
    return line


def outputs(text: str) -> dict[str, str]:
    """What each line of a walk printed; equal lines together."""
    found: dict[str, str] = {}
    for part in text.split(MARK)[1:]:
        line, _, printed = part.partition("\n")
        found[line] = found.get(line, "") + printed
    return found


def shell_pages() -> list[str]:
    """Pages that show commands."""
    return sorted({block.name for block in blocks("bash", "console") if lines(block)})


__all__ = ["MARK", "ROOT", "outputs", "runnable", "script_of", "shell_pages"]
