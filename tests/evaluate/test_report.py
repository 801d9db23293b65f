"""The page about quantized models, and its charts."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from bigram import bigram, near, text
from hypothesis import given
from hypothesis import strategies as st

from quantcli.evaluate import charts, divergence, report
from quantcli.evaluate.divergence import Positions
from quantcli.evaluate.protocol import cut, protocol

HOW = protocol("full", 32)
EVIL = '<script>alert("x")</script>&'


def entry(name: str, bits: float, seed: int) -> report.Entry:
    base = bigram()
    chunks = cut(text(100), HOW, None)
    model = near(base, seed=seed, spread=0.05 * seed)
    parts = list(divergence.measure(base, model, chunks, names=("base", name)))
    positions = Positions.join(parts)
    return report.Entry(name, bits, divergence.summarize(positions, is_exact=True), positions)


def page(*names: str) -> str:
    entries = [entry(name, 2.5 + i, i) for i, name in enumerate(names)]
    rows = [["", *names], ["KL", *("1" for _ in names)]]
    return report.page(entries, base=EVIL, rows=rows, facts={"text": EVIL}, n_scored=HOW.n_scored)


class Parser(HTMLParser):
    """Collects tags, and checks that they are closed in order."""

    void = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.void:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def close(self) -> None:
        super().close()
        assert self._open == []


def parsed(html: str) -> Parser:
    parser = Parser()
    parser.feed(html)
    parser.close()
    return parser


def test_the_page_is_well_formed_and_needs_nothing_from_outside() -> None:
    html = page("q2", "q4", "q8")
    parser = parsed(html)
    assert parser.tags.count("svg") == 3
    assert not {"script", "link", "img", "iframe", "object", "use"} & set(parser.tags)
    assert not {"src", "href", "onload"} & {name for name, _ in parser.attributes}
    assert not re.search(r"https?:|url\(|@import|//", html.removeprefix("<!doctype html>"))
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html


def test_names_from_outside_are_text() -> None:
    html = page(EVIL, "q4")
    assert "<script>" not in html
    assert html.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;") >= 4


def test_every_model_has_a_point_a_line_and_a_colour() -> None:
    html = page("q2", "q4", "q8")
    scatter, spread, along = (
        ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    )
    assert len(scatter.findall("g/circle")) == 3
    for chart in (spread, along):
        assert [g.get("class") for g in chart.findall("g")] == ["c0", "c1", "c2"]
        assert all((path.get("d") or "").startswith("M") for path in chart.findall("g/path"))


def test_a_model_at_no_distance_is_still_drawn() -> None:
    html = page("same")  # seed 0: no noise at all
    assert "NaN" not in html
    assert "inf" not in html.lower().replace("infor", "")
    parsed(html)


def test_a_histogram_holds_every_position_once() -> None:
    kl = np.array([0.0, 1e-9, 1e-8, 2e-4, 2.1e-4, 0.5, 30.0])
    bins = report.histogram(kl)
    edges = [edge for edge, _ in bins]
    assert edges[0] == pytest.approx(1e-8)
    assert np.diff(np.log10(edges)) == pytest.approx(0.2)
    assert sum(share for _, share in bins) == pytest.approx(1)
    assert bins[0][1] == pytest.approx(3 / 7)
    assert max(share for edge, share in bins if 1e-4 < edge < 1e-3) == pytest.approx(2 / 7)
    assert bins[-1][1] == 0
    for value in kl[kl > 1e-8]:
        (share,) = [s for e, s in bins if e <= value * (1 + 1e-9) < e * 10**0.2]
        assert share > 0


@pytest.mark.parametrize("n_scored", [1, 5, 16, 31, 255])
def test_positions_are_averaged_along_the_chunk(n_scored: int) -> None:
    kl = np.tile(np.arange(n_scored, dtype=np.float64), 3)
    points = report.by_position(kl, n_scored)
    assert len(points) == min(16, n_scored)
    for x, y in points:
        assert y == pytest.approx(x - 1)


@given(
    low=st.floats(1e-9, 1e6),
    factor=st.floats(1.001, 1e9),
    is_log=st.booleans(),
)
def test_ticks_are_few_round_and_inside(low: float, factor: float, is_log: bool) -> None:
    scale = charts.scale([low, low * factor], 0, 100, is_log=is_log)
    ticks = scale.ticks()
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 25
    for tick in ticks:
        assert -1e-6 <= scale.at(tick) <= 100 + 1e-6
        digits = f"{tick:.3e}".split("e")[0] if is_log else "1.000"
        assert digits in ("1.000", "2.000", "5.000")
    if is_log and factor > 10:
        assert ticks


def test_a_scale_puts_its_ends_inside() -> None:
    for is_log in (False, True):
        scale = charts.scale([2.0, 8.0], 10, 90, is_log=is_log)
        assert 10 < scale.at(2) < scale.at(8) < 90
        assert scale.at(1e-300) == 10
        assert scale.at(1e300) == 90
    upward = charts.scale([0.0, 1.0], 90, 10, from_zero=True)
    assert upward.at(0) == 90
    alone = charts.scale([math.nan, 3.0], 0, 1)
    assert alone.low < 3 < alone.high
    assert charts.scale([], 0, 1).low < charts.scale([], 0, 1).high
