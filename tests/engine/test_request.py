from __future__ import annotations

import math
from dataclasses import fields

import pytest

from quantcli.engine.request import FILE_KEYS, Request, SamplingParams, ignored_file_keys
from quantcli.errors import CheckpointError, UsageError


def test_defaults_are_llama_cpps() -> None:
    p = SamplingParams()
    assert (p.temperature, p.top_k, p.top_p, p.min_p, p.typical_p) == (0.8, 40, 0.95, 0.05, 1.0)
    assert (p.repeat_penalty, p.repeat_last_n) == (1.0, 64)
    assert (p.presence_penalty, p.frequency_penalty) == (0.0, 0.0)
    assert (p.seed, p.max_tokens, p.stop, p.ignore_eos) == (None, None, (), False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_k", 1.5),
        ("top_k", True),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 2.0),
        ("typical_p", math.nan),
        ("repeat_penalty", 0.0),
        ("repeat_last_n", -2),
        ("presence_penalty", 1e9),
        ("frequency_penalty", -math.inf),
        ("seed", 2**64),
        ("seed", -2),
        ("max_tokens", -2),
        ("n_logprobs", -1),
        ("temperature", None),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"a": 0.0}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: 1e7}),
        ("logit_bias", {1: "x"}),
        ("stop", "text"),
        ("stop", ("",)),
        ("stop", (1,)),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match="stop" if name == "stop" else name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("top_k", 0),
        ("top_k", -1),
        ("top_p", 0.0),
        ("repeat_last_n", -1),
        ("seed", 2**64 - 1),
        ("seed", -1),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("n_logprobs", 0),
        ("logit_bias", {0: -math.inf}),
        ("stop", ("a", "\n")),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


def test_the_user_goes_before_the_file_and_the_file_before_the_default() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.name": "model",
    }
    p = SamplingParams.resolve({"temperature": 0.1, "top_p": None}, metadata)
    assert (p.temperature, p.top_k, p.top_p) == (0.1, 20, 0.95)
    assert SamplingParams.resolve({}) == SamplingParams()


def test_every_file_key_sets_its_parameter() -> None:
    names = {f.name for f in fields(SamplingParams)}
    for key, name in FILE_KEYS.items():
        assert name in names
        assert getattr(SamplingParams.resolve({}, {key: 1}), name) == 1


@pytest.mark.parametrize(("value", "top_k"), [(20, 20), (20.0, 20), ("20", 20)])
def test_files_hold_numbers_of_any_type(value: object, top_k: int) -> None:
    assert SamplingParams.resolve({}, {"general.sampling.top_k": value}).top_k == top_k


@pytest.mark.parametrize("value", ["many", math.nan, math.inf, 1.5, [1], None, 2**40])
def test_a_wrong_value_in_the_file_is_the_files_fault(value: object) -> None:
    metadata = {"general.sampling.top_k": value}
    with pytest.raises(CheckpointError, match=r"general\.sampling\.top_k is"):
        SamplingParams.resolve({}, metadata)
    assert SamplingParams.resolve({"top_k": 5}, metadata).top_k == 5


def test_keys_without_a_counterpart_are_named() -> None:
    metadata = {
        "general.sampling.mirostat": 2,
        "general.sampling.temp": 1.0,
        "general.sampling.xtc_threshold": 0.1,
        "general.type": "model",
    }
    assert ignored_file_keys(metadata) == (
        "general.sampling.mirostat",
        "general.sampling.xtc_threshold",
    )


def test_n_keep_below_minus_1_is_refused() -> None:
    with pytest.raises(UsageError, match="n_keep is -2"):
        Request((1,), n_keep=-2)


def test_a_stop_string_that_no_answer_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="not valid UTF-8"):
        SamplingParams(stop=("\udcff",))


def test_limits_of_whole_numbers_are_shown_in_full() -> None:
    with pytest.raises(UsageError, match="from -1 to 18446744073709551615"):
        SamplingParams(seed=-2)
