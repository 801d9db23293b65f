"""quantcli doctor: what this machine offers and what quantcli will use of it."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import ContextOptions, Json, ModelArgument, ModelOptions, expand

if TYPE_CHECKING:
    from pathlib import Path

    from quantcli.cli.render import JsonValue
    from quantcli.runtime.memory import MemoryPlan

LIBRARIES = ("numpy", "numba", "llvmlite", "gguf", "tokenizers", "sentencepiece", "huggingface-hub")


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    wanted: ContextOptions,
    bandwidth: Annotated[
        bool, Option("--bandwidth", help="Measure how fast memory is read; takes a second.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what this machine offers and what quantcli will use."""
    from quantcli.cli import render

    sections = {
        "software": software(),
        "processor": processor(),
        "memory": memory(bandwidth=bandwidth),
        "folders": folders(),
    }
    if model is not None or named.model_option is not None:
        sections["model"] = model_memory(named.choose(model), wanted)
    if as_json:
        render.emit_json(sections)
        return
    for title, facts in sections.items():
        print(title)
        print(render.facts(facts))


def software() -> "dict[str, JsonValue]":
    """Return the versions of Python and of the libraries that matter."""
    import platform
    from importlib import metadata

    from quantcli import __version__

    facts: dict[str, JsonValue] = {
        "quantcli": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = None
    return facts


def processor() -> "dict[str, JsonValue]":
    """Return the CPU, the instruction set in use and the threads."""
    from quantcli.cli.machine import cpu_name
    from quantcli.kernels.isa import select, usable
    from quantcli.runtime.threads import cpu_facts, threads_for

    cpu = cpu_facts()
    return {
        "name": cpu_name(),
        "instruction_set": select().name,
        "usable": [isa.name for isa in usable()],
        "physical_cores": cpu.physical,
        "logical_cpus": cpu.logical,
        "affinity": cpu.affinity,
        "cgroup_quota": cpu.quota,
        "default_threads": threads_for(cpu),
    }


def memory(*, bandwidth: bool) -> "dict[str, JsonValue]":
    """Return total, available and limit in bytes, and on request the read bandwidth."""
    from quantcli.runtime import cgroup
    from quantcli.runtime.memory import available_memory, total_memory

    facts: dict[str, JsonValue] = {
        "total_nbytes": total_memory(),
        "available_nbytes": available_memory(),
        "cgroup_limit_nbytes": cgroup.memory_limit(),
    }
    if bandwidth:
        from quantcli.evaluate.machine import read_bandwidth
        from quantcli.runtime.threads import default_threads

        facts["read_nbytes_per_s"] = read_bandwidth(default_threads())
    return facts


def folders() -> "dict[str, JsonValue]":
    """Return where models and compiled kernels are kept, and how much they take."""
    from quantcli.checkpoint.home import home
    from quantcli.checkpoint.hub_cache import cache_folder
    from quantcli.cli.machine import folder_nbytes
    from quantcli.kernels.jit import cache_dir

    kernels = cache_dir()
    facts: dict[str, JsonValue] = {}
    for name, path in (("models", home()), ("hub_cache", cache_folder()), ("kernels", kernels)):
        facts[name] = str(path)
        facts[f"{name}_used_nbytes"] = folder_nbytes(path)
    facts["kernels_state"] = _kernel_state(kernels)
    return facts


def _kernel_state(folder: "Path") -> str:
    import os

    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return (
            f"cannot be kept: {place} is not a folder that may be written to, so every start "
            "compiles; set QUANTCLI_CACHE_DIR"
        )
    n_compiled = sum(1 for _ in folder.rglob("*.nbc")) if folder.is_dir() else 0
    if not n_compiled:
        return "empty; the first run compiles, once"
    return f"{n_compiled} functions compiled for this version and CPU"


def model_memory(name: str, wanted: ContextOptions) -> "dict[str, JsonValue]":
    """Return what a model would take of this machine's memory."""
    from quantcli.checkpoint import open_checkpoint
    from quantcli.checkpoint.store import resolve
    from quantcli.cli.inspect import memory_plan
    from quantcli.runtime.weights import repacking_notes

    with open_checkpoint(resolve(name)) as checkpoint:
        facts = plan_facts(memory_plan(checkpoint, wanted))
        if notes := repacking_notes(checkpoint):
            facts["notes"] = " ".join(notes)
        return facts


def plan_facts(plan: "MemoryPlan") -> "dict[str, JsonValue]":
    """Return a memory plan's numbers by name."""
    return {
        "context": plan.context,
        "weights_nbytes": plan.weights_nbytes,
        "kv_nbytes_per_token": plan.kv_nbytes_per_token,
        "kv_nbytes": plan.kv_nbytes,
        "buffers_nbytes": plan.buffers_nbytes,
        "total_nbytes": plan.total,
        "available_nbytes": plan.available,
        "fits": plan.fits,
    }
