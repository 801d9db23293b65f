"""docs/performance.md is made from what commands printed, with the command and the machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from source_tree import ROOT

CPU = {"model": "A CPU", "flags": ["avx2"], "n_cores": 4, "system": "Linux"}
MODELS = (Path("/some/where/a.gguf"), Path("/some/where/b.gguf"))


@pytest.fixture(scope="module")
def performance(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["performance"]


@pytest.fixture(scope="module")
def measured(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["measured"]


def setup(performance: ModuleType, **options: Any) -> Any:
    return performance.Setup(**{"models": MODELS, "threads": 2} | options)


def test_every_section_of_the_page_has_its_parts(performance: ModuleType) -> None:
    bench = {"llama_bench": Path("/x/llama-bench"), "llama_bench_avx2": Path("/y/llama-bench")}
    bench["llama_quantize"] = Path("/x/llama-quantize")
    parts = performance.parts(setup(performance, **bench))
    template = (ROOT / "scripts" / "performance.md").read_text(encoding="utf-8")
    sections = re.findall(r"<!-- parts: (\w+) -->", template)
    assert sections == list(dict.fromkeys(part.section for part in parts))
    assert len({part.name for part in parts}) == len(parts)
    assert [part.isa for part in parts if part.section == "avx2"] == ["avx2", "avx2"]


def test_without_llama_cpp_its_parts_are_left_out(performance: ModuleType) -> None:
    sections = {part.section for part in performance.parts(setup(performance))}
    assert sections == {
        *("bench", "threads", "kv", "serving", "drafts", "draft_model", "pages", "start"),
        "kernels",
    }
    lonely = performance.parts(setup(performance, models=()))
    assert [part.name for part in lonely] == ["kernels-random"]


def test_commands_are_shown_without_paths(performance: ModuleType) -> None:
    bench = {"llama_bench": Path("/x/llama-bench"), "llama_bench_avx2": Path("/y/llama-bench")}
    parts = {p.name: p for p in performance.parts(setup(performance, **bench))}
    assert parts["avx2-b"].shown == (
        "QUANTCLI_ISA=avx2 scripts/bench_peers --llama-bench llama-bench b.gguf -t 2"
    )
    assert parts["bench-a"].shown == "quantcli bench a.gguf --full -r 3 -t 2"
    assert not any("/some" in part.shown or "/x/" in part.shown for part in parts.values())
    assert str(MODELS[0]) in parts["bench-a"].command


def test_scripts_that_parts_run_exist_and_take_their_options(performance: ModuleType) -> None:
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for part in performance.parts(setup(performance, llama_bench=Path("/x/llama-bench"))):
        program = part.command[0]
        text = reference
        if program != "quantcli":
            text = "".join(
                (ROOT / file).read_text(encoding="utf-8") for file in (program, "scripts/peers.py")
            )
        for option in (word for word in part.command if re.match(r"-+[a-z]", word)):
            assert option in text, (part.name, option)


@pytest.mark.parametrize(("most", "sweep"), [(1, "1"), (2, "1,2"), (6, "1,2,4,6"), (8, "1,2,4,8")])
def test_threads_double_up_to_what_is_asked_for(
    performance: ModuleType, most: int, sweep: str
) -> None:
    parts = {p.name: p for p in performance.parts(setup(performance, threads=most))}
    assert f"-t {sweep} " in parts["threads"].shown


def test_a_word_means_a_part_or_a_section(performance: ModuleType, measured: ModuleType) -> None:
    every = performance.parts(setup(performance))
    assert measured.chosen(every, []) == every
    names = [part.name for part in measured.chosen(every, ["kv", "kernels"])]
    assert names == ["kv", "kernels-random", "kernels-a", "kernels-b"]
    with pytest.raises(ValueError, match="no part 'peers'; there are bench-a"):
        measured.chosen(every, ["peers"])


def test_output_loses_what_the_page_says_already(measured: ModuleType) -> None:
    output = (
        '    scripts/bench_peers x\n\n- cpu: {"model": "A"}\n- quantcli: 1\n\n\n| a |\n|---|\n'
        '- m.gguf: 94 MiB; cpu: {"model": "A", "flags": []}\n- weights read for one row: 9 MB\n'
    )
    assert measured.tables(output) == (
        "| a |\n|---|\n- m.gguf: 94 MiB\n- weights read for one row: 9 MB"
    )


def kept(part: str, section: str, output: str = "| x |\n|---|") -> dict[str, object]:
    return {
        "part": part,
        "section": section,
        "command": f"scripts/{section} m.gguf",
        "date": "2026-01-02",
        "quantcli": "abc123",
        "peer": "llama.cpp version: 1",
        "cpu": CPU,
        "output": output,
    }


def test_the_page_has_command_machine_and_table_of_each_part(measured: ModuleType) -> None:
    template = "# T\n\n<!-- parts: kv -->\n\n## Start\n\n<!-- parts: start -->\n"
    page = measured.render(
        template,
        {"a": kept("a", "kv"), "b": kept("b", "kv", "| y |")},
        "scripts/make_performance_docs",
    )
    note = "2026-01-02, quantcli abc123, llama.cpp version: 1, A CPU, 4 logical cores (avx2), Linux"
    assert page == (
        f"# T\n\n    scripts/kv m.gguf\n\n{note}\n\n| x |\n|---|\n\n"
        f"    scripts/kv m.gguf\n\n{note}\n\n| y |\n\n## Start\n\n"
        "Not measured on this machine; `scripts/make_performance_docs start` does.\n"
    )


def test_tables_of_one_command_become_one(measured: ModuleType) -> None:
    outputs = ("| x |\n|---|\n| 1 |", "| x |\n|---|\n| 2 |", "| y |\n|---|\n| 3 |")
    parts = {str(i): kept(str(i), "kv", output) for i, output in enumerate(outputs)}
    page = measured.render("<!-- parts: kv -->", parts, "make")
    assert page.count("    scripts/kv m.gguf\n") == 2
    assert "\n\n| x |\n|---|\n| 1 |\n| 2 |\n\n" in page
    parts["1"] = {**parts["1"], "date": "2026-01-03"}
    assert measured.render("<!-- parts: kv -->", parts, "make").count("| x |") == 2


def test_formats_are_one_command_for_the_reader(performance: ModuleType) -> None:
    bench = {"llama_bench": Path("/x/llama-bench"), "llama_bench_avx2": Path("/y/llama-bench")}
    parts = [p for p in performance.parts(setup(performance, **bench)) if "formats" in p.section]
    assert {part.shown for part in parts} == {
        "scripts/bench_formats --llama-bench llama-bench -t 2",
        "QUANTCLI_ISA=avx2 scripts/bench_formats --llama-bench llama-bench -t 2",
    }
    q4_0 = next(part for part in parts if part.name == "formats-q4_0")
    assert q4_0.command[-2:] == ("--formats", "q4_0")


def test_what_was_kept_is_found_again(
    performance: ModuleType, measured: ModuleType, tmp_path: Path
) -> None:
    part = performance.parts(setup(performance))[0]
    record = measured.record(part, "| x |", date="2026-01-02", revision="abc")
    (tmp_path / f"{part.name}.json").write_text(json.dumps(record), encoding="utf-8")
    assert measured.records(tmp_path) == {part.name: record}
    assert measured.records(tmp_path / "none") == {}


def test_the_script_lists_parts_and_refuses_what_is_not_there(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "make_performance_docs")]
    words = ["--list", "--results", str(tmp_path)]
    done = subprocess.run([*script, *words], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0
    assert done.stdout.startswith("kernels-random ")
    done = subprocess.run(
        [*script, "--model", "none.gguf"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 2
    assert "none.gguf: no such file" in done.stderr
