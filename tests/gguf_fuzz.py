"""Spoil GGUF files at random and see that each opens or is refused, and nothing worse.

Each case runs in a process forked from this one, which has imported everything and is warm, under
limits on CPU time, wall time and memory. A case fails if its process dies by a signal or a limit,
raises anything but a QuantcliError of one line, or leaves a file open. `scripts/fuzz` runs any
number of them.

To let a case go further, add a function to PROBES.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import psutil
from gguf import GGUFWriter
from gguf_builder import GGUF
from gguf_mutations import load, spoil_bytes, spoil_fields
from tiny import write_tiny

from quantcli import arch, text
from quantcli.checkpoint import Checkpoint, StringArray, open_checkpoint
from quantcli.errors import QuantcliError
from quantcli.text.chat import ChatTemplate, encode_chat
from quantcli.text.stream import TextStream

CPU_S = 2
WALL_S = 60  # for a process that sleeps or waits; generous, as the machine may be busy
MEMORY_NBYTES = 200 << 20
OPENED, REFUSED, FAILED = 0, 1, 2  # exit codes of a case


# What is done with a file


def read_everything(checkpoint: Checkpoint) -> None:
    """Read each value and each tensor."""
    for key in checkpoint.metadata:
        value = checkpoint.metadata[key]
        if isinstance(value, StringArray):
            value.to_list()
    for info in checkpoint.tensors.values():
        checkpoint.read_into(info.name, np.empty(min(info.nbytes, 1 << 20), np.uint8))


def build_plan(checkpoint: Checkpoint) -> None:
    """Read the hyper-parameters, build the plan and hold it against the tensors."""
    hyper = arch.Hyper.from_metadata(checkpoint.metadata, checkpoint.tensors)
    plan = arch.get(hyper.arch).build(hyper)
    plan.verify()
    arch.check_tensors(plan, checkpoint.tensors)


TEXT = "Hello  w\u00f6rld,\n it's 12345 \U0001f600 <|im_start|><bos>\t\0 the end"
MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": TEXT},
)


def use_tokenizer(checkpoint: Checkpoint) -> None:
    """Turn text into tokens and back, whole and one by one."""
    tokenizer = text.from_metadata(checkpoint.metadata)
    ids = tokenizer.encode(TEXT)
    tokenizer.encode(TEXT, parse_special=True)
    tokenizer.decode(ids)
    stream = TextStream(tokenizer)
    for token in (*ids, *range(min(tokenizer.n_vocab, 300)), *sorted(tokenizer.eog)):
        stream.push(token)
        tokenizer.token_text(token)
        tokenizer.is_control(token)
    stream.finish()


def use_chat_template(checkpoint: Checkpoint) -> None:
    """Render a conversation and turn it into tokens."""
    template = ChatTemplate.from_metadata(checkpoint.metadata)
    if template is not None:
        encode_chat(text.from_metadata(checkpoint.metadata), template, MESSAGES)


PROBES: tuple[Callable[[Checkpoint], None], ...] = (
    read_everything,
    use_tokenizer,
    use_chat_template,
    build_plan,
)


def probe(path: Path) -> bool:
    """Do everything with a file; return whether nothing was refused."""
    try:
        checkpoint = open_checkpoint(path)
    except QuantcliError as error:
        require_sentence(error)
        return False
    fine = True
    with checkpoint:
        for stage in PROBES:
            try:
                stage(checkpoint)
            except QuantcliError as error:
                require_sentence(error)
                fine = False
    return fine


def require_sentence(error: QuantcliError) -> None:
    """Refuse a refusal that is not one line, or that repeats much of what the file says."""
    message = str(error)
    assert message.isprintable(), repr(message[:1000])
    assert len(message) < 1500, message[:2000]  # lists of what is known are long


# A case in its own process


@dataclass(frozen=True)
class Outcome:
    """How a case ended: an exit code, or -signal; and the traceback of what it raised."""

    code: int
    trace: str

    @property
    def failed(self) -> bool:
        """Whether it did anything but open or refuse the file."""
        return self.code not in (OPENED, REFUSED)

    def __str__(self) -> str:
        if self.code < 0:
            return f"died by {signal.Signals(-self.code).name}"
        return self.trace


def run_limited(path: Path) -> Outcome:
    """Probe a file in a forked process under limits."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        os._exit(_run(path, writer))
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        trace = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Outcome(code, trace)


def _run(path: Path, writer: int) -> int:
    """Probe a file and return the exit code; nothing must escape from a forked process."""
    unraisable: list[str] = []
    try:
        sys.unraisablehook = lambda hook: unraisable.append(f"{hook.err_msg}: {hook.exc_value}")
        warnings.simplefilter("error")  # that of a file left open becomes unraisable
        _limit()
        code = OPENED if probe(path) else REFUSED
        if not unraisable:
            return code
        report = "\n".join(unraisable)
    except BaseException:  # noqa: BLE001 - whatever it is, it is what we look for
        report = traceback.format_exc()
    os.write(writer, report[-8000:].encode("utf-8", "backslashreplace"))
    return FAILED


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    if sys.platform == "linux":  # elsewhere the limit is not enforced
        nbytes = psutil.Process().memory_info().vms + MEMORY_NBYTES
        resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))


# The files


@dataclass(frozen=True)
class Seed:
    """A good file: as bytes, as fields, and where its tensors' bytes begin."""

    name: str
    data: bytes
    fields: GGUF
    head_nbytes: int


def every_type(path: Path) -> Path:
    """Write a file with a key of each type, arrays of them, and tensors of several types."""
    writer = GGUFWriter(path, "llama")
    for type_name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{type_name}")(f"some.{type_name}", 7)
    writer.add_float32("some.float32", 0.5)
    writer.add_float64("some.float64", 0.25)
    writer.add_bool("some.bool", True)
    writer.add_string("some.text", "hello")
    writer.add_array("some.numbers", list(range(100)))
    writer.add_array("some.floats", [0.5, 1.5, -2.5])
    writer.add_array("some.bools", [True, False])
    writer.add_array("some.texts", ["", "a", "b" * 300, "\u00e9"])
    writer.add_array("some.many", [f"token {i}" for i in range(3000)])
    writer.add_tensor("a.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("b.weight", np.arange(32, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def seeds(folder: Path) -> Iterator[Seed]:
    """Write and yield good files: one with every type of value, and tiny models."""
    paths = [every_type(folder / "types.gguf")]
    for name, options in (
        ("llama", {"rope_freqs": True}),
        ("llama", {"tokenizer": "spm", "rope_scaling": "yarn", "biases": True}),
        ("qwen2", {"biases": True, "weight_format": "q8_0"}),
        ("qwen3", {"weight_format": "q4_k", "tied": True}),
        ("gemma3", {"weight_format": "mix", "window_pattern": 2}),
    ):
        path = folder / f"{name}-{len(paths)}.gguf"
        paths.append(write_tiny(path, name, n_layers=1, **options))
    for path in paths:
        fields = load(path)
        yield Seed(path.stem, path.read_bytes(), fields, len(fields.head()))


def case(all_seeds: list[Seed], seed: int, number: int) -> tuple[str, bytes]:
    """Return the name and bytes of one case; they depend on the two numbers alone."""
    random = Random(f"{seed} {number}")
    good = random.choice(all_seeds)
    if random.random() < 0.5:
        return f"bytes of {good.name}", spoil_bytes(good.data, good.head_nbytes, random)
    return f"fields of {good.name}", spoil_fields(good.fields, random)


# The command


def main(arguments: list[str] | None = None) -> int:
    """Run cases; print how many opened and were refused, and how to repeat each failure."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("n_cases", nargs="?", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--file", type=Path, help="probe this file, without limits")
    parser.add_argument("--keep", type=Path, help="folder for the files of failed cases")
    options = parser.parse_args(arguments)
    if options.file:
        say("opened" if probe(options.file) else "refused")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return fuzz(options, Path(folder))


def fuzz(options: argparse.Namespace, folder: Path) -> int:
    """Run cases and return how the command ends."""
    all_seeds = list(seeds(folder))
    path = folder / "case.gguf"
    for good in all_seeds:  # warms this process up, too
        path.write_bytes(good.data)
        probe(path)
    say(f"seed {options.seed}, cases {options.first} to {options.first + options.n_cases - 1}")
    ends: Counter[int] = Counter()
    for number in range(options.first, options.first + options.n_cases):
        name, data = case(all_seeds, options.seed, number)
        path.write_bytes(data)
        outcome = run_limited(path)
        ends[FAILED if outcome.failed else outcome.code] += 1
        if outcome.failed:
            say(f"case {number}, {name}: {outcome}")
            say(f"repeat it with: scripts/fuzz 1 --seed {options.seed} --first {number}")
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                kept = options.keep / f"{options.seed}-{number}.gguf"
                kept.write_bytes(data)
                say(f"look at it with: scripts/fuzz --file {kept}")
    say(f"{ends[OPENED]} opened, {ends[REFUSED]} refused, {ends[FAILED]} failed")
    return 1 if ends[FAILED] else 0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
