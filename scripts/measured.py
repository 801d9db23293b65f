"""Pages of docs/ that are made from what commands print.

A part is one command. What it printed is kept as JSON, with the machine and the version, so that
parts can be measured at different times and the page be made from all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import peers
from environment import ROOT, interpreter

Record = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Page:
    """A page: made by `script` from `template`, out of what is kept in `results`."""

    name: str

    @property
    def script(self) -> str:
        """Where it is made."""
        return f"scripts/make_{self.name}_docs"

    @property
    def template(self) -> Path:
        """What stands around the figures."""
        return ROOT / "scripts" / f"{self.name}.md"

    @property
    def target(self) -> Path:
        """The page."""
        return ROOT / "docs" / f"{self.name}.md"

    @property
    def results(self) -> Path:
        """What was measured."""
        return ROOT / "build" / self.name


@dataclass(frozen=True, slots=True)
class Part:
    """One command.

    name      what it is called on the command line
    section   the section of the page that it belongs to
    command   its words; the first is a script or "quantcli"
    shown     the same, as readers see it: without this machine's paths
    isa       what QUANTCLI_ISA is set to, "" for the best
    """

    name: str
    section: str
    command: tuple[str, ...]
    shown: str
    isa: str = ""


def part(name: str, section: str, words: tuple[str, ...], isa: str = "") -> Part:
    """Return a part as readers see it too: without this machine's paths."""
    shown = " ".join(Path(word).name if "/" in word and i else word for i, word in enumerate(words))
    return Part(name, section, words, f"QUANTCLI_ISA={isa} {shown}" if isa else shown, isa)


def chosen(every: Sequence[Part], words: Sequence[str]) -> list[Part]:
    """Return the parts that words mean: a part's name, or a section for all of its parts.

    Raises ValueError for a word that means none.
    """
    for word in words:
        if not any(word in (part.name, part.section) for part in every):
            names = ", ".join(part.name for part in every)
            raise ValueError(f"no part {word!r}; there are {names}")
    return [part for part in every if not words or {part.name, part.section} & set(words)]


def record(part: Part, output: str, *, date: str, revision: str, peer: str = "") -> Record:
    """Return what is kept of a part that was measured."""
    return {
        "part": part.name,
        "section": part.section,
        "command": part.shown,
        "date": date,
        "quantcli": revision,
        "peer": peer,
        "cpu": peers.cpu(),
        "output": output,
    }


def records(folder: Path) -> dict[str, Record]:
    """Return everything that was kept in a folder, by part."""
    found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.json"))]
    return {kept["part"]: kept for kept in found}


def tables(output: str) -> str:
    """Return a program's output without the lines that repeat the command and the processor."""
    kept = []
    for line in output.splitlines():
        if line.startswith(("    scripts/", "- cpu:", "- quantcli:", "- llama.cpp:", "- python:")):
            continue
        kept.append(re.sub(r"; cpu: \{.*\}$", "", line).rstrip())
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    is_markdown = not text or any(line.startswith("|") for line in text.splitlines())
    return text if is_markdown else f"```\n{text}\n```"


def render(template: str, kept: Mapping[str, Record], script: str) -> str:
    """Return the page: a line `<!-- parts: SECTION -->` becomes what was measured for it."""

    def fill(match: re.Match[str]) -> str:
        blocks = _blocks([r for r in kept.values() if r["section"] == match[1]])
        missing = f"Not measured on this machine; `{script} {match[1]}` does."
        return "\n\n".join(blocks) or missing

    return re.sub(r"<!-- parts: (\w+) -->", fill, template).rstrip() + "\n"


def _blocks(found: Sequence[Record]) -> list[str]:
    """Return each part's command, where and when it ran, and its tables.

    Tables with the same columns become one where command, place and time are the same, too.
    """
    blocks: list[tuple[str, str]] = []
    for kept in found:
        head, table = _head(kept), tables(str(kept["output"]))
        columns = "\n".join(table.splitlines()[:2]) + "\n"
        if blocks and blocks[-1][0] == head and blocks[-1][1].startswith(columns):
            table = f"{blocks.pop()[1]}\n{table.removeprefix(columns)}"
        blocks.append((head, table))
    return [f"{head}\n\n{table}" for head, table in blocks]


def _head(kept: Record) -> str:
    """Return a part's command, and where and when it ran."""
    cpu = kept["cpu"]
    assert isinstance(cpu, Mapping)
    where = f"{cpu['model']}, {cpu['n_cores']} logical cores ({', '.join(cpu['flags'])})"
    peer = f", {kept['peer']}" if kept.get("peer") else ""
    note = f"{kept['date']}, quantcli {kept['quantcli']}{peer}, {where}, {cpu['system']}"
    return f"    {kept['command']}\n\n{note}"


def add_arguments(parser: argparse.ArgumentParser, page: Page) -> None:
    """Add the options that all pages have."""
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts or sections (all)")
    parser.add_argument("--results", type=Path, default=page.results)
    parser.add_argument("--list", action="store_true", help="list the parts and end")
    parser.add_argument("--render", action="store_true", help="measure nothing")


def make(page: Page, every: Sequence[Part], options: argparse.Namespace) -> None:
    """Measure the parts that are asked for, then write the page."""
    try:
        wanted = [] if options.render else chosen(every, options.parts)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    if options.list:
        show(every, options.results)
        return
    options.results.mkdir(parents=True, exist_ok=True)
    for number, what in enumerate(wanted, 1):
        print(f"{number} of {len(wanted)}: {what.name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        measure(what, options.results)
        print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    kept = records(options.results)
    order = [what.name for what in every]
    last = len(order)
    ranked = sorted(kept, key=lambda name: order.index(name) if name in order else last)
    text = page.template.read_text(encoding="utf-8")
    text = render(text, {name: kept[name] for name in ranked}, page.script)
    page.target.write_text(text, encoding="utf-8", newline="\n")
    print(f"wrote {page.target.relative_to(ROOT)} from {len(kept)} parts")


def show(every: Sequence[Part], results: Path) -> None:
    """List the parts and when each was measured."""
    kept = records(results)
    for part in every:
        date = kept[part.name]["date"] if part.name in kept else "-"
        print(f"{part.name:<24} {date:<12} {part.shown}")


def measure(what: Part, results: Path) -> None:
    """Run a part's command and keep what it printed."""
    program, *arguments = what.command
    words = ["-m", program] if program == "quantcli" else [str(ROOT / program)]
    environment = dict(os.environ)
    if what.isa:
        environment["QUANTCLI_ISA"] = what.isa
    done = subprocess.run(
        [interpreter(), *words, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{what.shown}\nended with {done.returncode}")
    kept = record(
        what,
        done.stdout,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        revision=revision(),
        peer=peer_version(what),
    )
    path = results / f"{what.name}.json"
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)


def revision() -> str:
    """Return this checkout's commit, marked if files differ from it."""
    git = ["git", "-C", str(ROOT)]
    commit = run([*git, "rev-parse", "--short=10", "HEAD"]).strip()
    changed = [line[3:] for line in run([*git, "status", "--porcelain", "-uno"]).splitlines()]
    is_same = all(name.startswith("docs/") for name in changed)  # this page, for one
    return commit if is_same else f"{commit}-dirty"


def run(words: list[str]) -> str:
    """Return what a program prints."""
    return subprocess.run(words, capture_output=True, encoding="utf-8", check=False).stdout


def peer_version(part: Part) -> str:
    """Return the version of the program that a part compares with, "" if there is none."""
    given = [i for i, word in enumerate(part.command) if word.startswith("--llama-")]
    if not given:
        return ""
    program = Path(part.command[given[0] + 1])
    folder = program if program.is_dir() else program.parent
    if program.is_dir() or program.name == "llama-quantize":  # which does not tell its version
        program = folder / "llama-perplexity"
    done = subprocess.run(
        [str(program), "--version"], capture_output=True, encoding="utf-8", check=False
    )
    line = " ".join((done.stdout + done.stderr).split("\n")[0].split())
    return f"llama.cpp {line}"
