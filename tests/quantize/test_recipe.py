"""Recipes: llama-quantize's choices for every model and file type, and what users may change."""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
from recipe_cases import CASES, OPTIONS_CASE, THEIRS, Case, Stored, stored

from quantcli import catalog
from quantcli.errors import UnknownName, UsageError
from quantcli.formats import get
from quantcli.quantize.mixes import ALIASES, CONDITIONS, MIXES, UNWRITTEN, kind_of, mix
from quantcli.quantize.recipe import (
    Choice,
    Facts,
    Override,
    Recipe,
    assign,
    in_layer_order,
    quantizes,
)

GOLDEN = Path(__file__).parent.parent / "goldens" / "recipes.json"


@cache
def golden() -> dict[str, dict[str, dict[str, str]]]:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def compact(choices: dict[str, Choice]) -> dict[str, str]:
    kinds: dict[str, list[str]] = {}
    for name in in_layer_order(choices):
        if kind_of(name) != "other":
            kinds.setdefault(kind_of(name), []).append(choices[name].format.name)
    return {
        kind: " ".join(f"{name}*{len(list(run))}" for name, run in groupby(names))
        for kind, names in sorted(kinds.items())
    }


def assigned(case: Case, recipe: Recipe, *, has_imatrix: bool = False) -> dict[str, Choice]:
    return assign(
        stored(case), Facts.from_metadata(case.metadata()), recipe, has_imatrix=has_imatrix
    )


@pytest.mark.parametrize("mix_name", THEIRS)
@pytest.mark.parametrize("case_name", CASES)
def test_every_tensor_gets_the_format_that_llama_quantize_gives_it(
    case_name: str, mix_name: str
) -> None:
    recipe = Recipe(mix(mix_name), policy="llama.cpp")
    expected = golden()[case_name]
    plain = assigned(CASES[case_name], recipe)
    assert compact(plain) == expected[mix_name]
    weighted = assigned(CASES[case_name], recipe, has_imatrix=True)
    assert compact(weighted) == expected[f"{mix_name} imatrix"]


@pytest.mark.parametrize(
    ("key", "recipe"),
    [
        ("pure", {"pure": True}),
        ("output", {"output": "q5_k"}),
        ("embedding", {"embedding": "q8_0"}),
        ("both", {"output": "q4_k", "embedding": "q3_k"}),
    ],
)
def test_options_do_what_they_do_in_llama_quantize(key: str, recipe: dict[str, object]) -> None:
    chosen = assigned(CASES[OPTIONS_CASE], Recipe(mix("q4_k_m"), **recipe))
    assert compact(chosen) == golden()[OPTIONS_CASE][f"q4_k_m {key}"]


def test_the_first_override_that_is_found_in_a_name_decides() -> None:
    overrides = (Override.parse("ffn_up=q8_0"), Override.parse("ffn_(gate|up)=Q3_K"))
    chosen = assigned(CASES[OPTIONS_CASE], Recipe(mix("q4_k_m"), overrides))
    assert compact(chosen) == golden()[OPTIONS_CASE]["q4_k_m ffn"]
    assert {c.reason for n, c in chosen.items() if "ffn_up" in n} == {"override"}


def test_an_override_changes_only_what_it_names() -> None:
    plain = assigned(CASES["llama_32"], Recipe(mix("q4_k_m")))
    name = "blk.3.attn_v.weight"
    changed = assigned(
        CASES["llama_32"], Recipe(mix("q4_k_m"), (Override.parse(re.escape(name) + "=q8_0"),))
    )
    assert changed[name].format.name == "q8_0"
    assert {n for n in plain if plain[n].format.name != changed[n].format.name} == {name}


def test_an_override_counts_with_16_bit_types_too() -> None:
    chosen = assigned(CASES["llama_32"], Recipe(mix("f16"), (Override.parse("ffn=q8_0"),)))
    assert chosen["blk.0.ffn_up.weight"].format.name == "q8_0"
    assert chosen["blk.0.attn_q.weight"].format.name == "f16"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ffn_down", "is not REGEX=TYPE"),
        ("=q4_0", "is not REGEX=TYPE"),
        ("ffn_down=", "is not REGEX=TYPE"),
        ("ffn_(=q4_0", "is not a regular expression"),
    ],
)
def test_a_bad_override_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Override.parse(text)


def test_an_override_to_an_unknown_format_names_the_closest() -> None:
    with pytest.raises(UnknownName, match="Did you mean q4_k"):
        Override.parse("ffn_down=q4k")


def test_the_output_matrix_can_stay_as_it_is() -> None:
    chosen = assigned(CASES["llama_32"], Recipe(mix("q4_k_m"), keep_output=True))
    assert chosen["output.weight"].format.name == "f16"
    assert chosen["output.weight"].reason == "kept"


def test_vectors_norms_and_routers_stay_as_they_are() -> None:
    assert not quantizes("blk.0.attn_norm.weight", (256,))
    assert not quantizes("blk.0.attn_q_norm.weight", (8, 32))
    assert not quantizes("blk.0.ffn_gate_inp.weight", (8, 256))
    assert not quantizes("blk.0.attn_q.bias", (2, 256))
    assert not quantizes("output.weight", (1, 256))
    assert quantizes("blk.0.ffn_down_exps.weight", (8, 1, 256))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("llama.cpp", {"attn_q": "q5_0", "ffn_down": "q6_k", "token_embd": "q8_0"}),
        ("size", {"attn_q": "iq4_nl", "ffn_down": "q6_k", "token_embd": "q5_1"}),
    ],
)
def test_rows_that_do_not_fit_get_another_format_and_a_reason(
    policy: str, expected: dict[str, str]
) -> None:
    chosen = assigned(CASES["width_576"], Recipe(mix("q4_k_m"), policy=policy))
    for kind, name in expected.items():
        tensor = "token_embd.weight" if kind == "token_embd" else f"blk.0.{kind}.weight"
        assert chosen[tensor].format.name == name
        assert (chosen[tensor].reason == "fallback") == (chosen[tensor].wanted != name)


def test_rows_that_fit_no_block_stay_in_16_bits() -> None:
    chosen = assigned(CASES["width_40"], Recipe(mix("q4_k_m")))
    assert chosen["blk.0.attn_q.weight"].format.name == "f16"
    assert chosen["blk.0.attn_q.weight"].wanted == "q4_k"


@pytest.mark.parametrize(("alias", "name"), [*ALIASES.items(), ("Q4_K_M", "q4_k_m")])
def test_names_are_read_as_llama_quantize_reads_them(alias: str, name: str) -> None:
    assert mix(alias).name == name
    assert mix(alias.upper()).name == name


def test_an_unknown_type_names_the_closest() -> None:
    with pytest.raises(UnknownName, match="Did you mean q4_k_m"):
        mix("q4km")


@pytest.mark.parametrize("name", ["IQ2_XS", *sorted(UNWRITTEN), "iq2_m", "iq3_m", "iq3_xs"])
def test_what_is_only_read_is_refused_in_one_sentence(name: str) -> None:
    message = rf"^{name.lower()} can be read and run but not written; \w+.* can be written\.$"
    with pytest.raises(UsageError, match=message):
        mix(name)
    if name.lower() in UNWRITTEN:
        with pytest.raises(UsageError, match=message):
            Override.parse(f"ffn_down={name}")


def test_every_row_of_the_table_is_whole() -> None:
    names = [row.name for row in MIXES]
    assert len(names) == len(set(names))
    known = set(catalog.names("format"))
    for row in MIXES:
        used = {row.default, row.output, *(rule.format for rule in row.rules)}
        used |= {row.embedding or row.default, row.experts or row.default}
        assert used <= known, row.name
        assert {rule.when for rule in row.rules} <= set(CONDITIONS)


def test_requantizing_is_told_from_quantizing() -> None:
    def choice(source: str, target: str) -> Choice:
        return Choice("w.weight", (2, 256), get(source), get(target), "mix")

    assert choice("q8_0", "q4_0").loses_twice
    assert not choice("q8_0", "q8_0").loses_twice
    assert not choice("bf16", "q4_0").loses_twice


def test_a_source_of_another_order_gets_the_same_formats() -> None:
    case = CASES["llama_36_tied"]
    tensors: dict[str, Stored] = stored(case)
    backwards = dict(reversed(tensors.items()))
    facts = Facts.from_metadata(case.metadata())
    first = assign(tensors, facts, Recipe(mix("q4_k_m")))
    second = assign(backwards, facts, Recipe(mix("q4_k_m")))
    assert {n: c.format.name for n, c in first.items()} == {
        n: c.format.name for n, c in second.items()
    }
