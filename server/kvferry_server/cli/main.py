"""The `kvferry` command line: what it accepts, and which module does it.

Owns the parser and the exit status: 0 fine, 1 failed, 2 wrong use or configuration. Commands are
imported when they run, so that `health` loads neither NIXL nor boto3. No message repeats an
argument that it didn't expect.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Sequence
from typing import Never, Protocol, cast

from kvferry_server import __version__
from kvferry_server.core.errors import ConfigError, KvferryError

from .names import nearest

FINE, FAILED, WRONG_USE = 0, 1, 2

COMMANDS = ("serve", "demo", "check", "status", "health", "version")

_FLAG = re.compile(r"--[a-z][a-z-]*")

_ABOUT = """\
kvferry keeps vLLM's KV cache in an object store, without the store's keys in vLLM.

One daemon (`kvferry serve`) runs beside the engines of a machine or pod. Engines hand it a file
descriptor of their shared memory over a Unix socket; it moves chunks between that memory and
a directory or an S3 bucket."""

_EXAMPLES = """\
first steps:
  kvferry demo                                    see chunks go out and come back, verified
  kvferry check s3://bucket/prefix                can this store be used, and if not, why
  kvferry serve --store-url s3://bucket/prefix    run the daemon
  kvferry status --watch                          what a running daemon does

exit status: 0 fine, 1 failed, 2 wrong use or configuration"""

_SERVE = """\
Run the daemon until SIGTERM or SIGINT. It then removes its sockets, refuses new work, finishes
what runs (for timeouts.shutdown_seconds at most) and exits with 0.

Each setting is looked for in this order: flag, environment variable, TOML file, default.
A store that can't be reached doesn't stop the daemon: lookups miss, stores are dropped,
and it tries again in the background. S3 credentials, region and endpoint come from AWS's own
variables and files (AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL_S3, ...), never from here."""

_SERVE_EXAMPLES = """\
environment: KVFERRY_CONFIG KVFERRY_STORE_URL KVFERRY_SOCKET_DIR KVFERRY_HTTP_LISTEN
             KVFERRY_LOG_LEVEL KVFERRY_LOG_FORMAT

a whole configuration file:
  [store]
  url = "s3://bucket/prefix"

All keys with their defaults: docs/configuration.md, or `python -m kvferry_server.cli.reference`."""

_STATUS_EXAMPLES = """\
examples:
  kvferry status
  kvferry status --watch
  kvferry status --json | jq .server.store"""

_CHECK = """\
Try a store for real, without a daemon: put, head, get, compare and delete one small object, and
say which settings work or what is wrong. Without STORE_URL: the configured store."""

_CHECK_EXAMPLES = """\
examples:
  kvferry check file:///var/lib/kvferry/store
  AWS_ENDPOINT_URL_S3=http://127.0.0.1:9000 kvferry check s3://bucket/prefix --json"""

_DEMO = """\
Start a daemon on a store in a temporary directory, attach a shared-memory region from a
second process, store 256 chunks of 1 MiB, wipe the region, look up, load, and compare every
byte. Leaves nothing behind."""

_HEALTH = """\
Ask the daemon through its socket whether it serves (grpc.health.v1). For exec probes: exit
status 0 if it does, 1 if not."""


class _Command(Protocol):
    def run(self, args: argparse.Namespace) -> int: ...


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Never:
        """Like argparse's, but without the values it quotes."""
        unquoted = message.partition(" '")[0].rstrip(":")
        self.exit(WRONG_USE, f"{self.prog}: {unquoted}; see `{self.prog} --help`\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="kvferry",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"kvferry {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, about: str, examples: str = "") -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=summary,
            description=about,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    _add_serve(add("serve", "run the daemon", _SERVE, _SERVE_EXAMPLES))
    demo = add("demo", "see chunks go out and come back, verified", _DEMO)
    _flag(demo, "--store-url", "URL", "use this store instead of a temporary directory")
    check = add("check", "try a store, without a daemon", _CHECK, _CHECK_EXAMPLES)
    check.add_argument("store_url", nargs="?", metavar="STORE_URL", help="the store to try")
    _flag(check, "--config", "FILE", "TOML file that names the store")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    status = add(
        "status", "show what a running daemon does", "Ask a running daemon.", _STATUS_EXAMPLES
    )
    _add_live(status)
    status.add_argument("--json", action="store_true", help="print one JSON object a reading")
    status.add_argument("--watch", action="store_true", help="redraw each second until Ctrl-C")
    _add_live(add("health", "probe a running daemon", _HEALTH))
    add("version", "print the version", "Print the version.")
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--config", "FILE", "TOML file (default: /etc/kvferry/config.toml if it exists)")
    _flag(parser, "--store-url", "URL", "where the objects are: file:///dir or s3://bucket/prefix")
    _flag(parser, "--socket-dir", "DIR", "directory of the sockets (default: /run/kvferry)")
    _flag(parser, "--http-listen", "HOST:PORT", "metrics and health (default: 127.0.0.1:9477)")
    _flag(parser, "--log-level", "LEVEL", "debug, info, warning or error (default: info)")
    _flag(parser, "--log-format", "FORMAT", "text or json (default: text)")
    parser.add_argument(
        "--debug-attach-by-name",
        action="store_true",
        help="let clients attach shared memory by name over gRPC; for debugging only",
    )


def _add_live(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--config", "FILE", "TOML file that names the socket directory")
    _flag(
        parser, "--socket-dir", "DIR", "directory of the daemon's sockets (default: /run/kvferry)"
    )


def _flag(parser: argparse.ArgumentParser, name: str, metavar: str, text: str) -> None:
    parser.add_argument(name, metavar=metavar, help=text)


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
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return WRONG_USE
    if arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        parser.error(f"no such command{_guess(arguments[0], COMMANDS)}")
    args, unexpected = parser.parse_known_args(arguments)
    if unexpected:
        parser.error(_unexpected(unexpected, args))
    command = cast("_Command", importlib.import_module(f"kvferry_server.cli.{args.command}"))
    try:
        status = command.run(args)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"kvferry: {error.message}", file=sys.stderr)
        return WRONG_USE
    except KvferryError as error:
        print(f"kvferry: {error.message}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return status
