"""What the command line accepts: commands, options and the help that teaches them.

Imports the standard library and the version. No message repeats an argument that it didn't expect.
"""

from __future__ import annotations

import argparse
from typing import Never

from kvferry_server import __version__

WRONG_USE = 2

COMMANDS = (
    "serve",
    "demo",
    "check",
    "status",
    "jobs",
    "health",
    "pause",
    "resume",
    "log-level",
    "lifecycle",
    "bench",
    "completion",
    "version",
)
SWITCHES = ("stores", "loads", "all")
LEVELS = ("debug", "info", "warning", "error")
SHELLS = ("bash", "zsh", "fish")

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
  kvferry bench s3://bucket/prefix                how fast is it, chunk size by chunk size
  kvferry pause stores                            stop writing, without a restart

exit status: 0 fine, 1 failed, 2 wrong use or configuration; `check` has more, see its help"""

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

_STATUS = """\
Ask a running daemon for its store, breakers and pauses, its chunks in transfer and in the queues,
the attached engines, the open jobs and the counters. Counters that are 0 are left out, but for
--json."""

_STATUS_EXAMPLES = """\
examples:
  kvferry status
  kvferry status --watch
  kvferry status --json | jq .server.store"""

_CHECK = """\
Try a store for real, without a daemon: name, TCP, TLS, clock, credentials (their source and expiry,
never their values), bucket, each permission, then the store's own preflight (put, get, compare and
delete by the way that chunks go), and how long a lookup and 8 MiB take. For what is wrong it names
the setting or the IAM statement to change. Leaves nothing behind. Without STORE_URL: the
configured store."""

_CHECK_EXAMPLES = """\
examples:
  kvferry check file:///var/lib/kvferry/store
  AWS_ENDPOINT_URL_S3=http://127.0.0.1:9000 kvferry check s3://bucket/prefix --json

exit status: 0 fine, 2 wrong use or configuration, else the class of the first problem:
  10 DNS          13 clock         16 region        19 endpoint (no S3, or busy)
  11 connection   14 credentials   17 permission    20 too slow
  12 TLS          15 bucket        18 checksum or addressing    21 disk    1 other"""

_DEMO = """\
Start a daemon on a store in a temporary directory, attach a shared-memory region from a
second process, store 256 chunks of 1 MiB, wipe the region, look up, load, and compare every
byte. Leaves nothing behind, but the 256 objects in the store that --store-url names."""

_PAUSE = """\
Stop stores, loads or both at once, without a restart of daemon or engine. What is queued is shed,
what runs finishes. Engines go on with cache misses. Paused loads pause lookups too. Lasts until
`kvferry resume` or the daemon's end. Shows in `kvferry status`, on the status page and as the
metric kvferry_paused."""

_RESUME = """\
Take back what `kvferry pause` did."""

_JOBS = """\
List the jobs that are not yet acknowledged by their engines, oldest first."""

_JOBS_EXAMPLES = """\
examples:
  kvferry jobs --watch
  kvferry jobs --json | jq '.jobs[] | select(.kind == "JOB_KIND_LOAD")'"""

_LOG_LEVEL = """\
Change how much a running daemon writes, until its next start. Lines that repeat are counted instead
of written, except at level debug."""

_LIFECYCLE = """\
Show the bucket's lifecycle rules that touch the store's objects. With --days, show what they would
be if objects expired so many days after they were stored; with --apply as well, write that. Other
rules of the bucket stay as they are. The daemon takes an expired object as a miss."""

_LIFECYCLE_EXAMPLES = """\
examples:
  kvferry lifecycle s3://bucket/prefix
  kvferry lifecycle s3://bucket/prefix --days 14
  kvferry lifecycle s3://bucket/prefix --days 14 --apply"""

_BENCH = """\
Measure a store: rates of stores and loads at three chunk sizes, and lookups, through a daemon of
the command's own; beside it the same store without a daemon in between, in turn, pair by pair.
Compares every byte, removes what it stored. Without STORE_URL: a temporary directory."""

_BENCH_EXAMPLES = """\
examples:
  kvferry bench
  kvferry bench s3://bucket/prefix --pairs 10 --megabytes 128
  kvferry bench file:///var/lib/kvferry/store --json | jq '.sizes[].load_mb_per_second'

What the figures mean for the chunk size, and when loading beats computing: docs/performance.md"""

_COMPLETION = """\
Print a script that completes commands and options in a shell."""

_COMPLETION_EXAMPLES = """\
examples:
  source <(kvferry completion bash)
  kvferry completion zsh > ~/.zfunc/_kvferry
  kvferry completion fish > ~/.config/fish/completions/kvferry.fish"""

_HEALTH = """\
Ask the daemon through its socket whether it serves (grpc.health.v1). For exec probes: exit
status 0 if it does, 1 if not."""


class Parser(argparse.ArgumentParser):
    """argparse's, but its errors repeat no value."""

    def error(self, message: str) -> Never:
        """Like argparse's, but without the values it quotes."""
        unquoted = message.partition(" '")[0].rstrip(":")
        self.exit(WRONG_USE, f"{self.prog}: {unquoted}; see `{self.prog} --help`\n")


class _CommandsHelp(argparse.RawDescriptionHelpFormatter):
    """argparse's, whose first column forgets that commands are indented."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = max(map(len, COMMANDS)) + 2 * self._indent_increment


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="kvferry",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=_CommandsHelp,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"kvferry {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )

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
    check.add_argument("url", nargs="?", metavar="STORE_URL", help="the store to try")
    _flag(check, "--config", "FILE", "TOML file that names the store")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    status = add("status", "show what a running daemon does", _STATUS, _STATUS_EXAMPLES)
    _add_live(status)
    _add_shown(status)
    jobs = add("jobs", "list the jobs of a running daemon", _JOBS, _JOBS_EXAMPLES)
    _add_live(jobs)
    _add_shown(jobs)
    _flag(jobs, "--session", "ID", "only this session's; the start of its id is enough")
    for name, summary, about in (
        ("pause", "stop stores, loads or both, now", _PAUSE),
        ("resume", "take a pause back", _RESUME),
    ):
        switch = add(name, summary, about)
        switch.add_argument("what", choices=SWITCHES, metavar="stores|loads|all", help="which")
        _add_live(switch)
    _add_live(add("health", "probe a running daemon", _HEALTH))
    level = add("log-level", "change how much a daemon logs, now", _LOG_LEVEL)
    level.add_argument("level", choices=LEVELS, metavar="|".join(LEVELS), help="least severe level")
    _add_live(level)
    lifecycle = add("lifecycle", "expire old chunks", _LIFECYCLE, _LIFECYCLE_EXAMPLES)
    lifecycle.add_argument("url", nargs="?", metavar="STORE_URL", help="default: as configured")
    _flag(lifecycle, "--config", "FILE", "TOML file that names the store")
    _flag(lifecycle, "--days", "N", "expire objects so many days after they were stored")
    lifecycle.add_argument("--apply", action="store_true", help="write the rule")
    lifecycle.add_argument("--json", action="store_true", help="print one JSON object")
    bench = add("bench", "measure a store", _BENCH, _BENCH_EXAMPLES)
    bench.add_argument("url", nargs="?", metavar="STORE_URL", help="the store to measure")
    _flag(bench, "--pairs", "N", "pairs of measurements at each chunk size (default: 5)", "5")
    _flag(bench, "--megabytes", "N", "MiB to move in each measurement (default: 64)", "64")
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    completion = add("completion", "print a completion script", _COMPLETION, _COMPLETION_EXAMPLES)
    completion.add_argument("shell", choices=SHELLS, metavar="bash|zsh|fish", help="which shell")
    add("version", "print the version", "Print the version.")
    return parser


_SOCKETS = (
    "(default: /run/kvferry for root, else $XDG_RUNTIME_DIR/kvferry, or "
    "~/.local/state/kvferry/run where XDG_RUNTIME_DIR is unset)"
)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _flag(
        parser,
        "--config",
        "FILE",
        "TOML file (default, if it exists: /etc/kvferry/config.toml for root, else "
        "$XDG_CONFIG_HOME/kvferry/config.toml, where XDG_CONFIG_HOME is ~/.config if unset)",
    )
    _flag(parser, "--store-url", "URL", "where the objects are: file:///dir or s3://bucket/prefix")
    _flag(parser, "--socket-dir", "DIR", f"directory of the sockets {_SOCKETS}")
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
    _flag(parser, "--socket-dir", "DIR", f"directory of the daemon's sockets {_SOCKETS}")


def _add_shown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object a reading")
    parser.add_argument("--watch", action="store_true", help="redraw each second until Ctrl-C")


def _flag(
    parser: argparse.ArgumentParser, name: str, metavar: str, text: str, default: str | None = None
) -> None:
    parser.add_argument(name, metavar=metavar, help=text, default=default)
