"""The table of mutants in docs/guarantees.md."""

from __future__ import annotations

from .catalogue import MUTANTS, REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "guarantees.md"
BEGIN = "<!-- mutants: made by `make mutants` -->"
END = "<!-- end of mutants -->"


def table() -> str:
    """Every mutant with its killing test."""
    lines = ["| id | what was taken away | file | the test that fails |", "|---|---|---|---|"]
    for each in MUTANTS:
        path, *_, name = each.test.split("::")
        link = f"[`{name}`](../{path})"
        file = each.file.rsplit("/", 1)[-1]
        lines.append(f"| {each.ident} | {each.fence} | `{file}` | {link} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """The page with a fresh table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
