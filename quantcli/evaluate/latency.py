"""How long a user waits for the first token: through the engine, as `run` does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from quantcli.engine.loop import Engine
from quantcli.engine.request import Request, SamplingParams
from quantcli.evaluate.throughput import random_tokens

if TYPE_CHECKING:
    from quantcli.engine.loop import Model
    from quantcli.text import Tokenizer


@dataclass(frozen=True, slots=True)
class _Silent:
    """A tokenizer whose tokens stand for nothing: a model of random weights has no other."""

    n_vocab: int
    bos: int | None = None
    eog: frozenset[int] = frozenset()
    drops_leading_space: bool = False

    def token_bytes(self, token: int) -> bytes:
        """Return nothing."""
        return b""

    def is_hidden(self, token: int) -> bool:
        """Return that nothing is shown."""
        return True


def first_token_s(model: Model, n_prompt: int, *, sampler: str = "compiled") -> float:
    """Return the seconds from a prompt's tokens to the first token chosen, with default sampling.

    sampler   as in `Engine`; the first call may compile

    The model's cache is free again afterwards. Raises UsageError if the context is too short.
    """
    engine = Engine(model, cast("Tokenizer", _Silent(model.n_vocab)), sampler=sampler)
    tokens = tuple(random_tokens(model.n_vocab, 0, n_prompt))
    asked = Request(tokens, SamplingParams(max_tokens=1, seed=0))
    *_, last = engine.generate(asked)
    assert last.stats is not None, last
    assert last.stats.first_token_s is not None, last
    return last.stats.first_token_s
