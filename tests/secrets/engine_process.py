"""The engine's side as a process of its own: moves chunks until it is told to end.

`python -m tests.secrets.engine_process SOCKET_DIR`. Prints each outcome and the last error; a line
on standard input makes it go on with loads, end-of-file ends it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cli.harness import attached, key, result_of


def say(*words: object) -> None:
    """Print one line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    with attached(Path(sys.argv[1])) as client:
        job = client.store([key(number) for number in range(4)], [0, 1, 2, 3])
        say(result_of(client, job))
        sys.stdin.readline()
        job = client.load([key(number) for number in range(6)], [4, 5, 6, 7, 8, 9])
        say(result_of(client, job), client.last_error)
        sys.stdin.read()


if __name__ == "__main__":
    main()
