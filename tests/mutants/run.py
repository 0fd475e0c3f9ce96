"""`python -m tests.mutants.run`: builds each mutant and sees its test fail; prints the table.

Works on a copy of the tree; the original is only read. With ids as arguments only those are built;
otherwise the table goes into docs/guarantees.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .catalogue import MUTANTS, REPOSITORY, Mutant
from .report import DOCUMENT, with_table

AT_ONCE = 2
LIMIT_SECONDS = 240
TREES = ("proto", "server", "client", "tests", "tools", "docs", "deploy")
FILES = ("pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
PATIENCE = 3
"""How much longer than on the right tree a test may take before its hang counts as noticed."""
FAILED = 1
"""pytest's status if a test failed; anything else is no kill."""


def say(text: str) -> None:
    """One line to the person who runs this."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def copy_tree(target: Path) -> None:
    """What the tests need of this checkout."""
    for name in TREES:
        if (REPOSITORY / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
            shutil.copytree(REPOSITORY / name, target / name, ignore=ignored)
    for name in FILES:
        if (REPOSITORY / name).is_file():
            shutil.copy(REPOSITORY / name, target / name)


def run_test(tree: Path, test: str, limit_seconds: float = LIMIT_SECONDS) -> int:
    """The status of one test on a tree."""
    paths = os.pathsep.join(str(tree / name) for name in ("proto", "server", "client"))
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", test]
    try:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=limit_seconds,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return FAILED  # a hang is noticed too


def kill(mutant: Mutant) -> tuple[Mutant, str]:
    """Build a mutant and run its test; empty text if the test passes before and fails after."""
    with tempfile.TemporaryDirectory(prefix="kvferry-mutant-") as directory:
        tree = Path(directory)
        copy_tree(tree)
        file = tree / mutant.file
        right = file.read_text()
        if right.count(mutant.old) != 1:
            return mutant, f"its text occurs {right.count(mutant.old)} times"
        began = time.monotonic()
        if (status := run_test(tree, mutant.test)) != 0:
            return mutant, f"its test does not pass on the right tree (pytest status {status})"
        file.write_text(right.replace(mutant.old, mutant.new))
        status = run_test(tree, mutant.test, PATIENCE * (time.monotonic() - began) + 20)
        return mutant, "" if status == FAILED else f"survived (pytest status {status})"


def main() -> int:
    """Return 1 if a mutant survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*", help="such as M01; all if none is given")
    ids = parser.parse_args().ids
    chosen = [each for each in MUTANTS if not ids or each.ident in ids]
    began = time.monotonic()
    survivors = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, problem in pool.map(kill, chosen):
            say(f"{mutant.ident}  {problem or 'killed by ' + mutant.test}")
            if problem:
                survivors.append(mutant.ident)
    if not ids:
        DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
    good = len(chosen) - len(survivors)
    seconds = time.monotonic() - began
    say(f"{good} of {len(chosen)} mutants killed in {seconds:.0f} s {' '.join(survivors)}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
