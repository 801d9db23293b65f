"""Tokens on their way through one layer, with one set of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from quantcli.formats import F32
from quantcli.plan import TOKENS, Buffer, Op
from quantcli.qtensor import QTensor
from quantcli.runtime.executor import Executor
from quantcli.runtime.stretch import I64, Stretch, inputs_of, weights_of

Values = dict[Buffer, F32]  # f32 (tokens of all chunks, width)

_HEAVY = {"linear", "attention", "expert_linear"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What all layers of a walk share.

    lengths      tokens of each chunk, a sequence of its own
    executor     the threads that compute
    held_nbytes  most memory for activations between two matrices of a layer, besides those that
                 flow into it
    """

    lengths: Sequence[int]
    executor: Executor
    held_nbytes: int

    @property
    def n_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(self.lengths)


class Flow:
    """What flows through a layer's ops. Between two matrices it is held, or computed again.

    entry  what flows into the layer; None once nothing goes back there
    """

    def __init__(
        self,
        ops: Sequence[Op],
        later: Sequence[Op],
        settings: Settings,
        entry: Values,
        weights: Callable[[str], F32 | QTensor],
    ) -> None:
        """Begin before the first op.

        later    ops of the layers behind this one, which say what must come out of it
        weights  returns a tensor as it is by now
        """
        self.entry: Values | None = entry
        self._ops = ops
        self._later = later
        self._settings = settings
        self._weights = weights
        self._held, self._at = entry, 0  # what flows into op `at`
        self._stretch: Stretch | None = None  # while it runs

    @property
    def at(self) -> int:
        """The op before which tokens are held."""
        return self._at

    def rewind(self) -> None:
        """Go back to the layer's start."""
        assert self.entry is not None, "nothing before what was put can be computed again"
        self._held, self._at = self.entry, 0

    def forget_entry(self) -> None:
        """Let go of what flows into the layer: nothing goes back there."""
        self.entry = None

    def read(self, stop: int, buffer: Buffer) -> Iterator[F32]:
        """Yield a buffer that is there before op `stop`, chunk by chunk, each valid until the next.

        Tokens are then held where it pays for what follows.
        """
        at = self._where_to_hold(stop)
        for kept in self._pass(stop, [buffer], at):
            yield kept[buffer]

    def read_entries(self, stop: int, buffer: Buffer) -> Iterator[tuple[F32, I64]]:
        """Yield what experts read before op `stop`, chunk by chunk: rows, and the expert of each.

        A row that goes to several experts comes once for each of them.
        """
        at = self._where_to_hold(stop)
        for kept in self._pass(stop, [buffer], at):
            assert self._stretch is not None
            if buffer.axis == TOKENS:
                ids = self._stretch.experts()
                yield np.repeat(kept[buffer], ids.shape[1], axis=0), ids.reshape(-1)
            else:
                yield kept[buffer], self._stretch.experts_of_entries()

    def finish(self) -> Iterator[int]:
        """Run to the end of the layer, yielding the tokens of each chunk, for `result`."""
        stop = len(self._ops)
        live = self._live(stop)
        for kept in self._pass(stop, live, stop):
            yield len(kept[live[0]])

    def result(self) -> Values:
        """Return what flows out of the layer, once it is finished."""
        assert self._at == len(self._ops)
        values, self._held, self.entry = self._held, {}, None
        return values

    def _pass(self, stop: int, outputs: list[Buffer], hold_at: int) -> Iterator[Values]:
        """Yield buffers as they are before op `stop`, and hold what flows into op `hold_at`."""
        moves = hold_at > self._at
        live = self._live(hold_at) if moves else []
        n_tokens = self._settings.n_tokens
        held = {b: np.empty((n_tokens, b.width), np.float32) for b in live}
        row = 0
        for kept in self._run(stop, [*outputs, *live]):
            n = len(kept[outputs[0]])
            for buffer, array in held.items():
                array[row : row + n] = kept[buffer]
            row += n
            yield kept
        if moves:
            self._held, self._at = held, hold_at

    def _run(self, stop: int, outputs: list[Buffer]) -> Iterator[Values]:
        settings, ops = self._settings, self._ops[self._at : stop]
        weights = {name: self._weights(name) for name in dict.fromkeys(weights_of(ops))}
        stretch = Stretch(ops, outputs, weights, settings.executor, max_rows=max(settings.lengths))
        self._stretch = stretch
        del weights
        row = 0
        for n in settings.lengths:
            rows = slice(row, row + n)
            yield stretch.run({b: self._held[b][rows] for b in stretch.inputs}, n)
            row += n
        self._stretch = None

    def _live(self, at: int) -> list[Buffer]:
        """Return the buffers that ops from `at` on read from before."""
        return inputs_of([*self._ops[at:], *self._later]) or [self._ops[-1].output]

    def _where_to_hold(self, stop: int) -> int:
        """Return the op up to `stop` before which tokens are best held.

        Least is to be computed again of what fits in the memory meant for it; then least is held.
        """
        settings = self._settings

        def cost(at: int) -> tuple[int, int, int]:
            nbytes = 4 * settings.n_tokens * sum(b.width for b in self._live(at))
            heavy = sum(op.kind in _HEAVY for op in self._ops[at:stop])
            fits = nbytes <= settings.held_nbytes or at == self._at
            return (0 if fits else 1, heavy, nbytes)

        places = [at for at in range(self._at, stop + 1) if self._is_plain(at)]
        return min(places, key=cost)

    def _is_plain(self, at: int) -> bool:
        """Return whether what flows into an op is rows of tokens, and no choice of experts."""
        chosen = {op.output for op in self._ops if op.kind == "route"}
        return all(b.axis == TOKENS and b not in chosen for b in self._live(at))
