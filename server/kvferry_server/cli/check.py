"""`kvferry check`: a preflight of one store, without a daemon."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from kvferry_server.core.ports import Preflight

from . import logs
from .settings import load_settings
from .text import printable
from .wire import build_store


def run(args: argparse.Namespace) -> int:
    """Try the store and say what was found.

    Returns:
        0 if the store can be used, else 1.

    Raises:
        ConfigError: the URL or a setting is wrong.
    """
    config = load_settings(args).config
    logs.set_up("warning", "text")
    store = build_store(config)
    try:
        found = store.preflight()
    finally:
        store.close()
    print(_as_json(store.url, found) if args.json else _as_text(store.url, found))
    return 0 if found.ready else 1


def _as_json(url: str, found: Preflight) -> str:
    return json.dumps({"url": url, **asdict(found)})


def _as_text(url: str, found: Preflight) -> str:
    width = max((len(step.name) for step in found.steps), default=0)
    lines = [
        f"{'ok  ' if step.passed else 'FAIL'}  {step.name:<{width}}  "
        f"{step.seconds * 1000:6.0f} ms  {printable(step.detail)}"
        for step in found.steps
    ]
    verdict = f"ready: {found.settings}" if found.ready else f"not usable: {found.problem}"
    return "\n".join([*lines, f"store {printable(url)}: {printable(verdict)}"])
