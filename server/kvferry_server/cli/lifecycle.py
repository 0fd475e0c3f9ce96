"""`kvferry lifecycle`: shows and writes the bucket's rule that expires old chunks."""

from __future__ import annotations

import argparse
import json

from kvferry_server.core.errors import ConfigError

from . import logs
from .settings import load_settings
from .store_url import S3Url, parse_store_url
from .text import printable

MOST_DAYS = 36_500


def run(args: argparse.Namespace) -> int:
    """Show the rules, or what `--days` would change, or with `--apply` change it.

    Raises:
        ConfigError: wrong use, or a store without a prefix or bucket.
        FailedPrecondition: the bucket can't be reached or refuses.
    """
    config = load_settings(args).config
    logs.set_up("error", "text")
    days = _days(args)
    where = parse_store_url(config.store.url)
    if not isinstance(where, S3Url):
        raise ConfigError(
            "a directory has no lifecycle rules; delete what is old from it, for example by "
            "`find DIRECTORY -name '*.bin' -mtime +7 -delete`: the daemon takes it as a miss",
            reason="NO_BUCKET",
        )
    if not where.prefix:
        raise ConfigError(
            "the store has no prefix, so a rule would expire everything in the bucket: give the "
            "store a prefix of its own, s3://bucket/prefix",
            reason="NO_PREFIX",
        )
    from kvferry_server.adapters.s3_credentials import settings_from_environment  # noqa: PLC0415
    from kvferry_server.adapters.s3_lifecycle import Lifecycle  # noqa: PLC0415

    with Lifecycle(settings_from_environment(where.bucket, where.prefix)) as lifecycle:
        rules = lifecycle.rules()
        wanted = rules if days is None else lifecycle.merged(rules, days)
        if args.apply:
            lifecycle.write(wanted)
            rules = lifecycle.rules()
            wanted = rules
        shown = lifecycle.concerning(wanted)
        if args.json:
            print(json.dumps({"rules": shown, "applied": bool(args.apply)}, default=str))
        else:
            print(_text(shown, len(wanted) - len(shown)))
            if args.apply:
                print("written; this is what the bucket has now")
            elif wanted != rules:
                print("nothing was written; add --apply to write this")
    return 0


def _days(args: argparse.Namespace) -> int | None:
    if args.days is None:
        if args.apply:
            raise ConfigError("--apply needs --days", reason="NO_DAYS", field="--days")
        return None
    if not args.days.isdecimal() or not 1 <= int(args.days) <= MOST_DAYS:
        raise ConfigError(
            f"--days must be a whole number from 1 to {MOST_DAYS:,}", reason="DAYS", field="--days"
        )
    return int(args.days)


def _text(shown: list[dict[str, object]], others: int) -> str:
    lines = [printable(json.dumps(rule, default=str)) for rule in shown]
    if not shown:
        lines.append("no rule touches this store: its objects are kept for ever")
    if others:
        lines.append(f"{others} more rules of the bucket are about other objects and stay")
    return "\n".join(lines)
