"""What becomes of a request when it is submitted: it is checked, and its choices are made."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from itertools import count

from quantcli.engine.generation import Generation, Grammar
from quantcli.engine.request import GrammarSpec, Request
from quantcli.engine.sampling import Chooser, Sampler
from quantcli.engine.scheduler import Job, drop_older_half
from quantcli.errors import ResourceError, UsageError
from quantcli.text import Tokenizer
from quantcli.text.stream import TextStream

_SEEDS = 2**64


def _wants_all_rows(request: Request) -> bool:
    return request.pooling == "mean" or request.params.n_prompt_logprobs is not None


class Submissions:
    """Checks requests and makes their choices. Any thread may submit."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chooser: Chooser,
        *,
        context: int,
        n_slots: int,
        grammar: Callable[[GrammarSpec], Grammar],
    ) -> None:
        """Start numbering.

        context  the model's
        n_slots  most tokens that the cache can hold for one choice
        grammar  returns a new matcher of a grammar, or raises UsageError
        """
        self._tokenizer = tokenizer
        self._chooser = chooser
        self._context = context
        self._n_slots = n_slots
        self._grammar = grammar
        self._requests = count(1)
        self._jobs = count(1)

    def generations(self, request: Request) -> list[Generation]:
        """Return a request's choices under its number.

        Raises UsageError for a prompt that is empty, too long or not of this vocabulary, and for a
        grammar that cannot be followed; ResourceError for a prompt that the cache can never hold.
        """
        tokens = self._prompt(request)
        params = request.params
        seed = params.seed
        if seed is None or seed < 0:
            seed = secrets.randbits(32)  # short enough to be typed in again
        limit = params.max_tokens
        if limit is not None and limit < 0:
            limit = None
        request = replace(request, params=replace(params, seed=seed, max_tokens=limit))
        matchers = [self._matcher(request.grammar) for _ in range(request.n)]
        number = next(self._requests)
        return [
            self._choice(request, number, choice, list(tokens), matchers[choice])
            for choice in range(request.n)
        ]

    def n_keep(self, request: Request, n_prompt: int) -> int:
        """Return how many tokens a context shift keeps; at least two others must fit."""
        n_keep = n_prompt if request.n_keep < 0 else request.n_keep
        if n_keep > self._n_slots - 2:
            raise UsageError(
                f"a context shift cannot keep {n_keep} tokens in a context of {self._n_slots}; "
                f"at most {self._n_slots - 2}. Use a smaller --keep or a larger --ctx."
            )
        return n_keep

    def _choice(
        self, request: Request, number: int, choice: int, tokens: list[int], grammar: Grammar | None
    ) -> Generation:
        params = request.params
        limit, n_slots = params.max_tokens, self._n_slots
        if limit is not None and not request.context_shift:
            # The last token chosen is never computed.
            n_slots = min(n_slots, len(tokens) + max(0, limit - 1))
        ends = self._tokenizer.eog | frozenset(params.stop_tokens)
        banned = self._tokenizer.eog if params.ignore_eos else ()
        assert params.seed is not None
        seed = (params.seed + choice) % _SEEDS
        sampler = Sampler(params, seed, self._chooser, banned, self._context, ends)
        salt = request.cache_salt
        if request.session is not None:
            salt = f"{salt}\0session {request.session}"
        job = Job(
            next(self._jobs),
            tokens,
            n_slots,
            priority=request.priority,
            salt=salt,
            all_logits=choice == 0 and _wants_all_rows(request),
        )
        stream = TextStream(self._tokenizer)
        return Generation(
            number, request, job, sampler, stream, ends, choice=choice, grammar=grammar
        )

    def _matcher(self, spec: GrammarSpec | None) -> Grammar | None:
        return None if spec is None else self._grammar(spec)

    def _prompt(self, request: Request) -> list[int]:
        """Return the tokens to start from."""
        tokens = list(request.tokens)
        if not tokens:
            if self._tokenizer.bos is None:
                raise UsageError(
                    "the prompt is empty, and the model has no BOS token to start from."
                )
            tokens = [self._tokenizer.bos]
        n_tokens = self._chooser.n_tokens
        for token in (*tokens, *request.params.stop_tokens):
            if not 0 <= token < n_tokens:
                raise UsageError(f"no token {token}; the vocabulary has {n_tokens}.")
        if request.context_shift:
            n_keep = self.n_keep(request, len(tokens))
            while len(tokens) > self._n_slots:
                drop_older_half(tokens, n_keep)
        elif len(tokens) > self._context:
            raise UsageError(
                f"the prompt has {len(tokens)} tokens, and the context {self._context}. "
                "Shorten the prompt, use a larger --ctx, or drop its older part with "
                "--context-shift."
            )
        elif len(tokens) > self._n_slots:
            raise ResourceError(
                f"the prompt has {len(tokens)} tokens, and the KV cache {self._n_slots} slots. "
                "Shorten the prompt or use a larger cache."
            )
        return tokens
