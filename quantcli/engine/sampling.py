"""From logits to a token: the chain of steps, its compiled form, and the state of one request.

The chain is llama.cpp's, in its order: logit bias, penalties, top_k, typical_p, top_p, min_p,
temperature, then a draw. Each step is a function on candidates; `CHAIN` lists them. The compiled
loop in `quantcli.kernels.sampling` takes the same decisions in one pass, and chooses the same
token for every row.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quantcli.engine import rng
from quantcli.engine.leviathan import ACCEPT_STREAM, REST_STREAM, Guess, settle
from quantcli.engine.request import Logprobs, SamplingParams
from quantcli.errors import ModelError, UnknownName, UsageError
from quantcli.kernels import sampling as kernel
from quantcli.kernels import token_mask
from quantcli.kernels.weights import LOWEST, WEIGHT_BITS, weights_reference

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]

BACKENDS = ("compiled", "reference")
_F32_MAX = float(np.finfo(np.float32).max)


class Candidates(NamedTuple):
    """Tokens that are still in the running, ascending, and their logits."""

    ids: npt.NDArray[np.intp]  # (n,)
    logits: F64  # (n,)

    def keep(self, indices: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Candidates:
        """Return those at some indices."""
        return Candidates(self.ids[indices], self.logits[indices])

    @property
    def depths(self) -> F64:
        """Logits less the largest: f64 (n,), all <= 0."""
        depths: F64 = self.logits - self.logits.max()
        return depths

    @property
    def weights(self) -> I64:
        """Probabilities as whole numbers, 2**42 for the most likely token: i64 (n,)."""
        return weights_reference(self.depths)


def top_k(c: Candidates, p: SamplingParams) -> Candidates:
    """Keep the k largest logits."""
    ones = np.ones(c.ids.size, np.int64)
    return c.keep(kernel.heaviest_reference(c.logits, ones, p.top_k))


def typical_p(c: Candidates, p: SamplingParams) -> Candidates:
    """Keep the tokens whose information -ln p is nearest the entropy, up to a share of p.

    With depth d = logit - max, -ln p = ln Z - d, and the entropy is ln Z - E[d]; so the distance
    is |d - E[d]|.
    Source: Meister et al., Locally typical sampling, arXiv:2202.00666, section 4.
    """
    weights = c.weights
    depths = np.maximum(c.depths, LOWEST)
    moment = np.cumsum(weights * depths)[-1]  # cumsum adds in order, as the compiled loop does
    distance = np.abs(depths - moment / float(weights.sum())).astype(np.float32)
    return c.keep(
        kernel.heaviest_reference(
            -distance.astype(np.float64), weights, _reach(weights, p.typical_p)
        )
    )


def top_p(c: Candidates, p: SamplingParams) -> Candidates:
    """Keep the most likely tokens until their probabilities reach p.

    Source: Holtzman et al., The curious case of neural text degeneration, arXiv:1904.09751,
    section 3.1.
    """
    weights = c.weights
    return c.keep(kernel.heaviest_reference(c.logits, weights, _reach(weights, p.top_p)))


def min_p(c: Candidates, p: SamplingParams) -> Candidates:
    """Keep the tokens at least p times as likely as the most likely.

    p_i >= p * p_max is the same as logit_i >= max + ln p.
    Source: Nguyen et al., Turning up the heat, arXiv:2407.01082, section 3.
    """
    return c.keep(c.depths >= _log(p.min_p))


def temperature(c: Candidates, p: SamplingParams) -> Candidates:
    """Divide the logits; at 0 keep the largest."""
    if p.temperature == 0:
        return c.keep(np.array([c.logits.argmax()]))
    with np.errstate(over="ignore"):  # a tiny temperature makes -inf of every depth but 0
        return Candidates(c.ids, c.depths / p.temperature)


class Step(NamedTuple):
    """A step of the chain, and when it changes nothing."""

    apply: Callable[[Candidates, SamplingParams], Candidates]
    is_off: Callable[[SamplingParams], bool]


CHAIN = (
    Step(top_k, lambda p: p.top_k <= 0),
    Step(typical_p, lambda p: p.typical_p >= 1),
    Step(top_p, lambda p: p.top_p >= 1),
    Step(min_p, lambda p: p.min_p <= 0),
    Step(temperature, lambda p: p.temperature == 1),
)


def candidates(row: F32, params: SamplingParams) -> Candidates:
    """Return what the chain leaves of a row of finite logits f32 (n,)."""
    left = Candidates(np.arange(row.size), row.astype(np.float64))
    for step in CHAIN:
        if not step.is_off(params):
            left = step.apply(left, params)
    return left


def choose_reference(row: F32, params: SamplingParams, u: float) -> int:
    """Return the token at share u of the weights that the chain leaves, in order of id.

    kernel.NOT_FINITE if a logit is NaN or +inf, kernel.NOTHING if all are -inf.
    """
    if not (row < np.inf).all():
        return kernel.NOT_FINITE
    if row.max() == -np.inf:
        return kernel.NOTHING
    left = candidates(row, params)
    sums = np.cumsum(left.weights)
    mark = min(int(u * float(sums[-1])), int(sums[-1]) - 1)
    return int(left.ids[np.searchsorted(sums, mark, side="right")])


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


def _reach(weights: I64, p: float) -> int:
    """Return the weight that is a share p of all, at least 1."""
    return max(1, math.ceil(float(weights.sum()) * (p - kernel.SLACK)))


class Chooser:
    """Chooses tokens from rows of n logits, one row at a time; owns the memory that takes.

    backend  "compiled", or "reference" for the chain as it is written above
    """

    def __init__(self, n_tokens: int, backend: str = "compiled") -> None:
        """Allocate, and compile or load the loops, so that no token waits for it."""
        if backend not in BACKENDS:
            raise UnknownName("backend", backend, BACKENDS)
        self.n_tokens = n_tokens
        self._is_compiled = backend == "compiled"
        self._scratch = kernel.Scratch.of(n_tokens)
        self._row = np.zeros(n_tokens, np.float32)
        usual, packed = SamplingParams(), settings(SamplingParams())
        self.choose(self._row, usual, packed, 0.0)

    def choose(self, row: F32, params: SamplingParams, packed: np.ndarray, u: float) -> int:
        """Return a token, kernel.NOT_FINITE or kernel.NOTHING; see `choose_reference`."""
        if self._is_compiled:
            if not row.flags.carray:  # a read-only row would be another type: compiled once more
                row = self.copy(row)
            return int(kernel.choose(row, packed, u, self._scratch))
        return choose_reference(row, params, u)

    def weigh(self, row: F32, params: SamplingParams, packed: np.ndarray) -> tuple[I64, I64]:
        """Return what the chain leaves of a row that `choose` accepts: ids, ascending, and weights.

        `choose` draws from these.
        """
        if not self._is_compiled:
            left = candidates(row, params)
            weights = left.weights if params.temperature else np.ones(1, np.int64)
            return left.ids.astype(np.int64), weights
        n = int(kernel.weigh(row, packed, self._scratch))
        return self._scratch.ids[:n].copy(), self._scratch.weights[:n].copy()

    def mask(self, row: F32, allowed: U32) -> F32:
        """Return a row with -inf for each token whose bit is not set, until the next copy."""
        if self._is_compiled:
            token_mask.mask(row, allowed, self._row)
        else:
            self._row[:] = token_mask.mask_reference(row, allowed)
        return self._row

    def most_likely(self, row: F32, n: int) -> tuple[npt.NDArray[np.intp], int]:
        """Return the n most likely tokens, and the row's weight relative to its largest logit."""
        n = min(n, row.size)
        if self._is_compiled:
            total = int(kernel.most_likely(row, n, self._scratch))
            ids = self._scratch.ids[:n].astype(np.intp)
        else:
            ids = np.argsort(-row, kind="stable")[:n]
            depths = row.astype(np.float64) - float(row.max())
            total = int(weights_reference(depths).sum())
        return ids[np.lexsort((ids, -row[ids]))], total

    def copy(self, row: F32) -> F32:
        """Return a copy of a row that lasts until the next copy."""
        self._row[:] = row
        return self._row


def settings(params: SamplingParams) -> np.ndarray:
    """Return the parameters as the record that the compiled loop reads, kernel.SETTINGS (1,)."""
    packed = np.zeros(1, kernel.SETTINGS)
    packed["top_k"] = params.top_k
    packed["typical_p"] = params.typical_p
    packed["top_p"] = params.top_p
    packed["log_min_p"] = _log(params.min_p)
    packed["temperature"] = params.temperature
    return packed


_GREEDY = SamplingParams(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
_GREEDY_SETTINGS = settings(_GREEDY)


class Sampler:
    """Chooses the tokens of one request. What it chooses depends on nothing but the request.

    Call `accept` for each token of the prompt and each token chosen, in order.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        chooser: Chooser,
        banned: Iterable[int] = (),
        context: int = 0,
        ends: Iterable[int] = (),
    ) -> None:
        """Prepare for a request.

        seed     0 <= seed < 2**64
        banned   tokens never to choose, besides those that params.logit_bias bans
        context  what a repeat_last_n of -1 means
        ends     tokens not to choose among the first params.min_tokens
        """
        self.params = params
        self.seed = seed
        self.n_chosen = 0
        self._chooser = chooser
        self._packed = settings(params)
        bias = {**params.logit_bias, **dict.fromkeys(banned, -math.inf)}
        if bad := [t for t in bias if t >= chooser.n_tokens]:
            raise UsageError(
                f"logit_bias: no token {bad[0]}; the vocabulary has {chooser.n_tokens}."
            )
        self._bias_ids = np.array(list(bias), np.intp)
        self._bias = np.array(list(bias.values()), np.float64)
        self._ends = np.array(sorted(ends), np.intp) if params.min_tokens else np.array([], np.intp)
        last_n = params.repeat_last_n if params.repeat_last_n >= 0 else context
        is_off = params.repeat_penalty == 1 and not (
            params.presence_penalty or params.frequency_penalty
        )
        self._recent: deque[int] = deque(maxlen=0 if is_off else last_n)
        self._counts: Counter[int] = Counter()

    def accept(self, token: int) -> None:
        """Remember a token for the penalties."""
        recent, counts = self._recent, self._counts
        if not recent.maxlen:
            return
        if len(recent) == recent.maxlen:
            counts[recent[0]] -= 1
            if not counts[recent[0]]:
                del counts[recent[0]]
        recent.append(token)
        counts[token] += 1

    def choose(self, row: F32, where: str = "", allowed: U32 | None = None) -> int:
        """Choose the next token from its logits f32 (n_tokens,), which stay as they are.

        where    starts the message of an error
        allowed  u32 (words,)   a bit for each token that may be chosen; None: all

        Raises ModelError if a logit is NaN or +inf or all are -inf, UsageError if the request
        itself bans every token.
        """
        adjusted = self._adjusted(row, allowed)
        u = rng.uniform(self.seed, self.n_chosen)
        token = self._chooser.choose(adjusted, self.params, self._packed, u)
        if token < 0:
            raise _refusal(row, adjusted, where)
        self.n_chosen += 1
        return token

    def check(self, row: F32, where: str = "") -> None:
        """Raise ModelError if a logit of a row is NaN or +inf, or all are -inf."""
        if self._chooser.choose(row, _GREEDY, _GREEDY_SETTINGS, 0.0) < 0:
            raise _refusal(row, row, where)

    def weigh(self, row: F32, where: str = "", allowed: U32 | None = None) -> tuple[I64, I64]:
        """Return what `choose` would draw from: ids (n,), ascending, and their weights (n,).

        Raises what `choose` raises.
        """
        adjusted = self._adjusted(row, allowed)
        if self._chooser.choose(adjusted, self.params, self._packed, 0.0) < 0:
            raise _refusal(row, adjusted, where)
        return self._chooser.weigh(adjusted, self.params, self._packed)

    def settle(self, row: F32, guess: Guess, where: str = "", allowed: U32 | None = None) -> int:
        """Choose the next token, the guess if its own odds and the row's agree; see `leviathan`.

        Raises what `choose` raises.
        """
        ids, weights = self.weigh(row, where, allowed)
        u_accept = rng.uniform(self.seed, self.n_chosen, ACCEPT_STREAM)
        u_rest = rng.uniform(self.seed, self.n_chosen, REST_STREAM)
        self.n_chosen += 1
        return settle(guess, ids, weights, u_accept, u_rest)

    def logprobs(self, row: F32, token: int, n: int) -> Logprobs:
        """Return log-probabilities of a row that `choose` took, before biases and penalties."""
        ids, total = self._chooser.most_likely(row, max(n, 1))
        zero = float(row[ids[0]]) + math.log(total) - WEIGHT_BITS * math.log(2)
        top = tuple((int(i), float(row[i]) - zero) for i in ids[:n])
        return Logprobs(float(row[token]) - zero, top)

    def _adjusted(self, row: F32, allowed: U32 | None = None) -> F32:
        """Return the row with biases, penalties and bans applied; itself if there are none."""
        ends = self._ends if self.n_chosen < self.params.min_tokens else self._ends[:0]
        if self._bias.size or self._counts or ends.size:
            row = self._chooser.copy(row)
        if self._bias.size:
            with np.errstate(invalid="ignore"):  # +inf - inf; `_write` keeps the +inf
                biased = row[self._bias_ids].astype(np.float64) + self._bias
            _write(row, self._bias_ids, biased)
        if self._counts:
            n = len(self._counts)
            ids = np.fromiter(self._counts.keys(), np.intp, n)
            counts = np.fromiter(self._counts.values(), np.float64, n)
            _write(row, ids, penalized(row[ids].astype(np.float64), counts, self.params))
        if ends.size:
            _write(row, ends, np.full(ends.size, -np.inf))
        return row if allowed is None else self._chooser.mask(row, allowed)


def penalized(logits: F64, counts: F64, p: SamplingParams) -> F64:
    """Return the logits f64 (n,) of tokens that occurred `counts` times, f64 (n,).

    Dividing a negative logit would make the token likelier, so that is multiplied.
    Source: Keskar et al., CTRL, arXiv:1909.05858, section 4.1, for positive logits.
    """
    repeated = np.where(logits <= 0, logits * p.repeat_penalty, logits / p.repeat_penalty)
    return repeated - (counts * p.frequency_penalty + p.presence_penalty)


def _write(row: F32, ids: npt.NDArray[np.intp], values: F64) -> None:
    """Store values into a row: no infinity of a large one, and an infinity that was there stays."""
    values = np.where(row[ids] == np.inf, np.inf, np.minimum(values, _F32_MAX))
    row[ids] = np.where(values < -_F32_MAX, -np.inf, values).astype(np.float32)


def _refusal(row: F32, adjusted: F32, where: str) -> ModelError | UsageError:
    """Return the error for a row that nothing can be chosen from."""
    bad = np.flatnonzero(~(row < np.inf))
    if bad.size:
        return ModelError(
            f"{where}the logit of token {bad[0]} is {row[bad[0]]}, and {bad.size} of {row.size} "
            "are no finite numbers. The model file is damaged, or its format cannot hold its "
            "weights; try another file of the same model."
        )
    if row.max() > -np.inf:
        return UsageError(
            f"{where}logit_bias, ignore_eos, min_tokens and the grammar leave no token to choose."
        )
    return ModelError(
        f"{where}all {row.size} logits are -inf. The model file is damaged; try another file of "
        "the same model."
    )
