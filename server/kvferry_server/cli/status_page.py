"""The read-only status page at `/`: what a daemon does and did in the last minutes, as HTML.

Owns the words and the arrangement; `status_style` owns the looks, `sparkline` the drawings. Reads
no clock and no socket. Everything from outside is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from kvferry.v1 import admin_pb2
from kvferry_server.adapters.metrics import Snapshot

from .history import WINDOW_SECONDS, Rates
from .sparkline import Line, draw
from .status_style import REFRESH_SECONDS, SCRIPT, STYLE
from .text import size, span

_DASH = "\N{EN DASH}"
_OUTCOMES = {
    "store": ("stored", "skipped_present", "shed", "unavailable", "denied"),
    "load": ("loaded", "missing", "corrupt", "unavailable", "denied"),
}
"""Outcomes that are shown even if they are 0."""


def render_page(
    info: admin_pb2.GetServerInfoResponse,
    snapshot: Snapshot,
    rates: Sequence[Rates],
    problems: Sequence[str],
    now: float,
) -> str:
    """The whole page.

    Args:
        info: the daemon's own snapshot.
        snapshot: the same with what was measured.
        rates: of the last minutes, oldest first.
        problems: what does not work as it should.
        now: Unix time in seconds.
    """
    state, css = _state(info, problems)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>kvferry: {state}</title>"
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_SECONDS * 2}"></noscript>'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style></head>\n<body><main>\n'
        f"{_header(info, state, css, now)}{_problems(problems)}"
        f"{_charts(rates)}{_figures(info)}{_tables(info, snapshot)}{_footer()}"
        f"</main>\n<script>{SCRIPT}</script></body></html>\n"
    )


def _state(info: admin_pb2.GetServerInfoResponse, problems: Sequence[str]) -> tuple[str, str]:
    if info.stores_paused or info.loads_paused:
        return "paused", "warn"
    if not info.store.ready:
        return "store not ready", "bad"
    return ("degraded", "warn") if problems else ("working", "good")


def _header(info: admin_pb2.GetServerInfoResponse, state: str, css: str, now: float) -> str:
    up = span(max(0.0, now - info.start_time.ToNanoseconds() / 1e9))
    store = info.store
    about = escape(f"{store.url}, {store.settings}" if store.settings else store.url)
    return (
        f'<header><h1>kvferry</h1><span id="state" class="pill {css}">{state}</span>'
        f"<p>{about}</p><p>version {escape(info.version)}, up {up}</p></header>\n"
    )


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(each)}</li>" for each in problems)
    return f'<ul class="problems">{items}</ul>\n'


def _charts(rates: Sequence[Rates]) -> str:
    last = rates[-1] if rates else None
    since = f"{_shown_seconds(rates) / 60:.0f} min ago"
    moved = [(each.stored, each.loaded) for each in rates]
    fastest = max((max(pair) for pair in moved), default=0.0)
    slowest = max((each.load_seconds or 0.0 for each in rates), default=0.0)
    throughput = _chart(
        "Throughput",
        [
            ("store", "stored", _rate(last.stored if last else None)),
            ("load", "loaded", _rate(last.loaded if last else None)),
        ],
        [
            Line("store", _points(rates, [each.stored for each in rates])),
            Line("load", _points(rates, [each.loaded for each in rates])),
        ],
        (fastest, _rate(fastest)),
        since,
    )
    latency = _chart(
        "Duration of a load, mean",
        [("load", "now", _seconds(last.load_seconds if last else None))],
        [Line("load", _points(rates, [each.load_seconds for each in rates]))],
        (slowest, _seconds(slowest)),
        since,
    )
    hits = _chart(
        "Hit ratio of lookups",
        [("store", "now", _percent(last.hit_ratio if last else None))],
        [Line("store", _points(rates, [each.hit_ratio for each in rates]))],
        (1.0, "100 %"),
        since,
    )
    return f'<section class="grid charts">{throughput}{latency}{hits}</section>\n'


def _chart(
    title: str,
    keys: Sequence[tuple[str, str, str]],
    lines: Sequence[Line],
    top: tuple[float, str],
    since: str,
) -> str:
    shown = "".join(
        f'<div><span class="swatch {css}"></span>{name} <b>{value}</b></div>'
        for css, name, value in keys
    )
    about = f"{title}: " + ", ".join(f"{name} {value}" for _css, name, value in keys)
    return (
        f'<div class="card"><h2>{title}</h2><div class="keys">{shown}</div>'
        f'<div class="scale"><span>up to {top[1]}</span></div>{draw(lines, top[0], about)}'
        f'<div class="scale"><span>{since}</span><span>now</span></div></div>'
    )


def _points(
    rates: Sequence[Rates], values: Iterable[float | None]
) -> list[tuple[float, float | None]]:
    shown = _shown_seconds(rates)
    return [
        (max(0.0, 1 - (rates[-1].at - each.at) / shown), value)
        for each, value in zip(rates, values, strict=True)
    ]


def _shown_seconds(rates: Sequence[Rates]) -> float:
    """How far back the charts reach: whole minutes, as far as there is something to show."""
    if not rates:
        return WINDOW_SECONDS
    minutes = math.ceil((rates[-1].at - rates[0].at) / 60)
    return min(WINDOW_SECONDS, 60.0 * max(1, minutes))


def _figures(info: admin_pb2.GetServerInfoResponse) -> str:
    figures = [
        ("engines attached", f"{info.sessions:,}"),
        ("in transfer", f"{info.active_chunks:,} of {info.store.max_active_chunks:,}"),
        ("queued to store", f"{info.queued_store_chunks:,}"),
        ("queued to load", f"{info.queued_load_chunks:,}"),
        ("oldest transfer", _seconds(info.oldest_active.ToNanoseconds() / 1e9 or None)),
        ("keys in the index", f"{info.index_entries:,}"),
        ("engines' memory", size(info.region_bytes)),
        ("held for dead engines", size(info.dead_engine_bytes)),
    ]
    cards = "".join(
        f'<div class="card"><div class="name">{name}</div><div class="value">{value}</div></div>'
        for name, value in figures
    )
    return f'<section class="grid figures">{cards}</section>\n'


def _tables(info: admin_pb2.GetServerInfoResponse, snapshot: Snapshot) -> str:
    values = snapshot.values
    tables = [
        _table(f"{title}, chunks since the start", _outcomes(snapshot, operation))
        for title, operation in (("Stores", "store"), ("Loads", "load"))
    ]
    lookups = [
        (f"{verdict}, from {source}", f"{count:,.0f}")
        for (family, labels), count in values.items()
        if family == "lookup_verdicts"
        for verdict, source in [labels]
    ]
    requests = [
        (f"{labels[0].upper()} {labels[1].replace('_', ' ')}", f"{count:,.0f}")
        for (family, labels), count in values.items()
        if family == "store_requests" and (count or labels[1] == "ok")
    ]
    breakers = [
        ("reading", _breaker(info.store.read_breaker)),
        ("writing", _breaker(info.store.write_breaker)),
        ("stores", "paused" if info.stores_paused else "on"),
        ("loads and lookups", "paused" if info.loads_paused else "on"),
    ]
    tables += [
        _table("Lookups, keys since the start", lookups),
        _table("Requests to the store", requests),
        _table("Breakers and switches", breakers),
        _table("Loads, how verified", _checks(snapshot)),
    ]
    return f'<section class="grid tables">{"".join(tables)}</section>\n'


def _outcomes(snapshot: Snapshot, operation: str) -> list[tuple[str, str]]:
    return [
        (labels[1].replace("_", " "), f"{count:,.0f}")
        for (family, labels), count in snapshot.values.items()
        if family == "chunks"
        and labels[0] == operation
        and (count or labels[1] in _OUTCOMES[operation])
    ]


def _checks(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [
        (labels[0].replace("_", " "), f"{count:,.0f}")
        for (family, labels), count in snapshot.values.items()
        if family == "integrity"
    ]


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in rows
    )
    return f'<div class="card"><h2>{title}</h2><table>{body}</table></div>'


def _footer() -> str:
    return (
        "<footer>Read-only. Sessions and jobs: <code>kvferry status</code>. "
        "Switch off and on: <code>kvferry pause</code>, <code>kvferry resume</code>. "
        '<a href="metrics">metrics</a> &middot; <a href="readyz">readyz</a></footer>\n'
    )


def _breaker(state: admin_pb2.BreakerState) -> str:
    return {
        admin_pb2.BREAKER_STATE_CLOSED: "closed (working)",
        admin_pb2.BREAKER_STATE_OPEN: "OPEN",
        admin_pb2.BREAKER_STATE_HALF_OPEN: "half open",
    }.get(state, "unknown")


def _rate(per_second: float | None) -> str:
    return _DASH if per_second is None else f"{size(round(per_second))}/s"


def _percent(share: float | None) -> str:
    return _DASH if share is None else f"{share:.0%}".replace("%", " %")


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _DASH
    return f"{seconds * 1000:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"
