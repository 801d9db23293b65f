"""Drafts for choices that are generating: from their grammar, their own text, or a small model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quantcli.engine.draft_model import Wanted
from quantcli.engine.generation import Generation
from quantcli.engine.leviathan import Guess
from quantcli.engine.ngram import PromptLookup
from quantcli.engine.options import EngineOptions
from quantcli.engine.pace import Pace
from quantcli.engine.speculation import MatchRates, Rate, allot, chances, draft_length

_PROBE_STEPS = 32  # after which a drafter that was not worth asking is asked again
_MODEL_PRIOR = 0.7  # of a small model of the same family
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
        self.model_rate = Rate(_MODEL_PRIOR)
        self.n_shifts = 0
        self.guess: _Guess | None = None


class Drafter(Protocol):
    """A model that drafts; `quantcli.engine.draft_model.DraftModel`."""

    @property
    def seconds(self) -> float | None:
        """What a token for each of some jobs takes, None before it was measured."""
        ...

    def draft(self, wanted: Sequence[Wanted]) -> dict[int, list[Guess]]:
        """Return guesses of what follows each job's tokens, by the job's number."""
        ...

    def forget(self, number: int) -> None:
        """Give back what is held for a job."""
        ...


class Drafting:
    """Guesses what comes next and decides how much of it a step computes."""

    def __init__(
        self, pace: Pace, options: EngineOptions, max_rows: int, drafter: Drafter | None = None
    ) -> None:
        """Start without choices.

        pace      how long steps take
        options   what is drafted, how much, and whether at random
        max_rows  most rows of a step
        drafter   a model to ask when there is nothing better
        """
        self._pace = pace
        self._max_draft = options.max_draft
        self._max_rows = max_rows
        self._looks_up = options.spec == "ngram"
        self._is_sampled = options.draft_sampling
        self._drafter = drafter
        self._can_guess = self._looks_up or drafter is not None
        self._n_unasked = 0  # steps since the drafter was last asked
        self._states: dict[int, _State] = {}

    def prepare(self, generations: Sequence[Generation], n_rows: int) -> None:
        """Give the choices that are about to generate their drafts.

        n_rows  rows of the step without drafts
        """
        guesses: list[tuple[Generation, _Guess]] = []
        for generation in generations:
            generation.job.draft.clear()
            generation.guesses.clear()
            if not self._can_guess and generation.grammar is None:
                continue
            number = generation.job.number
            state = self._states.get(number) or self._states.setdefault(number, _State())
            state.guess = self._guess(generation, state)
            if state.guess is not None:
                guesses.append((generation, state.guess))
        if not guesses and self._drafter is None:
            return
        counts = allot(
            [chances(guess.rate.value, len(guess.tokens)) for _, guess in guesses],
            n_rows,
            self._max_rows,
            self._pace.seconds,
        )
        for (generation, guess), n in zip(guesses, counts, strict=True):
            self._give(generation, guess.tokens[:n])
        if self._drafter is not None:
            n_rows += sum(len(generation.job.draft) for generation in generations)
            self._ask(self._drafter, [g for g in generations if not g.job.draft], n_rows)

    def _give(self, generation: Generation, draft: list[int]) -> None:
        """Set a draft, up to what the grammar allows."""
        if generation.grammar is not None:
            del draft[generation.grammar.n_valid(draft) :]
        generation.job.draft[:] = draft

    def _ask(self, drafter: Drafter, generations: Sequence[Generation], n_rows: int) -> None:
        """Let the model draft for the choices that have nothing, if it is worth the time."""
        asking = [(g, min(self._max_draft, g.n_draftable)) for g in generations]
        asking = [(g, n_most) for g, n_most in asking if n_most > 0]
        if not asking:
            return
        states = [self._states[generation.job.number] for generation, _ in asking]
        n = draft_length(
            [state.model_rate.value for state in states],
            max(n_most for _, n_most in asking),
            n_rows,
            self._max_rows,
            self._pace.seconds,
            drafter.seconds or 0.0,
        )
        self._n_unasked += 1
        if n == 0 and self._n_unasked >= _PROBE_STEPS:
            n = 1
        if n == 0:
            return
        self._n_unasked = 0
        drafts = drafter.draft(
            [
                Wanted(
                    g.job, min(n, n_most), g.request.params, g.seed if self._is_sampled else None
                )
                for g, n_most in asking
            ]
        )
        for (generation, _), state in zip(asking, states, strict=True):
            guesses = drafts.get(generation.job.number, [])
            tokens = [guess.token for guess in guesses]
            state.guess = _Guess(tokens, state.model_rate, len(generation.job.tokens))
            if guesses and guesses[0].ids is not None:
                generation.guesses[:] = guesses
            self._give(generation, tokens)

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
        if self._drafter is not None:
            self._drafter.forget(number)

    def _guess(self, generation: Generation, state: _State) -> _Guess | None:
        n_most = min(self._max_draft, generation.n_draftable)
        if n_most < 1:
            return None
        job = generation.job
        forced = generation.grammar.forced()[:n_most] if generation.grammar is not None else []
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
