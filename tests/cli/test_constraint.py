"""Options for grammars and drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantcli.cli.constraint import ConstraintOptions
from quantcli.cli.serve import ServeEngineOptions
from quantcli.cli.speculation import SPECULATIONS, SpeculationOptions
from quantcli.engine import options
from quantcli.engine.request import GrammarSpec
from quantcli.errors import UnknownName, UsageError


def test_each_option_names_its_kind_of_grammar(tmp_path: Path) -> None:
    schema, gbnf = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_text('{"type": "object"}\n', encoding="utf-8")
    gbnf.write_text('root ::= "é"\n', encoding="utf-8")
    for given, spec in (
        (ConstraintOptions(), None),
        (ConstraintOptions(json_schema="{}"), GrammarSpec("json_schema", "{}")),
        (
            ConstraintOptions(json_schema_file=str(schema)),
            GrammarSpec("json_schema", '{"type": "object"}'),
        ),
        (ConstraintOptions(grammar='root ::= "a"'), GrammarSpec("gbnf", 'root ::= "a"')),
        (ConstraintOptions(grammar='start: "a"'), GrammarSpec("lark", 'start: "a"')),
        (ConstraintOptions(grammar_file=str(gbnf)), GrammarSpec("gbnf", 'root ::= "é"')),
        (ConstraintOptions(regex="a+"), GrammarSpec("regex", "a+")),
    ):
        assert given.spec() == spec


def test_two_grammars_and_one_that_is_wrong_are_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="--grammar and --regex are given"):
        ConstraintOptions(grammar="x", regex="y").spec()
    with pytest.raises(UsageError, match="no valid JSON"):
        ConstraintOptions(json_schema="{").spec()
    with pytest.raises(UsageError, match="repeats something"):
        ConstraintOptions(regex="a{999999}").spec()
    bad = tmp_path / "bad"
    bad.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not valid UTF-8"):
        ConstraintOptions(grammar_file=str(bad)).spec()


def test_drafting_is_chosen_by_name() -> None:
    assert SPECULATIONS == options.SPECULATIONS
    chosen = SpeculationOptions(spec="ngram", draft_max=5).checked().engine_options(3)
    assert (chosen.spec, chosen.max_draft, chosen.max_jobs) == ("ngram", 5, 3)
    with pytest.raises(UnknownName, match="unknown speculation 'ngrams'"):
        SpeculationOptions(spec="ngrams").checked()
    with pytest.raises(UsageError, match="give one with --draft"):
        SpeculationOptions(draft_sampling=True).checked()
    drawn = SpeculationOptions(draft="small.gguf", draft_sampling=True).checked()
    assert drawn.engine_options().draft_sampling


def test_how_answers_share_the_engine_is_an_option_of_serving() -> None:
    chosen = ServeEngineOptions(prefix_caching=False, target_itl=50, overcommit=2).engine_options(3)
    assert (chosen.prefix_caching, chosen.target_s, chosen.overcommit) == (False, 0.05, 2)
    assert chosen.max_jobs == 3
    assert ServeEngineOptions().engine_options() == options.EngineOptions()
