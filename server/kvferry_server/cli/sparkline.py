"""Small line charts as inline SVG, without scripts, styles or numbers of their own.

Imports the standard library only. Colours come from the page's classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 300, 64
_TOP = 4
"""Room above the highest point, so that its line is not cut."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Args:
        css: its class, which gives the colour.
        points: x from 0 (oldest) to 1 (now), and the value; None where there was none.
    """

    css: str
    points: Sequence[tuple[float, float | None]]


def draw(lines: Sequence[Line], top: float, about: str) -> str:
    """An `<svg>` of these lines.

    Args:
        lines: drawn in this order.
        top: value at the upper edge; the lower one is 0.
        about: what it shows, for who can't see it.
    """
    shapes = [shape for line in lines for shape in _shapes(line, top)]
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(about)}"><title>{escape(about)}</title>'
        f'<line class="base" x1="0" y1="{HEIGHT - 1}" x2="{WIDTH}" y2="{HEIGHT - 1}"/>'
        f"{''.join(shapes)}</svg>"
    )


def _shapes(line: Line, top: float) -> list[str]:
    """A polyline for each stretch without a gap; a lone value is a short dash."""
    shapes = []
    for stretch in _stretches(line):
        ends = stretch if len(stretch) > 1 else [(stretch[0][0] - 0.01, stretch[0][1]), *stretch]
        points = " ".join(f"{x * WIDTH:.1f},{_y(value, top):.1f}" for x, value in ends)
        shapes.append(f'<polyline class="{line.css}" points="{points}"/>')
    return shapes


def _stretches(line: Line) -> list[list[tuple[float, float]]]:
    found: list[list[tuple[float, float]]] = []
    joined = False
    for x, value in line.points:
        if value is None:
            joined = False
            continue
        if not joined:
            found.append([])
        found[-1].append((x, value))
        joined = True
    return found


def _y(value: float, top: float) -> float:
    share = min(1.0, value / top) if top > 0 else 0.0
    return HEIGHT - 1 - share * (HEIGHT - 1 - _TOP)
