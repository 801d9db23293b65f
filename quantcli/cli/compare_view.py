"""What `compare` has found, for people and as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantcli.cli.generation import Answer, Loaded
    from quantcli.cli.render import JsonValue
    from quantcli.engine.request import Request
    from quantcli.evaluate.comparison import Position

HEADERS = ("#", "token", "p by A", "p by B", "{other} prefers", "p by A", "p by B", "KL")
ALIGNED = "rlrrlrrr"
_TOKEN_WIDTH = 18
_DIFFERENT = "yellow"
_TITLE = "bold"


@dataclass
class Found:
    """Two answers and what both models say about them, as far as it has come.

    along_a   every token of A's answer; along_b: B's, from where they part
    """

    labels: tuple[str, str]
    loaded: tuple[Loaded, Loaded]
    asked: Request
    answers: list[Answer] = field(default_factory=list)
    along_a: list[Position] = field(default_factory=list)
    along_b: list[Position] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[list[int], list[int]]:
        """Both answers so far."""
        a, b = ([*(answer.tokens for answer in self.answers), [], []])[:2]
        return a, b

    @property
    def n_common(self) -> int:
        """Tokens that both answers begin with."""
        from quantcli.evaluate.comparison import n_common

        return n_common(*self.tokens)

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.loaded[0].tokenizer.n_vocab

    def text(self, tokens: Sequence[int]) -> str:
        """Return what tokens say, control tokens spelled out."""
        return self.loaded[0].tokenizer.decode(tokens, special=True)

    def spelled(self, token: int) -> str:
        """Return a token in quotes."""
        return repr(self.loaded[0].tokenizer.token_text(token)).replace("\\\\x", "\\x")


def show(found: Found, *, as_json: bool) -> None:
    """Print what there is; in colours on a terminal, unless NO_COLOR is set."""
    from quantcli.cli import render

    if not any(found.tokens):
        return
    if as_json:
        render.emit_json(document(found))
        return
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line, style in lines(found):
        text = render.printable(line, keep="\n")
        if is_coloured and style:
            _print_styled(text, style)
        else:
            print(text)


def _print_styled(text: str, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(text, style=style), soft_wrap=True)


def document(found: Found) -> JsonValue:
    """Return everything, for --json."""
    from quantcli.evaluate.comparison import Summary

    sides: dict[str, JsonValue] = {}
    named = zip("ab", found.labels, found.loaded, strict=True)
    for (key, label, loaded), answer in zip(named, found.answers, strict=False):
        sides[key] = {
            "model": label,
            "threads": loaded.model.n_threads,
            "text": answer.text,
            "tokens": answer.tokens,
            "pieces": [loaded.tokenizer.token_text(token) for token in answer.tokens],
            "finish": answer.finish,
        }
    return {
        "prompt_tokens": list(found.asked.tokens),
        **sides,
        "n_common": found.n_common,
        "along_a": [asdict(position) for position in found.along_a],
        "along_b": [asdict(position) for position in found.along_b],
        "summary_a": asdict(Summary.of(found.along_a)) if found.along_a else None,
        "summary_b": asdict(Summary.of(found.along_b)) if found.along_b else None,
    }


def lines(found: Found) -> Iterator[tuple[str, str]]:
    """Yield lines for people, and how each is set off."""
    for name, label in zip("AB", found.labels, strict=True):
        yield f"{name}  {label}", ""
    yield "", ""
    yield from _answers(found)
    if found.along_a:
        yield "", ""
        yield "along A's answer", _TITLE
        yield from _table(found, found.along_a, of=0)
    if found.along_b:
        yield "", ""
        yield f"along B's answer, from token {found.n_common + 1} on", _TITLE
        yield from _table(found, found.along_b, of=1)


def _answers(found: Found) -> Iterator[tuple[str, str]]:
    """Yield what both say alike, and how each goes on."""
    n = found.n_common
    a, b = found.tokens
    if len(found.answers) < 2 or found.answers[1].finish is None:  # interrupted
        yield _indented("A", found.text(a)), ""
        return
    if n:
        yield _indented("both", found.text(a[:n])), ""
    for name, tokens in (("A", a[n:]), ("B", b[n:])):
        if tokens:
            yield _indented(name, found.text(tokens)), _DIFFERENT
    if a == b:
        yield f"the answers are the same, {len(a)} tokens", _TITLE
    else:
        yield f"the answers part at token {n + 1}", _TITLE


def _indented(name: str, text: str) -> str:
    return f"{name:<6}" + text.replace("\n", "\n" + " " * 6)


def _table(found: Found, positions: Sequence[Position], of: int) -> Iterator[tuple[str, str]]:
    """Yield a row for each token of one model's answer, and their summary."""
    from quantcli.cli import render
    from quantcli.evaluate.comparison import Summary

    other = "BA"[of]
    headers = [header.format(other=other) for header in HEADERS]
    table = render.table(headers, [_cells(found, p, of) for p in positions], right=ALIGNED)
    head, *rows = table.splitlines()
    yield head, _TITLE
    for row, position in zip(rows, positions, strict=True):
        yield row, "" if position.is_same else _DIFFERENT
    total = Summary.of(positions)
    yield (
        f"KL divergence of B from A: mean {total.kl_mean:.4g} nats, largest {total.kl_max:.4g} at "
        f"token {total.kl_max_index + 1}; the same token is likeliest at {total.n_same} of "
        f"{total.n_tokens} ({100 * total.n_same / total.n_tokens:.1f}%)",
        "",
    )


def _cells(found: Found, position: Position, of: int) -> tuple[str, ...]:
    from quantcli.cli.render import shorten

    other = position.top[1 - of]
    p_other = position.p_top_b if of == 0 else position.p_top_a
    prefers = ("", "", "")
    if other != position.token:
        spelled = shorten(found.spelled(other), _TOKEN_WIDTH)
        prefers = (spelled, _probability(p_other[0]), _probability(p_other[1]))
    return (
        str(position.index + 1),
        shorten(found.spelled(position.token), _TOKEN_WIDTH),
        _probability(position.p[0]),
        _probability(position.p[1]),
        *prefers,
        f"{position.kl:.4f}",
    )


def _probability(p: float) -> str:
    return f"{p:.3f}" if p >= 0.0005 else f"{p:.0e}"
