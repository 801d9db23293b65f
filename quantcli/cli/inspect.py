"""quantcli inspect: what is in a model file, and what running it takes."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import ContextOptions, Json, Lora, ModelArgument, ModelOptions, expand

if TYPE_CHECKING:
    from quantcli.arch import Hyper
    from quantcli.checkpoint import Checkpoint
    from quantcli.cli.render import JsonValue
    from quantcli.runtime.memory import MemoryPlan

SAMPLE = (
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "How are you?"},
)
_MAX_SHOWN = 6  # items of an array
_MAX_LISTED = 1024  # numbers of an array, in JSON


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    wanted: ContextOptions,
    tensors: Annotated[bool, Option("--tensors", help="List every tensor.")] = False,
    plan: Annotated[bool, Option("--plan", help="List the operations of a forward pass.")] = False,
    template: Annotated[
        bool, Option("--template", help="Show the chat template, and a short chat in it.")
    ] = False,
    lora: Lora = None,
    as_json: Json = False,
) -> None:
    """Show a model's metadata, tensors, plan and memory need.

    Of a LoRA adapter, its rank, what it is for and its tensors.
    """
    from quantcli.checkpoint.adapter import is_adapter
    from quantcli.checkpoint.store import resolve
    from quantcli.cli import render
    from quantcli.cli.adapters import resolved
    from quantcli.cli.inspect_adapter import show_adapter
    from quantcli.runtime.adapters import open_adapted

    wanted.chosen_kv_type()
    path = resolve(named.choose(model))
    if is_adapter(path):
        show_adapter(path, tensors=tensors, as_json=as_json)
        return
    with open_adapted(path, resolved(lora)) as checkpoint:
        if as_json:
            render.emit_json(document(checkpoint, wanted, plan=plan))
            return
        for line in report(checkpoint, wanted, tensors=tensors, plan=plan, template=template):
            print(line)


def document(checkpoint: "Checkpoint", wanted: ContextOptions, *, plan: bool) -> "JsonValue":
    """Return everything about a model, for --json."""
    built: dict[str, JsonValue] = {
        "summary": summary(checkpoint),
        "memory": memory(checkpoint, wanted),
        "metadata": {key: json_value(v) for key, v in items_of(checkpoint.metadata)},
        "tensors": [
            {"name": t.name, "shape": t.shape, "format": t.format.name, "nbytes": t.nbytes}
            for t in checkpoint.tensors.values()
        ],
        "chat_template_sample": _rendered(checkpoint.metadata),
    }
    if plan:
        built["plan"] = list(_plan_lines(checkpoint))
    return built


def report(
    checkpoint: "Checkpoint", wanted: ContextOptions, *, tensors: bool, plan: bool, template: bool
) -> Iterator[str]:
    """Yield the lines for people."""
    from quantcli.cli import render

    facts = summary(checkpoint)
    facts["files"] = (
        _shown(facts["files"]) if len(checkpoint.paths) > 1 else checkpoint.paths[0].name
    )
    yield "summary"
    yield render.facts(facts)
    yield "memory"
    yield render.facts(memory(checkpoint, wanted))
    yield "metadata"
    yield render.pairs(
        (k, render.shorten(_shown(v), 100)) for k, v in items_of(checkpoint.metadata)
    )
    yield "formats"
    yield _formats(checkpoint)
    if tensors:
        yield "tensors"
        yield _tensors(checkpoint)
    if plan:
        yield "plan"
        yield from (f"  {line}" for line in _plan_lines(checkpoint))
    if template:
        yield "chat template"
        source = str(checkpoint.metadata.get("tokenizer.chat_template", "none"))
        yield render.printable(source, keep="\n")
        yield "a chat in it"
        yield render.printable(_rendered(checkpoint.metadata) or "none", keep="\n")


def summary(checkpoint: "Checkpoint") -> "dict[str, JsonValue]":
    """Return what one wants to know first."""
    metadata = checkpoint.metadata
    facts: dict[str, JsonValue] = {
        "files": [path.name for path in checkpoint.paths],
        "name": _text(metadata, "general.name"),
        "architecture": _text(metadata, "general.architecture"),
        "licence": _joined(metadata, "general.license", "general.license.name"),
        "licence_link": _text(metadata, "general.license.link"),
        "parameters": checkpoint.n_params,
        "weights_nbytes": checkpoint.nbytes,
        "bits_per_weight": round(8 * checkpoint.nbytes / max(1, checkpoint.n_params), 3),
        "tokenizer": _joined(metadata, "tokenizer.ggml.model", "tokenizer.ggml.pre"),
        "chat_template": _text(metadata, "tokenizer.chat_template") is not None,
    }
    if checkpoint.adapters:
        facts["adapters"] = [adapter.path.name for adapter in checkpoint.adapters]
    if facts["licence_link"] is None:
        del facts["licence_link"]
    hyper = _hyper(checkpoint)
    if isinstance(hyper, str):
        facts["not_supported"] = hyper
        return facts | _notes(checkpoint)
    facts["layers"] = hyper.n_layers
    facts["width"] = hyper.d_model
    facts["heads"] = max(hyper.n_heads)
    facts["kv_heads"] = max(hyper.n_kv_heads)
    facts["head_dim"] = hyper.head_dim
    facts["vocabulary"] = hyper.n_vocab
    facts["train_context"] = hyper.context
    if why := _why_not(checkpoint):
        facts["not_supported"] = why
    return facts | _notes(checkpoint)


def _notes(checkpoint: "Checkpoint") -> "dict[str, JsonValue]":
    from quantcli.runtime.weights import repacking_notes

    notes = (*checkpoint.notes, *repacking_notes(checkpoint))
    return {"notes": " ".join(notes)} if notes else {}


def memory(checkpoint: "Checkpoint", wanted: ContextOptions) -> "dict[str, JsonValue]":
    """Return the memory plan by name, or why there is none."""
    from quantcli.cli.doctor import plan_facts
    from quantcli.errors import ModelError, ResourceError

    try:
        plan = memory_plan(checkpoint, wanted)
        return {"kv_type": wanted.chosen_kv_type(), **plan_facts(plan)}
    except (ModelError, ResourceError) as error:
        return {"none": str(error)}


def memory_plan(checkpoint: "Checkpoint", wanted: ContextOptions) -> "MemoryPlan":
    """Return what running a model takes.

    Raises ModelError if it cannot be run, ResourceError if it does not fit.
    """
    from quantcli.runtime.sizing import size_model

    context, kv_type = wanted.ctx or None, wanted.chosen_kv_type()
    return size_model(checkpoint, context=context, kv_type=kv_type).memory


def _hyper(checkpoint: "Checkpoint") -> "Hyper | str":
    """Return the hyper-parameters, or why there are none."""
    from quantcli.arch import Hyper
    from quantcli.errors import ModelError

    try:
        return Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    except ModelError as error:
        return str(error)


def _why_not(checkpoint: "Checkpoint") -> str | None:
    """Return what keeps a file of a known architecture from being run, None if nothing does.

    Memory is not looked at: that is the machine's business.
    """
    from quantcli.errors import ModelError, ResourceError
    from quantcli.runtime.sizing import size_model

    try:
        size_model(checkpoint, context=16)
    except ModelError as error:
        return str(error)
    except ResourceError:
        return None
    return None


def _plan_lines(checkpoint: "Checkpoint") -> Iterator[str]:
    """Yield the operations of a forward pass, or why there are none."""
    from quantcli.arch import get
    from quantcli.runtime.adapters import adapted

    hyper = _hyper(checkpoint)
    if isinstance(hyper, str):
        yield hyper
    else:
        yield from adapted(get(hyper.arch).build(hyper), checkpoint).lines()


def _formats(checkpoint: "Checkpoint") -> str:
    """Return a table of how much of the model is in which format."""
    from math import prod

    from quantcli.cli import render
    from quantcli.runtime.memory import size

    totals: dict[str, list[int]] = {}
    for info in checkpoint.tensors.values():
        counts = totals.setdefault(info.format.name, [0, 0, 0])
        for i, n in enumerate((1, prod(info.shape), info.nbytes)):
            counts[i] += n
    rows = [
        (
            f"  {name}",
            str(n),
            f"{n_params / 1e6:.2f} M",
            size(nbytes),
            f"{8 * nbytes / max(1, n_params):.4g}",
        )
        for name, (n, n_params, nbytes) in sorted(totals.items())
    ]
    headers = ("  format", "tensors", "parameters", "size", "bits per weight")
    return render.table(headers, rows, right="lrrrr")


def _tensors(checkpoint: "Checkpoint") -> str:
    """Return a table of the tensors."""
    from quantcli.cli import render

    rows = [
        (f"  {t.name}", " x ".join(map(str, t.shape)), t.format.name, f"{t.nbytes:,}")
        for t in checkpoint.tensors.values()
    ]
    return render.table(("  name", "shape", "format", "bytes"), rows, right="lrlr")


def _rendered(metadata: Mapping[str, object]) -> str | None:
    """Return a short chat in the model's template, or what is wrong with the template."""
    from quantcli.errors import QuantcliError
    from quantcli.text.chat import ChatTemplate

    try:
        template = ChatTemplate.from_metadata(metadata)
        return None if template is None else template.render(SAMPLE)
    except QuantcliError as error:
        return str(error)


def items_of(metadata: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield keys and values; a value that cannot be read is replaced by the reason."""
    from quantcli.errors import CheckpointError

    for key in metadata:
        try:
            yield key, metadata[key]
        except CheckpointError as error:
            yield key, f"<{error}>"


def _text(metadata: Mapping[str, object], key: str) -> str | None:
    """Return a value as text, None if it is missing."""
    return next((str(value) for found, value in items_of(metadata) if found == key), None)


def _joined(metadata: Mapping[str, object], *keys: str) -> str | None:
    """Return several values in one, the second and later in brackets, those missing left out."""
    found = [text for key in keys if (text := _text(metadata, key)) is not None]
    return f"{found[0]} ({', '.join(found[1:])})" if len(found) > 1 else "".join(found) or None


def _shown(value: object) -> str:
    """Return a metadata value on one line; of an array its length and first items."""
    if isinstance(value, float):
        return f"{value:.6g}"  # files hold f32
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return str(value)
    first = [str(value[i]) for i in range(min(len(value), _MAX_SHOWN))]  # type: ignore[index]
    more = ", ..." if len(value) > _MAX_SHOWN else ""
    count = "1 item" if len(value) == 1 else f"{len(value)} items"
    return f"{count}: {', '.join(first)}{more}"


def json_value(value: object) -> "JsonValue":
    """Return a metadata value for --json, long arrays as their length and first items."""
    if isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "tolist") and len(value) <= _MAX_LISTED:  # type: ignore[arg-type]
        return value.tolist()  # type: ignore[no-any-return]
    return _shown(value)
