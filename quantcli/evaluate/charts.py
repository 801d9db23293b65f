"""Charts as inline SVG, drawn with the colours of the page that holds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 16, 48
N_COLOURS = 8  # classes c0 ... c7 of the page's style sheet


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from low to high, on a line or on the logarithm of it, as pixels."""

    low: float
    high: float
    start: float
    stop: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the pixel of a value, at the nearer end if it lies outside."""
        low, high, value = (self._shape(v) for v in (self.low, self.high, value))
        part = min(1.0, max(0.0, (value - low) / (high - low)))
        return self.start + part * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return round values to mark."""
        if self.is_log:
            decades = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            factors = (1, 2, 5) if len(decades) < 3 else (1,)
            around = range(decades.start - 1, decades.stop)
            values = [f * 10.0**d for d in around for f in factors]
            return [v for v in values if self.low <= v <= self.high]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def _shape(self, value: float) -> float:
        return math.log(max(value, self.low)) if self.is_log else value


def scale(
    values: Iterable[float],
    start: float,
    stop: float,
    *,
    is_log: bool = False,
    from_zero: bool = False,
) -> Scale:
    """Return a scale with some room around finite values; a log scale takes those above 0."""
    known = [v for v in values if math.isfinite(v) and (v > 0 or not is_log)]
    low, high = (min(known), max(known)) if known else (1.0, 1.0)
    if is_log:
        room = max(1.3, (high / low) ** 0.08)
        return Scale(low / room, high * room, start, stop, is_log=True)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return Scale(0.0 if from_zero else low - room, high + room, start, stop)


@dataclass(frozen=True, slots=True)
class Point:
    """A point with the error of its height."""

    label: str
    x: float
    y: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points (x, y)."""

    label: str
    points: Sequence[tuple[float, float]]


def scatter(points: Sequence[Point], x_title: str, y_title: str, title: str) -> str:
    """Return a chart of labelled points; heights are on a logarithmic scale if all are above 0."""
    is_log = all(p.y > 0 for p in points)
    x = scale([p.x for p in points], LEFT, WIDTH - RIGHT)
    ends = [y for p in points for y in (p.y, p.y + p.error, p.y - p.error)]
    y = scale(
        ends if not is_log else [e for e in ends if e > 0], HEIGHT - BOTTOM, TOP, is_log=is_log
    )
    marks = []
    for i, p in enumerate(points):
        at_x, at_y = x.at(p.x), y.at(p.y)
        text = f"{p.label}: {p.x:.3f} bits per weight, {p.y:.4g} +- {p.error:.2g}"
        anchor, shift = ("end", -8) if at_x > WIDTH * 0.7 else ("start", 8)
        marks.append(
            f'<g class="c{i % N_COLOURS}"><title>{escape(text)}</title>'
            f'<line x1="{at_x:.1f}" x2="{at_x:.1f}" y1="{y.at(p.y - p.error):.1f}" '
            f'y2="{y.at(p.y + p.error):.1f}"/><circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="4"/>'
            f'<text x="{at_x + shift:.1f}" y="{at_y - 6:.1f}" text-anchor="{anchor}">'
            f"{escape(p.label)}</text></g>"
        )
    return _chart(x, y, x_title, y_title, title, marks)


def lines(
    series: Sequence[Line],
    x_title: str,
    y_title: str,
    title: str,
    *,
    is_log: bool = False,
    is_stepped: bool = False,
) -> str:
    """Return a chart of lines, and what each is below it.

    is_log      whether x is on a logarithmic scale
    is_stepped  whether a height holds until the next x, as in a histogram
    """
    x = scale([p[0] for s in series for p in s.points], LEFT, WIDTH - RIGHT, is_log=is_log)
    y = scale([p[1] for s in series for p in s.points], HEIGHT - BOTTOM, TOP, from_zero=True)
    marks = []
    for i, line in enumerate(series):
        path = "".join(_path(line.points, x, y, is_stepped))
        marks.append(
            f'<g class="c{i % N_COLOURS}"><title>{escape(line.label)}</title><path d="{path}"/></g>'
        )
    return _chart(x, y, x_title, y_title, title, marks) + legend([s.label for s in series])


def bars(items: Sequence[tuple[str, float]], title: str, show: Callable[[float], str]) -> str:
    """Return named values of at least 0 as bars below each other.

    show  returns a value as people read it
    """
    height, left = 22, 170
    top = max((value for _, value in items), default=0.0) or 1.0
    parts = [f'<svg viewBox="0 0 {WIDTH} {height * len(items) + 4}" role="img" ']
    parts.append(f'aria-label="{escape(title)}">')
    for i, (label, value) in enumerate(items):
        y, width = i * height + 2, value / top * (WIDTH - left - 110)
        parts.append(_text(left - 8, y + 14, label, "end"))
        parts.append(
            f'<rect class="c{i % N_COLOURS}" x="{left}" y="{y}" width="{width:.1f}" '
            f'height="{height - 4}" fill="var(--c)"/>'
        )
        parts.append(_text(left + width + 6, y + 14, show(value), "start"))
    return "".join([*parts, "</svg>"])


def legend(labels: Sequence[str]) -> str:
    """Return the names of colours in order."""
    items = (f'<li class="c{i % N_COLOURS}">{escape(name)}</li>' for i, name in enumerate(labels))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _path(
    points: Sequence[tuple[float, float]], x: Scale, y: Scale, is_stepped: bool
) -> Iterable[str]:
    """Yield the pieces of a path through points that are numbers."""
    command = "M"
    for px, py in points:
        if not math.isfinite(py):
            continue
        if is_stepped and command == "L":
            yield f"H{x.at(px):.1f}V{y.at(py):.1f}"
        else:
            yield f"{command}{x.at(px):.1f} {y.at(py):.1f}"
        command = "L"


def _chart(x: Scale, y: Scale, x_title: str, y_title: str, title: str, marks: Sequence[str]) -> str:
    """Return axes with marks in them."""
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in x.ticks():
        at = x.at(value)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(_text(at, bottom + 18, f"{value:g}", "middle"))
    for value in y.ticks():
        at = y.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 8, at + 4, f"{value:g}", "end"))
    middle = (TOP + bottom) / 2
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x_title, "middle"))
    turned = f'transform="rotate(-90 14 {middle:.0f})"'
    parts.append(
        f'<text x="14" y="{middle:.0f}" text-anchor="middle" {turned}>{escape(y_title)}</text>'
    )
    return "".join([*parts, *marks, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _round_step(step: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= step * (1 - 1e-9))
