"""Drafts for choices that are generating: from their grammar, their own text, or a small model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quantcli.engine.generation import Generation
from quantcli.engine.ngram import PromptLookup
from quantcli.engine.pace import Pace
from quantcli.engine.scheduler import Job
from quantcli.engine.speculation import MatchRates, Rate, allot, chances

_FORCED_PRIOR = 0.9  # text that a grammar forces is nearly always spelled in the usual tokens


class _Guess:
    """What a choice is likely to say next, and the rate at which such guesses are right."""

    def __init__(self, tokens: list[int], rate: Rate, n_before: int) -> None:
        self.tokens = tokens
        self.rate = rate
        self.n_before = n_before  # tokens when it was made


class _State:
    """What is remembered of a choice from step to step."""

    def __init__(self) -> None:
        self.lookup = PromptLookup()
        self.match_rates = MatchRates()
        self.forced_rate = Rate(_FORCED_PRIOR)
        self.model_rate = Rate(0.7)
        self.n_shifts = 0
        self.guess: _Guess | None = None


class Drafter(Protocol):
    """A model that drafts; `quantcli.engine.draft_model.DraftModel`."""

    def draft(self, jobs: Sequence[tuple[Job, int]]) -> dict[int, list[int]]:
        """Return up to so many tokens for each job, by its number."""
        ...

    def seconds(self) -> float | None:
        """Return what one token for each job takes, None before it is known."""
        ...

    def forget(self, number: int) -> None:
        """Give back what is held for a job."""
        ...


class Drafting:
    """Guesses what comes next and decides how much of it a step computes."""

    def __init__(self, pace: Pace, *, max_draft: int, max_rows: int, looks_up: bool) -> None:
        """Start without choices.

        pace       how long steps take
        max_draft  most tokens drafted for a choice at a time
        max_rows   most rows of a step
        looks_up   draft what followed the last tokens when they occurred before
        """
        self._pace = pace
        self._max_draft = max_draft
        self._max_rows = max_rows
        self._looks_up = looks_up
        self._states: dict[int, _State] = {}

    def prepare(self, generations: Sequence[Generation], n_rows: int) -> None:
        """Give the choices that are about to generate their drafts.

        n_rows  rows of the step without drafts
        """
        guesses: list[tuple[Generation, _Guess]] = []
        for generation in generations:
            state = self._states.setdefault(generation.job.number, _State())
            state.guess = self._guess(generation, state)
            if state.guess is not None:
                guesses.append((generation, state.guess))
        if not guesses:
            return
        counts = allot(
            [chances(guess.rate.value, len(guess.tokens)) for _, guess in guesses],
            n_rows,
            self._max_rows,
            self._pace.seconds,
        )
        for (generation, guess), n in zip(guesses, counts, strict=True):
            draft = guess.tokens[:n]
            if generation.grammar is not None:
                del draft[generation.grammar.n_valid(draft) :]
            generation.job.draft[:] = draft

    def learn(self, generation: Generation) -> None:
        """Compare a guess, drafted or not, with the tokens that were chosen."""
        state = self._states.get(generation.job.number)
        if state is None or state.guess is None:
            return
        guess, state.guess = state.guess, None
        chosen = generation.job.tokens[guess.n_before :]
        for said, guessed in zip(chosen, guess.tokens, strict=False):
            guess.rate.note(said == guessed)
            if said != guessed:
                break

    def forget(self, number: int) -> None:
        """Forget a choice that has ended, by the number of its job."""
        self._states.pop(number, None)

    def _guess(self, generation: Generation, state: _State) -> _Guess | None:
        n_most = min(self._max_draft, generation.n_draftable)
        if n_most < 1:
            return None
        job = generation.job
        if generation.grammar is not None:
            forced = generation.grammar.forced()[:n_most]
            if forced:
                return _Guess(forced, state.forced_rate, len(job.tokens))
        if not self._looks_up:
            return None
        if state.n_shifts != generation.counters.n_shifts:
            state.n_shifts = generation.counters.n_shifts
            state.lookup.reset()
        match = state.lookup.find(job.tokens, n_most)
        if match is None:
            return None
        return _Guess(match.tokens, state.match_rates.of(match.length), len(job.tokens))
