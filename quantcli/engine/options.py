"""What an engine is set up with, and what it can be asked for: plain values, no arrays."""

from __future__ import annotations

from dataclasses import dataclass

from quantcli.errors import UsageError

SPECULATIONS = ("none", "ngram")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How requests share an engine. Nothing here changes what a request answers.

    max_jobs        most choices that run at once; None: as many as a step has rows and the cache
                    has sequences for
    max_waiting     requests that may wait; one more is refused with QueueFull. None: any number
    target_s        seconds between two tokens that a prompt's chunks must not exceed while others
                    are generating; None: the chunks fill a step
    prefix_caching  keep the pages of prompts and answers for others that begin the same
    overcommit      slots promised to running requests, as a multiple of the cache; above 1 some
                    may have to make room and be computed again
    spec            "ngram": draft what followed the last tokens when they occurred before;
                    "none": draft only what a grammar forces
    max_draft       most tokens drafted at a time
    draft_sampling  a draft model draws its tokens as the request does, instead of taking the
                    likeliest. More of them are right where the model is unsure; but the answer is
                    then only as likely as without a draft model, not the same

    Raises UsageError for a value out of range.
    """

    max_jobs: int | None = None
    max_waiting: int | None = None
    target_s: float | None = 0.2
    prefix_caching: bool = True
    overcommit: float = 1.0
    spec: str = "none"
    max_draft: int = 8
    draft_sampling: bool = False

    def __post_init__(self) -> None:
        """Check every value."""
        if self.spec not in SPECULATIONS:
            raise UsageError(
                f"unknown speculation {self.spec!r}. Known: {', '.join(SPECULATIONS)}."
            )
        for name in ("max_jobs", "max_waiting"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be 1 or more.")
        if self.target_s is not None and not self.target_s > 0:
            raise UsageError(f"target_s is {self.target_s}; it must be above 0.")
        if not 1 <= self.overcommit <= 100:
            raise UsageError(f"overcommit is {self.overcommit}; it must be from 1 to 100.")
        if not 0 <= self.max_draft <= 64:
            raise UsageError(f"max_draft is {self.max_draft}; it must be from 0 to 64.")


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine at one moment, and what it has done since it was made.

    n_running      choices that hold slots of the cache
    n_waiting      choices that wait for them
    n_slots        slots of the cache
    n_slots_used   of these, in pages that a running choice or a session holds
    n_slots_cached of these, in free pages whose content another prompt could still use
    n_requests     submitted and not refused
    n_steps        forward passes
    n_computed     rows computed: of prompts, answers and drafts
    n_prompt       prompt tokens of the choices that were let in
    n_reused       of these, found in the cache
    n_generated    tokens chosen
    n_drafted      tokens drafted
    n_accepted     of these, right
    n_preempted    times that a choice had to make room
    step_s         seconds in forward passes
    busy_s         seconds in `step`
    """

    n_running: int
    n_waiting: int
    n_slots: int
    n_slots_used: int
    n_slots_cached: int
    n_requests: int
    n_steps: int
    n_computed: int
    n_prompt: int
    n_reused: int
    n_generated: int
    n_drafted: int
    n_accepted: int
    n_preempted: int
    step_s: float
    busy_s: float


@dataclass(slots=True)
class Totals:
    """What an engine has done since it was made; see `EngineStatus`."""

    n_requests: int = 0
    n_steps: int = 0
    n_computed: int = 0
    n_prompt: int = 0
    n_reused: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    step_s: float = 0.0
    busy_s: float = 0.0
