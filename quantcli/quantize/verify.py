"""After writing: is the file what was meant, and does it still speak?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quantcli.arch import Hyper
from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.checkpoint.gguf_write import WriteValue
from quantcli.errors import CheckpointError, ModelError, ResourceError
from quantcli.evaluate import divergence, perplexity
from quantcli.evaluate.corpus import read_text
from quantcli.evaluate.divergence import Divergence
from quantcli.evaluate.estimates import Estimate
from quantcli.evaluate.protocol import Chunk, cut, protocol
from quantcli.evaluate.rows import predictions
from quantcli.quantize.job import Job
from quantcli.runtime.model import Model
from quantcli.runtime.sizing import size_model
from quantcli.text import Tokenizer, from_metadata

Progress = Callable[[str, int, int], None]

N_CHUNKS = 4  # of held-out text: a few seconds for a small model, and an error of a few percent
_CONTEXT = 512
_PROMPT = "Once upon a time"
_N_SAMPLE = 24  # tokens of the sample


@dataclass(frozen=True, slots=True)
class Verification:
    """What a file that was written is worth.

    perplexity  on held-out text
    divergence  from the source on the same text; None where the source did not fit beside it
    sample      a prompt and what the model makes of it, always choosing the likeliest token
    text        what the text is
    note        why something was left out, or ""
    """

    perplexity: Estimate
    divergence: Divergence | None
    sample: str
    text: str
    n_scored: int
    note: str = ""


def check_file(job: Job, path: Path) -> None:
    """Open a file and compare it with what was to be written.

    Raises CheckpointError for a tensor or key that is not what it should be.
    """
    with open_checkpoint(path) as written:
        found = [(t.name, t.shape, t.format.name) for t in written.tensors.values()]
        wanted = [(c.name, c.shape, c.format.name) for c in job.choices]
        if found != wanted:
            pairs = zip(found, wanted, strict=False)
            odd = next((pair for pair in pairs if pair[0] != pair[1]), (len(found), len(wanted)))
            raise CheckpointError(f"{path}: verification found {odd[0]} where {odd[1]} belongs.")
        for key in [*job.metadata, *written.metadata]:
            if not _same(written.metadata.get(key), job.metadata.get(key)):
                raise CheckpointError(f"{path}: verification found another value of key {key}.")


def measure(
    source: Checkpoint,
    path: Path,
    *,
    n_threads: int,
    n_chunks: int = N_CHUNKS,
    backend: str = "compiled",
    progress: Progress | None = None,
) -> Verification:
    """Measure a model against its source on text that no calibration has seen.

    path   a GGUF file or a Hugging Face folder

    Raises ModelError if its logits are not finite, ResourceError if it does not fit in memory.
    """
    text = read_text()
    with open_checkpoint(path) as written:
        tokenizer = from_metadata(written.metadata)
        trained = Hyper.from_metadata(source.metadata, source.tensors).context
        how = protocol(context=min(_CONTEXT, trained))
        bos = tokenizer.bos if tokenizer.add_bos else None
        tokens = tokenizer.encode(text.content)
        chunks = cut(tokens, how, bos, n_chunks=n_chunks, source=text.name)
        context = min(how.context + _N_SAMPLE, trained)
        options = _Load(context, n_threads, backend)
        with _loaded(written, options, progress) as model:
            note, found = "", None
            if _fits(source, context):
                with _loaded(source, options, progress) as base:
                    found = _diverge(source, base, model, chunks, progress)
                ppl = found.perplexity
            else:
                note = "the source does not fit in memory beside it, so only perplexity is measured"
                parts = list(perplexity.score(model, chunks, name=path.name, progress=progress))
                ppl = perplexity.summarize(parts).value
            return Verification(
                perplexity=ppl,
                divergence=found,
                sample=sample(model, tokenizer),
                text=text.title,
                n_scored=sum(len(chunk.targets) for chunk in chunks),
                note=note,
            )


def sample(model: Model, tokenizer: Tokenizer, n_tokens: int = _N_SAMPLE) -> str:
    """Return a prompt and how the model goes on, choosing the likeliest token each time.

    Raises ModelError if its logits are not finite.
    """
    prompt = tokenizer.with_bos(tokenizer.encode(_PROMPT))
    written: list[int] = []
    step = prompt
    while len(written) < n_tokens:
        start = len(prompt) + len(written) - len(step)
        rows = predictions(model, step, start=start, first=len(step) - 1)
        (logits,) = [slab[-1].copy() for _, slab in rows]
        if not np.isfinite(logits).any():
            raise ModelError("the file's logits are not finite: quantizing has damaged the model.")
        token = int(logits.argmax())
        if tokenizer.is_control(token):
            break
        written.append(token)
        step = [token]
    return _PROMPT + tokenizer.decode(written)


def _diverge(
    source: Checkpoint,
    base: Model,
    model: Model,
    chunks: Sequence[Chunk],
    progress: Progress | None,
) -> Divergence:
    names = (source.paths[0].stem, "the quantized model")
    parts = list(divergence.measure(base, model, chunks, names=names, progress=progress))
    return divergence.summarize(divergence.Positions.join(parts), is_exact=True)


def _fits(checkpoint: Checkpoint, context: int) -> bool:
    """Return whether a model can be loaded beside what is in memory now."""
    try:
        return size_model(checkpoint, context=context).memory.fits
    except ResourceError:
        return False


class _Load(NamedTuple):
    context: int
    n_threads: int
    backend: str


@contextmanager
def _loaded(checkpoint: Checkpoint, options: _Load, progress: Progress | None) -> Iterator[Model]:
    model = Model.load(checkpoint, **options._asdict(), progress=progress)
    try:
        yield model
    finally:
        model.close()


def _same(found: object, wanted: WriteValue | None) -> bool:
    """Return whether a value that was read is the one that was written."""
    if found is None or wanted is None:
        return False
    if hasattr(found, "encoded") and hasattr(wanted, "encoded"):
        return bool(found.encoded() == wanted.encoded())
    if hasattr(found, "to_list"):
        return bool(found.to_list() == list(wanted))  # type: ignore[arg-type]
    return bool(np.array_equal(np.asarray(found), np.asarray(wanted)))
