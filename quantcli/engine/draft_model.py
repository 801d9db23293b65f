"""A small model that guesses what a large one of the same vocabulary will say next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from quantcli.engine import rng
from quantcli.engine.leviathan import DRAFT_STREAM, Guess, draw
from quantcli.engine.request import SamplingParams
from quantcli.engine.sampling import F32, Chooser, settings
from quantcli.engine.scheduler import Job
from quantcli.errors import Cancelled, UsageError
from quantcli.kvcache import KVCache
from quantcli.kvcache.pages import common_prefix
from quantcli.runtime.step import Batch

_SMOOTHING = 0.3  # weight of a new time


class Model(Protocol):
    """What drafting needs of a model; `quantcli.runtime.model.Model`."""

    n_vocab: int
    context: int
    max_rows: int
    kv: KVCache

    def forward(self, batch: Batch) -> F32:
        """Compute a step; return logits f32 (len(batch.outputs), n_vocab), valid until the next."""
        ...


class Vocabulary(Protocol):
    """What must agree between two models; `quantcli.text.Tokenizer`."""

    n_vocab: int
    bos: int | None
    eog: frozenset[int]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for."""
        ...

    def token_text(self, token: int) -> str:
        """Return a token for display."""
        ...

    def is_control(self, token: int) -> bool:
        """Return whether a token never comes out of a text."""
        ...


def check_vocabularies(target: Vocabulary, draft: Vocabulary) -> None:
    """Raise UsageError unless the tokens that two vocabularies have in common are the same.

    One may have more at its end: models pad their vocabularies to different sizes.
    """
    for token in range(min(target.n_vocab, draft.n_vocab)):
        is_same = target.token_bytes(token) == draft.token_bytes(token) and target.is_control(
            token
        ) == draft.is_control(token)
        if not is_same:
            raise UsageError(
                f"token {token} is {target.token_text(token)!r} to the model and "
                f"{draft.token_text(token)!r} to the draft model. A draft model needs the same "
                "vocabulary; use a smaller model of the same family."
            )
    if target.bos != draft.bos or target.eog != draft.eog:
        raise UsageError(
            f"the model begins with token {target.bos} and ends with {sorted(target.eog)}, the "
            f"draft model with {draft.bos} and {sorted(draft.eog)}. A draft model needs the same "
            "special tokens; use a smaller model of the same family."
        )


class Wanted(NamedTuple):
    """Up to n tokens that may follow a job's.

    params, seed   how to draw them; without a seed the likeliest are taken
    """

    job: Job
    n: int
    params: SamplingParams
    seed: int | None = None


class _Followed:
    """What the small model has computed of a job."""

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.tokens: list[int] = []  # whose keys and values are in its cache
        self.n_sure = 0  # of these, known to be the job's


class DraftModel:
    """Drafts tokens for jobs, with a cache of its own for those it has drafted for."""

    def __init__(self, model: Model, n_tokens: int, *, sampler: str = "compiled") -> None:
        """Start without jobs.

        model     with an empty cache that nobody else uses
        n_tokens  tokens that the large model can choose, from 0 on
        sampler   "compiled" or "reference"
        """
        self._model = model
        self._n_tokens = min(n_tokens, model.n_vocab)
        self._sampler = sampler
        self._chooser: Chooser | None = None
        self._followed: dict[int, _Followed] = {}  # by the number of their job; last used last
        self._seconds: float | None = None

    @property
    def seconds(self) -> float | None:
        """What a token for each of some jobs takes, None before it was measured."""
        return self._seconds

    def draft(self, wanted: Sequence[Wanted]) -> dict[int, list[Guess]]:
        """Return guesses of what follows each job's tokens, by the job's number.

        A job whose prompt is not computed yet, or for which the cache has no room, gets none.
        """
        drafts: dict[int, list[Guess]] = {}
        numbers = {w.job.number for w in wanted}
        try:
            ready = [w for w in wanted if w.n > 0 and self._catch_up(w.job, w.n, numbers)]
            while ready:
                start = time.perf_counter()
                for w, guess in zip(ready, self._next(ready, drafts), strict=True):
                    drafts.setdefault(w.job.number, []).append(guess)
                self._note(time.perf_counter() - start)
                ready = [w for w in ready if len(drafts[w.job.number]) < w.n]
        except Cancelled:  # a request was, and the threads are shared; the next step drafts anew
            return {}
        return drafts

    def forget(self, number: int) -> None:
        """Give back what is held for a job."""
        followed = self._followed.pop(number, None)
        if followed is not None:
            self._model.kv.free(followed.seq)

    def _catch_up(self, job: Job, n: int, spared: set[int]) -> bool:
        """Compute all but the last of a job's tokens, at most one step; return whether that did."""
        if len(job.tokens) + n > self._model.context:
            return False
        followed = self._follow(job)
        keep = followed.n_sure
        if job.tokens[:keep] != followed.tokens[:keep]:  # the context was shifted
            keep = 0
        keep += common_prefix(followed.tokens[keep:], job.tokens[keep:-1])
        del followed.tokens[keep:]
        followed.n_sure = keep
        if not self._make_room(followed, len(job.tokens) + n, spared):
            return False
        missing = job.tokens[keep:-1]
        if max(job.tokens[keep:]) >= self._model.n_vocab:  # padding that only one has
            return False
        if not missing:
            return True
        part = missing[: self._model.max_rows]
        positions = list(range(keep, keep + len(part)))
        self._model.forward(Batch(part, positions, [followed.seq] * len(part), []))
        followed.tokens += part
        followed.n_sure = len(followed.tokens)
        return len(part) == len(missing)

    def _next(self, ready: list[Wanted], drafts: dict[int, list[Guess]]) -> list[Guess]:
        """Return a guess of the token after each job's tokens and draft."""
        batch = Batch([], [], [], [])
        for w in ready:
            followed = self._followed[w.job.number]
            draft = drafts.get(w.job.number)
            batch.tokens.append(draft[-1].token if draft else w.job.tokens[-1])
            batch.positions.append(len(followed.tokens))
            batch.sequences.append(followed.seq)
            batch.outputs.append(len(batch.outputs))
        logits = self._model.forward(batch)[:, : self._n_tokens]
        for w, token in zip(ready, batch.tokens, strict=True):
            self._followed[w.job.number].tokens.append(token)
        return [self._guess(w, row) for w, row in zip(ready, logits, strict=True)]

    def _guess(self, w: Wanted, row: F32) -> Guess:
        """Return the likeliest token of a row, or one that is drawn as the request draws."""
        if w.seed is None or w.params.temperature == 0:
            return Guess(int(row.argmax()))
        if not np.isfinite(row).all():  # a damaged model guesses badly, and that is all
            return Guess(0, np.zeros(1, np.int64), np.ones(1, np.int64))
        if self._chooser is None:
            self._chooser = Chooser(self._n_tokens, self._sampler)
        ids, weights = self._chooser.weigh(row, w.params, settings(w.params))
        index = len(self._followed[w.job.number].tokens)
        token = draw(ids, weights, rng.uniform(w.seed, index, DRAFT_STREAM))
        return Guess(token, ids, weights)

    def _follow(self, job: Job) -> _Followed:
        followed = self._followed.pop(job.number, None)
        if followed is None:
            used = {other.seq for other in self._followed.values()}
            followed = _Followed(next(seq for seq in count() if seq not in used))
        self._followed[job.number] = followed
        return followed

    def _make_room(self, followed: _Followed, n_slots: int, spared: set[int]) -> bool:
        """Reserve slots, at the cost of jobs that are not to be drafted for now."""
        kv = self._model.kv
        while not kv.can_reserve(followed.seq, n_slots):
            victim = next((number for number in self._followed if number not in spared), None)
            if victim is None:
                return False
            self.forget(victim)
        kv.reserve(followed.seq, n_slots)
        return True

    def _note(self, seconds: float) -> None:
        known = self._seconds
        self._seconds = seconds if known is None else known + _SMOOTHING * (seconds - known)
