"""How results of `bench` are shown, and compared with those of another day."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from quantcli.cli.bench_compare import compare, machine_notes, read_entries
from quantcli.cli.bench_results import Result, Row, as_csv, footer, workload_name
from quantcli.errors import UsageError

OURS = Result(
    quantcli="0.1.0",
    program="quantcli 0.1.0",
    cpu_info="A CPU",
    model_filename="m.gguf",
    model_type="A model",
    model_size=90_000_000,
    model_n_params=134_500_000,
    backends="compiled",
    instruction_set="avx2",
    n_threads=2,
    type_k="f16",
    type_v="f16",
    cache="contiguous",
    n_prompt=0,
    n_gen=128,
    n_depth=0,
    n_sequences=1,
    avg_ns=1e9,
    stddev_ns=1e7,
    avg_ts=128.4,
    stddev_ts=1.25,
    median_ts=128.0,
    samples_ns=(1_000_000_000,),
    samples_ts=(128.0,),
)


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"n_prompt": 512, "n_gen": 0}, "pp512"),
        ({"n_prompt": 0, "n_gen": 128, "n_depth": 2048, "n_sequences": 1}, "tg128 @ d2048"),
        ({"n_prompt": 0, "n_gen": 128, "n_depth": 0, "n_sequences": 4}, "tg128 x4"),
        ({"n_prompt": 512, "n_gen": 128}, "pp512+tg128"),
        ({}, ""),
    ],
)
def test_a_test_has_one_name_in_both_programs_files(entry: dict[str, int], name: str) -> None:
    assert workload_name(entry) == name


def test_a_row_has_mean_deviation_median_and_share() -> None:
    cells = Row(replace(OURS, read_share=0.724)).cells()
    assert cells == (
        "A model",
        "90.0 MB",
        "134 M",
        "compiled avx2",
        "2",
        "tg128",
        "128.40 \u00b1 1.25",
        "128.00",
        "72% of reads",
    )
    prompt = replace(OURS, n_prompt=512, n_gen=0, dot_share=0.5, type_k="q8_0")
    assert Row(prompt).cells()[3] == "compiled avx2, kv q8_0"
    assert Row(prompt).cells()[-1] == "50% of dots"
    assert Row(OURS).cells()[-1] == "-"


def test_a_peers_row_shows_its_median_and_the_ratio() -> None:
    row = Row(OURS, replace(OURS, median_ts=64.0))
    assert row.ratio == 2.0
    assert row.cells()[-2:] == ("64.00", "2.00")


def test_the_footer_says_once_what_holds_for_many_tests() -> None:
    known = replace(
        OURS,
        kernels_s=0.25,
        load_s=0.5,
        first_token_s=0.125,
        first_token_prompt=512,
        peak_memory_nbytes=300_000_000,
        read_nbytes_per_s=2e10,
        dot_macs_per_s=4e11,
    )
    lines = footer([known, replace(known, n_depth=2048, dot_macs_per_s=5e11), OURS])
    assert lines == [
        "A model in quantcli 0.1.0, 2 threads, kv f16: kernels ready in 0.25 s, loaded in 0.50 s, "
        "first token of a 512-token prompt after 0.125 s, peak memory 300 MB",
        "A CPU, avx2, 2 threads: plain reads 20.0 GB/s, integer dots 500 G multiply-adds/s",
    ]
    assert footer([OURS]) == []


def test_csv_has_a_column_a_field_but_no_samples() -> None:
    (row,) = csv.DictReader(io.StringIO(as_csv([replace(OURS, cpu_info='A "CPU", 2 GHz')])))
    assert row["cpu_info"] == 'A "CPU", 2 GHz'
    assert float(row["median_ts"]) == 128.0
    assert not any(name.startswith("samples") for name in row)
    assert set(row) | {"samples_ns", "samples_ts"} == set(asdict(OURS))


def entries(*results: Result) -> list[dict[str, object]]:
    """Return results as a file gives them back."""
    return json.loads(json.dumps([asdict(result) for result in results]))  # type: ignore[no-any-return]


def test_a_ratio_is_of_medians_of_the_same_test() -> None:
    old = entries(replace(OURS, n_gen=64), replace(OURS, samples_ts=(60.0, 64.0, 90.0)))
    (change,) = compare([OURS], old)
    assert change.then == 64.0
    assert change.ratio == 2.0
    assert change.differences == ()
    assert change.cells() == ("A model", "2", "tg128", "64.00", "128.00", "2.00", "")


def test_the_record_with_the_closest_settings_is_taken_and_what_differs_is_said() -> None:
    old = entries(replace(OURS, n_threads=8, type_k="q8_0"), replace(OURS, n_threads=4))
    (change,) = compare([OURS], old)
    assert change.differences == ("threads 4 then",)
    (change,) = compare([OURS], old[:1])
    assert change.differences == ("threads 8 then", "kv q8_0 then")


def test_a_test_that_the_file_lacks_has_no_ratio() -> None:
    (change,) = compare([OURS], entries(replace(OURS, model_filename="other.gguf")))
    assert change.ratio is None
    assert change.cells()[3:] == ("-", "128.00", "-", "not in the file")


def test_the_peers_results_are_compared_with_the_peers() -> None:
    peer = replace(OURS, program="llama-cpp-python 0.3.16")
    old = entries(replace(OURS, samples_ts=(1.0,)), replace(peer, samples_ts=(2.0,)))
    now = [OURS, replace(peer, program="llama-cpp-python 0.3.36")]
    assert [change.then for change in compare(now, old)] == [1.0, 2.0]


def test_llama_benchs_file_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    record = {
        "model_filename": "some/where/m.gguf",
        "n_threads": 2,
        "type_k": "f16",
        "n_prompt": 0,
        "n_gen": 128,
        "n_depth": 0,
        "backends": "CPU",
        "cpu_info": "Another CPU",
        "avg_ts": 64.0,
    }
    path.write_text(json.dumps([record]), encoding="utf-8")
    old = read_entries(path)
    (change,) = compare([OURS], old)
    assert change.ratio == 2.0
    assert change.differences == ("backend CPU then",)
    assert list(machine_notes([OURS], old)) == ["processor then: Another CPU; now: A CPU"]


def test_notes_say_what_of_machine_and_version_is_not_the_same() -> None:
    old = entries(replace(OURS, quantcli="0.0.9", instruction_set="avx512_vnni"))
    assert list(machine_notes([OURS], old)) == [
        "instruction set then: avx512_vnni; now: avx2",
        "quantcli then: 0.0.9; now: 0.1.0",
    ]
    assert list(machine_notes([OURS], entries(OURS))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{}", "holds no results"),
        ("[1]", "holds no results"),
        ('[{"n_gen": 1}]', "holds no results"),
        ('[{"avg_ts": true}]', "holds no results"),
        ('[{"avg_ts": 0}]', "holds no results"),
        ("\ufeff[]", "is not JSON"),
        ('[{"avg_ts": 1, "samples_ts": ["x"]}, 2]', "holds no results"),
    ],
)
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        read_entries(path)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_entries(tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe[]")
    with pytest.raises(UsageError, match="is not JSON"):
        read_entries(tmp_path / "bytes.json")
