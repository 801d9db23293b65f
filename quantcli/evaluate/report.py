"""A page about quantized models next to their base: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

from quantcli.evaluate import charts
from quantcli.evaluate.divergence import Divergence, Positions

F64 = npt.NDArray[np.float64]

_LEAST_KL = 1e-8  # what is less counts as this in the histogram
_N_BINS_PER_DECADE = 5
_N_STRETCHES = 16  # of a chunk, whose positions are averaged

_STYLE = """
:root { --paper: #fff; --ink: #1a1a1a; --faint: #ddd; --soft: #666;
  --c0: #0b62c4; --c1: #c43d0b; --c2: #0a7d55; --c3: #8a2fc0; --c4: #9a6a00; --c5: #c01f66;
  --c6: #007a8a; --c7: #555; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e6e6e6; --faint: #333;
  --soft: #9a9a9a; --c0: #6cb0ff; --c1: #ff9a6c; --c2: #5fd6a6; --c3: #cf9bff; --c4: #e8bf5a;
  --c5: #ff8ab8; --c6: #62d3e2; --c7: #bbb; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--faint);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.facts td { text-align: left; white-space: normal; vertical-align: top; }
svg { width: 100%; max-width: 46rem; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12px; }
svg .grid { stroke: var(--faint); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
g line { stroke: var(--c); stroke-width: 1.5; } g circle { fill: var(--c); }
g path { stroke: var(--c); stroke-width: 1.8; fill: none; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.legend li::before { content: ""; display: inline-block; width: 1em; height: .25em;
  margin-right: .4em; vertical-align: middle; background: var(--c); }
.note { color: var(--soft); max-width: 46rem; }
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One model next to the base."""

    name: str
    bits_per_weight: float
    divergence: Divergence
    positions: Positions


def page(
    entries: Sequence[Entry],
    *,
    base: str,
    rows: Sequence[Sequence[str]],
    facts: Mapping[str, str],
    n_scored: int,
) -> str:
    """Return the page.

    rows      the table, its head first
    facts     what was measured and how, by name
    n_scored  scored positions of a chunk
    """
    title = f"Quantized models next to {base}"
    by_size = sorted(entries, key=lambda e: e.bits_per_weight)
    points = [
        charts.Point(e.name, e.bits_per_weight, e.divergence.kl.value, e.divergence.kl.error)
        for e in by_size
    ]
    spread = [charts.Line(e.name, histogram(e.positions.kl)) for e in by_size]
    along = [charts.Line(e.name, by_position(e.positions.kl, n_scored)) for e in by_size]
    sections = [
        ("Statistics", table(rows)),
        (
            "KL divergence against size",
            charts.scatter(
                points, "bits per weight", "mean KL divergence, nats", "mean KL and bits per weight"
            )
            + '<p class="note">Lower and further left is better. Bars: one standard error.</p>',
        ),
        (
            "How the divergence is spread",
            charts.lines(
                spread,
                "KL divergence of a position, nats",
                "share of positions",
                "histogram of the KL divergence",
                is_log=True,
                is_stepped=True,
            ),
        ),
        (
            "Along the context",
            charts.lines(
                along, "scored token of a chunk", "mean KL divergence, nats", "mean KL by position"
            ),
        ),
        ("What was measured", fact_table(facts)),
    ]
    return document(title, sections)


def document(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """Return a page of headings and the HTML below each, which needs no other file."""
    body = "".join(f"<section><h2>{escape(head)}</h2>{text}</section>" for head, text in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def histogram(kl: F64) -> list[tuple[float, float]]:
    """Return the left edge of each bin and the share of positions in it, f64 (n,) in nats.

    Bins are fifths of decades from 1e-8 on; what is less lies in the first, and the last is closed
    by an empty one.
    """
    low = round(np.log10(_LEAST_KL) * _N_BINS_PER_DECADE)
    finite = kl[np.isfinite(kl)]
    exponents = np.log10(np.maximum(finite, _LEAST_KL)) * _N_BINS_PER_DECADE
    bins = np.floor(exponents + 1e-9).astype(np.int64) - low
    counts = np.append(np.bincount(bins, minlength=1), 0)
    edges = 10.0 ** ((low + np.arange(counts.size)) / _N_BINS_PER_DECADE)
    return list(zip(edges.tolist(), (counts / kl.size).tolist(), strict=True))


def by_position(kl: F64, n_scored: int) -> list[tuple[float, float]]:
    """Return the mean KL in stretches of the chunk, each at its middle; `kl` is chunk by chunk."""
    each = kl.reshape(-1, n_scored).mean(axis=0)
    stretches = np.array_split(np.arange(n_scored), min(_N_STRETCHES, n_scored))
    return [(float(s.mean()) + 1, float(each[s].mean())) for s in stretches]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, its head first."""
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    ]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def fact_table(facts: Mapping[str, str]) -> str:
    """Return names and values as HTML."""
    rows = (f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return f'<div class="scroll"><table class="facts">{"".join(rows)}</table></div>'
