"""The comparison with llama.cpp reads what both programs print and computes the right ratios."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from types import ModuleType

import pytest

from quantcli.kernels import matmul

# What llama-bench of llama.cpp (build 1, commit 0c1e570) printed for `-p 16 -n 4 -r 2 -t 2
# -o json` with SmolLM2-135M Q4_1, its settings left out.
LLAMA_BENCH = """[
  {
    "build_commit": "0c1e570", "model_filename": "smol.gguf", "model_type": "llama 256M Q4_1",
    "n_threads": 2, "n_prompt": 16, "n_gen": 0, "n_depth": 0,
    "avg_ns": 47398070, "stddev_ns": 55808, "avg_ts": 337.566711, "stddev_ts": 0.391371,
    "samples_ns": [ 47436928, 47359213 ], "samples_ts": [ 337.29, 337.843 ]
  },
  {
    "build_commit": "0c1e570", "model_filename": "smol.gguf", "model_type": "llama 256M Q4_1",
    "n_threads": 2, "n_prompt": 0, "n_gen": 4, "n_depth": 0,
    "avg_ns": 28173671, "stddev_ns": 431907, "avg_ts": 141.993206, "stddev_ts": 2.176452,
    "samples_ns": [ 28479030, 27868313 ], "samples_ts": [ 140.454, 143.532 ]
  }
]
"""
# What `quantcli bench -o json` prints: the same keys and some of its own.
QUANTCLI_BENCH = """[
  {
    "quantcli": "0.1.0", "model_filename": "smol.gguf", "instruction_set": "avx512_vnni",
    "n_threads": 2, "n_prompt": 16, "n_gen": 0, "n_depth": 0, "avg_ns": 16000000.0,
    "avg_ts": 1000.5, "stddev_ts": 0.0, "median_ts": 1000.5, "samples_ts": [1000.5]
  },
  {
    "quantcli": "0.1.0", "model_filename": "smol.gguf", "instruction_set": "avx512_vnni",
    "n_threads": 2, "n_prompt": 0, "n_gen": 4, "n_depth": 0, "avg_ns": 12000000.0,
    "avg_ts": 333.25, "stddev_ts": 0.0, "median_ts": 333.25, "samples_ts": [333.25]
  }
]
"""
CPUINFO = """processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu sse4_2 fma avx2 f16c avx512f avx512bw avx512_vnni avx512_bf16
processor\t: 1
model name\t: AMD EPYC
"""


@pytest.fixture(scope="module")
def peers(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["peers"]


def test_llama_bench_json_gives_tokens_per_second_by_test(peers: ModuleType) -> None:
    assert peers.parse(LLAMA_BENCH) == {"pp16": 337.566711, "tg4": 141.993206}


def test_quantcli_json_gives_the_same_tests(peers: ModuleType) -> None:
    assert peers.parse(QUANTCLI_BENCH) == {"pp16": 1000.5, "tg4": 333.25}


def test_quantcli_bench_has_the_keys_that_are_read() -> None:
    from quantcli.cli.bench_results import Result

    keys = {field.name for field in dataclasses.fields(Result)}
    assert {"n_prompt", "n_gen", "n_depth", "avg_ts"} <= keys


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"n_prompt": 512, "n_gen": 0}, "pp512"),
        ({"n_prompt": 0, "n_gen": 128, "n_depth": 0}, "tg128"),
        ({"n_prompt": 512, "n_gen": 128}, "pp512+tg128"),
        ({"n_prompt": 0, "n_gen": 128, "n_depth": 2048}, "tg128 @ d2048"),
        ({"n_prompt": 0, "n_gen": 128, "n_depth": 0, "n_sequences": 4}, "tg128 x4"),
    ],
)
def test_a_test_is_named_as_llama_bench_names_it(
    peers: ModuleType, entry: dict[str, int], name: str
) -> None:
    assert peers.test_name(entry) == name


@pytest.mark.parametrize("output", ["", "error: no such model", "[1]", '[{"n_prompt": 1}]', "3"])
def test_other_output_is_an_error_that_shows_it(peers: ModuleType, output: str) -> None:
    with pytest.raises(ValueError, match="no benchmark JSON") as error:
        peers.parse(output)
    assert output in str(error.value)


def test_the_ratio_is_of_medians_so_one_slow_round_changes_nothing(peers: ModuleType) -> None:
    ours = [{"tg128": 300.0}, {"tg128": 310.0}, {"tg128": 10.0}]
    theirs = [{"tg128": 150.0}, {"tg128": 100.0}, {"tg128": 151.0}]
    (found,) = peers.compare("m.gguf", ours, theirs)
    assert found.ratio == 2.0


def test_only_tests_that_every_round_of_both_measured_are_compared(peers: ModuleType) -> None:
    ours = [{"pp512": 1.0, "tg128": 1.0}, {"pp512": 1.0, "tg128": 1.0}]
    theirs = [{"pp512": 1.0}, {"pp512": 1.0, "tg128": 1.0}]
    assert [c.test for c in peers.compare("m.gguf", ours, theirs)] == ["pp512"]


def test_the_table_shows_medians_spread_and_ratio(peers: ModuleType) -> None:
    found = peers.Comparison("m.gguf", "pp512", (900.0, 1000.0, 1200.0), (240.0, 250.0, 260.0))
    row = "| m.gguf | pp512 | 1000.0 (900.0-1200.0) | 250.0 (240.0-260.0) | 4.00 |"
    assert peers.markdown([found]).splitlines()[-1] == row


def test_the_json_keeps_every_round(peers: ModuleType) -> None:
    found = peers.Comparison("m.gguf", "pp512", (2.0, 4.0), (1.0, 2.0))
    document = json.loads(peers.as_json([found], {"python": "3.11"}))
    assert document["python"] == "3.11"
    (result,) = document["results"]
    assert result["ours"] == [2.0, 4.0]
    assert result["ratio"] == 2.0


def test_cpuinfo_gives_the_model_and_only_flags_that_choose_kernels(peers: ModuleType) -> None:
    flags = ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"]
    assert peers.parse_cpuinfo(CPUINFO) == {"model": "AMD EPYC", "flags": flags}


def test_a_machine_without_cpuinfo_still_has_a_name(peers: ModuleType) -> None:
    found = peers.parse_cpuinfo("")
    assert found["model"]
    assert found["flags"] == []


def test_programs_take_turns(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def measure(command: list[str]) -> dict[str, float]:
        is_ours = "quantcli" in command
        ran.append("ours" if is_ours else "theirs")
        assert command[-10:] == ["-p", "16", "-n", "4", "-t", "2", "-r", "1", "-o", "json"]
        return {"pp16": 10.0 * len(ran), "tg4": 3.0} if is_ours else {"pp16": 4.0, "tg4": 2.0}

    monkeypatch.setattr(peers, "measure", measure)
    parser = argparse.ArgumentParser()
    peers.add_arguments(parser, n_prompt=16, n_gen=4, rounds=2, repetitions=1)
    options = parser.parse_args(["--llama-bench", "llama-bench"])
    prompt, generated = peers.take_turns("a", Path("a.gguf"), options)
    assert ran == ["ours", "theirs"] * 2
    assert (prompt.test, prompt.ours, prompt.theirs) == ("pp16", (10.0, 30.0), (4.0, 4.0))
    assert generated.ratio == 1.5


def test_formats_are_all_that_have_kernels(peers: ModuleType) -> None:
    assert sorted(peers.FORMATS) == sorted(matmul.names())
