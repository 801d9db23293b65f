"""Which tests `bench` runs, and under which settings."""

from __future__ import annotations

import pytest

from quantcli.cli.bench_grid import GridOptions, Setting, numbers, split
from quantcli.errors import UnknownName, UsageError


def names(**options: object) -> list[str]:
    return [w.name for w in GridOptions(**options).workloads()]  # type: ignore[arg-type]


def test_by_default_it_is_llama_benchs_two_tests() -> None:
    assert names() == ["pp512", "tg128"]


def test_every_depth_and_batch_that_is_named_is_tested() -> None:
    assert names(n_prompt="8,16", n_gen="4", depth="0,32", batch="1,2") == [
        "pp8",
        "pp16",
        "tg4",
        "tg4 x2",
        "pp8 @ d32",
        "pp16 @ d32",
        "tg4 @ d32",
        "tg4 x2 @ d32",
    ]


def test_full_adds_depths_and_batches_but_not_both_at_once() -> None:
    batches = ["tg128", "tg128 x2", "tg128 x4", "tg128 x8", "tg128 x16"]
    deep = [f"{test} @ d{depth}" for depth in (2048, 8192) for test in ("pp512", "tg128")]
    assert names(full=True) == ["pp512", *batches, *deep]
    assert names(full=True, depth="0", batch="3") == ["pp512", "tg128 x3"]


def test_a_zero_leaves_a_kind_of_test_out() -> None:
    assert names(n_prompt="0") == ["tg128"]
    assert names(n_gen="0") == ["pp512"]
    with pytest.raises(UsageError, match="nothing to measure"):
        names(n_prompt="0", n_gen="0")


@pytest.mark.parametrize("text", ["", "1,,2", "many", "1.5", "1e3", "8;9", "0x10"])
def test_what_is_no_list_of_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of whole numbers such as 128 or 128,512"):
        numbers("--depth", text)


@pytest.mark.parametrize(
    ("option", "text", "least", "message"),
    [
        ("--depth", "-1", 0, "--depth -1: give whole numbers from 0 to 2147483647"),
        ("--depth", "1,99999999999", 0, "--depth 99999999999"),
        ("--batch", "0", 1, "--batch 0: give whole numbers from 1 to 65536"),
        ("--threads", "2,1025", 1, "--threads 1025: give whole numbers from 1 to 1024"),
    ],
)
def test_a_number_out_of_range_is_refused(option: str, text: str, least: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        numbers(option, text, least)


def test_a_number_given_twice_is_tested_once() -> None:
    assert numbers("--n-gen", "8, 4,8") == [8, 4]


def test_settings_are_threads_by_kv_types() -> None:
    options = GridOptions(threads="1,4", kv_type="f16, q8_0")
    assert options.settings(lambda: 9) == [
        Setting(1, "f16"),
        Setting(4, "f16"),
        Setting(1, "q8_0"),
        Setting(4, "q8_0"),
    ]
    assert GridOptions().settings(lambda: 9) == [Setting(9, "f16")]
    with pytest.raises(UnknownName, match="Did you mean q8_0"):
        GridOptions(kv_type="q8").settings(lambda: 1)


def test_tests_of_several_sequences_have_a_cache_of_their_own() -> None:
    parts = split(GridOptions(n_prompt="8", n_gen="4", batch="1,2").workloads())
    assert [[w.name for w in part] for part in parts] == [["pp8", "tg4"], ["tg4 x2"]]
    assert len(split(GridOptions(batch="2", n_prompt="0").workloads())) == 1
