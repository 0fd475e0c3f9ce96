"""Style and script of the status page: light and dark, phone and desktop, no external asset.

The page works without the script, which only saves the reload: it fetches the page and puts the new
`<main>` in the old one's place. Both are allowed by their hashes alone.
"""

from __future__ import annotations

import base64
import hashlib

REFRESH_SECONDS = 2

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #57606a; --edge: #d9dee4;
  --store: #0b6bcb; --load: #b4540a; --good: #1a7f37; --warn: #9a6700; --bad: #c0262d;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1116; --card: #171b22; --ink: #e6eaf0; --soft: #9aa4b0; --edge: #2d333c;
    --store: #5ab0ff; --load: #f0a35e; --good: #57c76d; --warn: #e3b341; --bad: #ff7b72;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 20px 16px 32px; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: 4px 12px; }
h1 { font-size: 1.35rem; margin: 0; }
h2 { font-size: 1rem; margin: 0 0 8px; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.pill { border: 1px solid; border-radius: 999px; padding: 1px 10px; font-weight: 600; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.problems { list-style: none; margin: 14px 0 0; padding: 0; }
.problems li {
  border-left: 4px solid var(--warn); background: var(--card); padding: 8px 12px;
  margin-bottom: 6px; border-radius: 4px; overflow-wrap: anywhere;
}
.grid { display: grid; gap: 12px; margin-top: 14px; }
.charts { grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); }
.figures { grid-template-columns: repeat(4, 1fr); }
@media (max-width: 640px) { .figures { grid-template-columns: repeat(2, 1fr); } }
.tables { grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); align-items: start; }
.card {
  background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 12px 14px;
  min-width: 0;
}
.figures .card { padding: 10px 14px; }
.name { color: var(--soft); font-size: .86rem; }
.value { font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.keys { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 2px 0 8px; }
.keys div { font-variant-numeric: tabular-nums; }
.swatch {
  display: inline-block; width: 14px; height: 3px; vertical-align: middle; margin-right: 6px;
}
.swatch.store { background: var(--store); } .swatch.load { background: var(--load); }
.spark { display: block; width: 100%; height: 64px; }
.spark polyline {
  fill: none; stroke-width: 2; stroke-linejoin: round; vector-effect: non-scaling-stroke;
}
.spark .store { stroke: var(--store); } .spark .load { stroke: var(--load); }
.spark .base { stroke: var(--edge); vector-effect: non-scaling-stroke; }
.scale { display: flex; justify-content: space-between; color: var(--soft); font-size: .78rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 3px 0; border-top: 1px solid var(--edge); }
tr:first-child th, tr:first-child td { border-top: 0; }
th { font-weight: 400; color: var(--soft); overflow-wrap: anywhere; padding-right: 12px; }
td { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
footer { margin-top: 18px; color: var(--soft); font-size: .86rem; }
a { color: var(--store); }
"""

SCRIPT = f"""
async function renew() {{
  try {{
    const answer = await fetch(location.href, {{cache: "no-store"}});
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.title = page.title;
  }} catch {{
    document.title = "kvferry: no answer";
    const state = document.getElementById("state");
    state.textContent = "no answer";
    state.className = "pill bad";
  }}
  setTimeout(renew, {REFRESH_SECONDS * 1000});
}}
setTimeout(renew, {REFRESH_SECONDS * 1000});
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Content-Security-Policy of the page."""
