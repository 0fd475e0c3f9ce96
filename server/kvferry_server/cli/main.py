"""The `kvferry` command line: which module runs a command, and what its end looks like.

Owns the exit status: 0 fine, 1 failed, 2 wrong use or configuration; `check` has more. Commands are
imported when they run, so that `health` loads neither NIXL nor boto3. No message repeats an
argument that it didn't expect.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from kvferry_server.core.errors import ConfigError, KvferryError

from . import logs, streams
from .names import nearest
from .parser import COMMANDS, WRONG_USE, build_parser

FINE, FAILED = 0, 1

_FLAG = re.compile(r"--[a-z][a-z-]*")


class _Command(Protocol):
    def run(self, args: argparse.Namespace) -> int: ...


def _unexpected(arguments: Sequence[str], args: argparse.Namespace) -> str:
    names = [found[0] for text in arguments if (found := _FLAG.match(text))]
    if not names:
        return f"{args.command} takes fewer arguments"
    known = ["--" + name.replace("_", "-") for name in vars(args)]
    return f"{args.command} has no {names[0]}{_guess(names[0], known)}"


def _guess(name: str, known: Sequence[str]) -> str:
    guess = nearest(name, known)
    return f"; did you mean {guess}?" if guess else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    streams.open_closed()
    streams.write_anything()
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        streams.drop_output()
    except KeyboardInterrupt:
        logs.last_words("interrupted")
    except OSError as error:
        streams.drop_output()
        logs.last_words(streams.explain(error))
    return FAILED


def _run(arguments: list[str]) -> int:
    parser = build_parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return WRONG_USE
    if arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        parser.error(f"no such command{_guess(arguments[0], COMMANDS)}")
    args, unexpected = parser.parse_known_args(arguments)
    if unexpected:
        parser.error(_unexpected(unexpected, args))
    module = args.command.replace("-", "_")
    try:
        command = cast("_Command", importlib.import_module(f"kvferry_server.cli.{module}"))
        return command.run(args)
    except ConfigError as error:
        logs.last_words(error.message)
        return WRONG_USE
    except KvferryError as error:
        logs.last_words(error.message)
        return FAILED
    except ModuleNotFoundError as error:
        logs.last_words(
            f"{error.name} is not installed: this environment has only kvferry's client; install "
            "kvferry[server] for the daemon and its commands"
        )
        return WRONG_USE
