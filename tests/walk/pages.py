"""What the documentation shows: its fenced blocks, and the commands in them.

Imports the standard library only.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^( *)```([\w-]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(kvferry [a-z][^`]*)`(?!`)")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Args:
        page: its file.
        language: as the fence says; may be empty.
        text: without the fence and its indentation.
        before: the line of text above it.
    """

    page: Path
    language: str
    text: str
    before: str

    @property
    def name(self) -> str:
        """The page, relative to the repository."""
        return self.page.relative_to(ROOT).as_posix()

    def __str__(self) -> str:
        return f"{self.name}:{self.language}:{self.text[:30]!r}"


def blocks(*languages: str) -> list[Block]:
    """All blocks, or those of some languages, in the order of pages and lines."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if not languages or match[2] in languages:
                above = text[: match.start()].rstrip().rpartition("\n")[2]
                found.append(Block(page, match[2], textwrap.dedent(match[3]), above))
    return found


def lines(block: Block) -> list[str]:
    """The commands of a block; what a console block shows of the output is left out."""
    joined = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        return [line[2:] for line in joined if line.startswith("$ ")]
    return [line for line in joined if line.strip() and not line.startswith("#")]


def inline(page: Path) -> list[str]:
    """The `kvferry ...` commands in a page's sentences."""
    text = _FENCE.sub("", page.read_text())
    return [" ".join(found.split()) for found in _INLINE.findall(text)]


def commands(line: str) -> list[list[str]]:
    """The words of each command of a line, without redirections and variables before it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;"):
            found.append([])
        else:
            found[-1].append(word)
    return [cleaned for words in found if (cleaned := _without_prefix(words))]


def _without_prefix(words: list[str]) -> list[str]:
    while words and (re.match(r"\w+=", words[0]) or words[0] == "sudo"):
        words = words[1:]
        if words[:1] == ["-u"]:
            words = words[2:]
    return words
