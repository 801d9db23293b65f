"""Groups of options: what reaches the command, llama.cpp's names, what is refused."""

# No "from __future__ import annotations" here: `expand` reads the annotations.

import math

import pytest
import typer

from quantcli.cli import options
from quantcli.cli.app import build
from quantcli.cli.options import LoadOptions, ModelOptions, SamplingOptions, expand
from quantcli.engine.request import SamplingParams
from quantcli.errors import UnknownName, UsageError

# Spellings that llama.cpp's programs accept, by the name of our parameter.
# Source: common/arg.cpp and tools/llama-bench of llama.cpp, commit 0c1e570.
LLAMA_CPP = {
    "run": {
        "model_option": ("-m", "--model"),
        "prompt": ("-p", "--prompt"),
        "file": ("-f", "--file"),
        "system": ("-sys", "--system-prompt"),
        "chat": ("-cnv",),
        "chat_template": ("--chat-template", "--chat-template-file"),
        "chat_template_kwargs": ("--chat-template-kwargs",),
        "max_tokens": ("-n", "--predict", "--n-predict"),
        "ctx": ("-c", "--ctx-size"),
        "threads": ("-t", "--threads"),
        "temp": ("--temp", "--temperature"),
        "top_k": ("--top-k",),
        "top_p": ("--top-p",),
        "min_p": ("--min-p",),
        "typical": ("--typical", "--typical-p"),
        "repeat_penalty": ("--repeat-penalty",),
        "repeat_last_n": ("--repeat-last-n",),
        "presence_penalty": ("--presence-penalty",),
        "frequency_penalty": ("--frequency-penalty",),
        "seed": ("-s", "--seed"),
        "logit_bias": ("-l", "--logit-bias"),
        "stop": ("-r", "--reverse-prompt"),
        "ignore_eos": ("--ignore-eos",),
        "context_shift": ("--context-shift",),
        "keep": ("--keep",),
        "kv_type": ("-ctk", "--cache-type-k", "-ctv", "--cache-type-v"),
        "verbose": ("-v", "--verbose"),
    },
    "bench": {
        "named": ("-m", "--model"),
        "n_prompt": ("-p", "--n-prompt"),
        "n_gen": ("-n", "--n-gen"),
        "depth": ("-d", "--n-depth"),
        "repetitions": ("-r", "--repetitions"),
        "threads": ("-t", "--threads"),
        "output": ("-o", "--output"),
    },
}


@pytest.mark.parametrize("command", LLAMA_CPP)
def test_llama_cpps_names_are_accepted(command: str) -> None:
    group = typer.main.get_command(build())
    found = {p.name: p.opts for p in group.commands[command].params}  # type: ignore[attr-defined]
    for name, spellings in LLAMA_CPP[command].items():
        assert set(spellings) <= set(found[name]), name


def parse(*words: str) -> dict[str, object]:
    """Run a command that has two groups, and return what reached it."""
    seen: dict[str, object] = {}

    @expand
    def command(plain: str = "x", *, load: LoadOptions, sampling: SamplingOptions) -> None:
        seen.update(plain=plain, load=load, sampling=sampling)

    app = typer.Typer()
    app.command()(command)
    typer.main.get_command(app).main(list(words), standalone_mode=False)
    return seen


def test_groups_arrive_as_objects_with_their_defaults() -> None:
    seen = parse()
    assert seen == {"plain": "x", "load": LoadOptions(), "sampling": SamplingOptions()}


def test_values_arrive_under_every_spelling() -> None:
    seen = parse("--plain", "y", "--ctx-size", "99", "-ctk", "q8_0", "--n-predict", "-1", "-s", "7")
    assert seen["plain"] == "y"
    assert seen["load"] == LoadOptions(ctx=99, kv_type=["q8_0"])
    assert seen["sampling"] == SamplingOptions(max_tokens=-1, seed=7)


def test_repeatable_options_keep_their_order() -> None:
    sampling = parse("-r", "b", "--stop", "a", "-l", "1+2", "-l", "3-inf")["sampling"]
    assert isinstance(sampling, SamplingOptions)
    params = sampling.params()
    assert params.stop == ("b", "a")
    assert params.logit_bias == {1: 2.0, 3: -math.inf}


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("15043+1", (15043, 1.0)),
        ("15043-1", (15043, -1.0)),
        ("15043=1.5", (15043, 1.5)),
        ("15043=-1.5", (15043, -1.5)),
        ("29905-inf", (29905, -math.inf)),
        ("0+1e2", (0, 100.0)),
    ],
)
def test_a_bias_is_read_in_both_notations(text: str, pair: tuple[int, float]) -> None:
    assert options._bias(text) == pair


@pytest.mark.parametrize("text", ["", "x", "1", "1=", "1=x", "-1=2", "1 2", "1=2=3", "1+nanny"])
def test_a_malformed_bias_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not ID=BIAS"):
        options._bias(text)


def test_user_goes_before_file_and_file_before_default() -> None:
    metadata = {"general.sampling.top_k": 20, "general.sampling.temp": 0.6}
    params = SamplingOptions(top_k=5).params(metadata)
    assert (params.top_k, params.temperature, params.top_p) == (5, 0.6, SamplingParams().top_p)


def test_options_that_are_not_given_are_llama_cpps_defaults() -> None:
    assert SamplingOptions().params() == SamplingParams(max_tokens=-1)


def test_a_model_is_named_once() -> None:
    assert ModelOptions(None).choose("a") == "a"
    assert ModelOptions("b").choose(None) == "b"
    with pytest.raises(UsageError, match="two models are named: a and -m b"):
        ModelOptions("b").choose("a")
    with pytest.raises(UsageError, match="no model is named"):
        ModelOptions(None).choose(None)


def test_keys_and_values_have_one_type() -> None:
    assert LoadOptions().chosen_kv_type() == "f16"
    assert LoadOptions(kv_type=["q8_0", "q8_0"]).chosen_kv_type() == "q8_0"
    with pytest.raises(UsageError, match="f16 and q8_0"):
        LoadOptions(kv_type=["q8_0", "f16"]).chosen_kv_type()


def test_names_are_checked_before_anything_is_loaded() -> None:
    assert LoadOptions().checked().chosen_backend() == "compiled"
    with pytest.raises(UnknownName, match="Did you mean paged"):
        LoadOptions(cache="page").checked()
    with pytest.raises(UnknownName, match="Did you mean reference"):
        LoadOptions(backend="refrence").checked()
