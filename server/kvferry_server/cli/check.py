"""`kvferry check`: the doctor. Tries one store, without a daemon, and says what to change.

Owns the order (the looks of the store's doctor, its preflight, a timed sample) and the words. The
exit status is the class of the first problem.
"""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Protocol

from kvferry_server.adapters.findings import PARTS, Cause, Finding, Level
from kvferry_server.core.ports import CheckStep, Preflight

from . import logs
from .options import Config
from .sample import Measure
from .settings import load_settings
from .text import printable
from .wire import build_doctor, build_store

_MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}
_LOOKED_AT = frozenset({"endpoint", "credentials", "bucket", "directory", "temporary files"})
"""Steps of a preflight that the doctor has taken more closely before."""


class Doctor(Protocol):
    """What looks at one kind of store."""

    def look(self) -> list[Finding]:
        """Blocking: everything up to what can't be got past."""

    def trial(self) -> AbstractContextManager[str]:
        """URL of the store that may be tried out inside the block."""

    def delete(self, *names: str) -> None:
        """Remove objects by their names, if that is allowed."""


def run(args: argparse.Namespace) -> int:
    """Try the store and say what was found.

    Returns:
        0 if the store can be used, else the `Cause` of the first problem.

    Raises:
        ConfigError: the URL or a setting is wrong.
    """
    config = load_settings(args).config
    logs.set_up("critical" if args.json else "error", "text")
    doctor = build_doctor(config)
    found = doctor.look()
    settings = ""
    if not _failed(found):
        with doctor.trial() as url:
            settings, more = _try_out(for_trial(config, url), doctor)
        found += more
    print(_as_json(config, found, settings) if args.json else _as_text(config, found, settings))
    failed = _failed(found)
    return int(failed.cause or Cause.OTHER) if failed else 0


def for_trial(config: Config, url: str) -> Config:
    """A daemon's checksums are none of a check's business."""
    return replace(
        config,
        store=replace(config.store, url=url),
        integrity=replace(config.integrity, catalog_directory=""),
    )


def _try_out(config: Config, doctor: Doctor) -> tuple[str, list[Finding]]:
    """The store's own preflight, and a sample if it passes; its settings, and what was found."""
    store = build_store(config)
    try:
        preflight = store.preflight()
        found = _findings(preflight)
        if preflight.ready:
            found += Measure(store, config.timeouts).run(doctor.delete)
    finally:
        store.close()
    return preflight.settings, found


def _findings(preflight: Preflight) -> list[Finding]:
    steps = [step for step in preflight.steps if not step.passed or step.name not in _LOOKED_AT]
    return [_finding(step, preflight.problem) for step in steps]


def _finding(step: CheckStep, problem: str) -> Finding:
    if step.passed:
        return Finding(step.name, Level.OK, step.detail, seconds=step.seconds)
    part, _, text = problem.partition(": ")
    detail, _, advice = text.rpartition(": ")
    cause = PARTS.get(part, Cause.OTHER)
    return Finding(step.name, Level.FAIL, detail or text, advice, cause, step.seconds)


def _failed(found: list[Finding]) -> Finding | None:
    return next((each for each in found if each.level is Level.FAIL), None)


def _problem(found: list[Finding]) -> str:
    failed = _failed(found)
    if failed is None:
        return ""
    return f"{failed.name}: {failed.detail}" + (f": {failed.advice}" if failed.advice else "")


def _as_json(config: Config, found: list[Finding], settings: str) -> str:
    failed = _failed(found)
    return json.dumps(
        {
            "url": config.store.url,
            "ready": failed is None,
            "settings": settings,
            "problem": _problem(found),
            "cause": _word(failed.cause) if failed else "",
            "steps": [
                asdict(each) | {"cause": _word(each.cause), "passed": each.level is not Level.FAIL}
                for each in found
            ],
        }
    )


def _word(cause: Cause | None) -> str:
    return cause.name.lower() if cause else ""


def _as_text(config: Config, found: list[Finding], settings: str) -> str:
    width = max((len(each.name) for each in found), default=0)
    lines = []
    for each in found:
        lines.append(
            f"{_MARKS[each.level]}  {each.name:<{width}}  "
            f"{each.seconds * 1000:6.0f} ms  {printable(each.detail)}"
        )
        if each.advice:
            lines.append(f"      {'':<{width}}             {printable(each.advice)}")
    problem = _problem(found)
    verdict = f"not usable: {problem}" if problem else f"ready: {settings}"
    return "\n".join([*lines, f"store {printable(config.store.url)}: {printable(verdict)}"])
