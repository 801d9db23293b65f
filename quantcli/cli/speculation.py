"""Options for drafts, and the draft model."""

# No "from __future__ import annotations" here: Typer and `expand` read the annotations.

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.options import LoadOptions
    from quantcli.engine.options import EngineOptions
    from quantcli.runtime.model import Model
    from quantcli.text import Tokenizer

Progress = Callable[[str, int, int], None]
SPECULATIONS = ("none", "ngram")

_CONTEXT = 8192  # of a draft model; beyond it nothing is drafted


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """How tokens are drafted."""

    spec: Annotated[
        str,
        Option(
            "--spec",
            metavar="KIND",
            help="Draft tokens: ngram, from what the text said before; the answer is the same.",
        ),
    ] = "none"
    draft: Annotated[
        str | None,
        Option(
            "--draft",
            "-md",
            "--model-draft",
            metavar="MODEL",
            help="Draft tokens with a small model of the same family.",
            show_default=False,
        ),
    ] = None
    draft_max: Annotated[
        int, Option("--draft-max", min=1, max=64, metavar="N", help="Most tokens of a draft.")
    ] = 8
    draft_sampling: Annotated[
        bool,
        Option(
            "--draft-sampling",
            help="The draft model draws its tokens, not the likeliest: more are right, but the "
            "answer is another one than without drafts, as likely.",
        ),
    ] = False

    def checked(self) -> "SpeculationOptions":
        """Return these options after checking their names."""
        if self.spec not in SPECULATIONS:
            raise UnknownName("speculation", self.spec, SPECULATIONS)
        if self.draft_sampling and self.draft is None:
            raise UsageError("--draft-sampling is for a draft model; give one with --draft.")
        return self

    def engine_options(self, max_jobs: int | None = None) -> "EngineOptions":
        """Return the engine's options."""
        from quantcli.engine.options import EngineOptions

        return EngineOptions(
            spec=self.spec,
            max_draft=self.draft_max,
            draft_sampling=self.draft_sampling,
            max_jobs=max_jobs,
        )


@dataclass
class Draft:
    """A loaded draft model and its file."""

    checkpoint: "Checkpoint"
    model: "Model"

    def close(self) -> None:
        """Give memory back and close the file."""
        self.model.close()
        self.checkpoint.close()


def load_draft(
    path: Path, target: "Tokenizer", options: "LoadOptions", n_sequences: int, progress: Progress
) -> Draft:
    """Load a draft model, before the model it drafts for, which is given what memory is left.

    Raises UsageError if its vocabulary is another one.
    """
    from quantcli.checkpoint import open_checkpoint
    from quantcli.engine.draft_model import check_vocabularies
    from quantcli.runtime.model import Model
    from quantcli.text import from_metadata

    checkpoint = open_checkpoint(path)
    try:
        check_vocabularies(target, from_metadata(checkpoint.metadata))
        model = Model.load(
            checkpoint,
            context=options.ctx or _CONTEXT,
            n_threads=options.threads,
            kv_type=options.chosen_kv_type(),
            cache="paged",
            n_sequences=n_sequences,
            backend=options.chosen_backend(),
            progress=progress,
        )
    except BaseException:
        checkpoint.close()
        raise
    return Draft(checkpoint, model)
