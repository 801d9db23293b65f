"""--chat-template and --chat-template-kwargs: which template is used, and what it is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import write_tiny
from tiny_vocab import byte_level_bpe

from quantcli.cli.app import main
from quantcli.cli.templating import TemplateOptions
from quantcli.errors import CheckpointError, UnknownName, UsageError
from quantcli.text import from_metadata
from quantcli.text.chat_builtin import TEMPLATES

METADATA = byte_level_bpe().metadata()
BARE = {key: value for key, value in METADATA.items() if key != "tokenizer.chat_template"}
CHAT = [{"role": "user", "content": "hi"}]


def chosen(
    given: str | None = None,
    names: str | None = None,
    metadata: dict[str, object] = METADATA,
    *,
    is_needed: bool = False,
) -> tuple[str | None, str | None]:
    options = TemplateOptions(given, names)
    template, note = options.template(metadata, from_metadata(metadata), is_needed=is_needed)
    return template.source if template else None, note


def test_the_files_template_is_used_unless_another_is_named() -> None:
    assert chosen() == (METADATA["tokenizer.chat_template"], None)
    assert chosen("zephyr") == (TEMPLATES["zephyr"], None)
    several = METADATA | {"tokenizer.chat_template.rag": "{{ documents }}"}
    assert chosen("rag", None, several) == ("{{ documents }}", None)
    assert chosen("default", None, several) == (METADATA["tokenizer.chat_template"], None)


def test_a_file_or_the_text_itself_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("é{{ messages[0].content }}", encoding="utf-8")
    assert chosen(str(path)) == ("é{{ messages[0].content }}", None)
    assert chosen("{{ bos_token }}x") == ("{{ bos_token }}x", None)


def test_what_is_neither_a_name_nor_a_file_is_refused(tmp_path: Path) -> None:
    for given in ("lama3", str(tmp_path), "no\0file", "x" * 5000, "~nobody-there/x", ""):
        with pytest.raises(UnknownName, match=r"unknown chat template .*Known: .*chatml"):
            chosen(given)


def test_a_file_that_is_no_template_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own"
    for data in (b"\xff\xfe", b"GGUF\3\0\0\0"):
        path.write_bytes(data)
        with pytest.raises(UsageError, match="own is no text; it should be a Jinja template"):
            chosen(str(path))
    path.write_text("x" * (1 << 18), encoding="utf-8")
    with pytest.raises(CheckpointError, match="has 262144 characters; at most 131072"):
        chosen(str(path))


def test_a_template_is_guessed_only_where_one_is_needed() -> None:
    assert chosen(metadata=BARE) == (None, None)
    source, note = chosen(metadata=BARE, is_needed=True)
    assert source == TEMPLATES["chatml"]
    assert note is not None
    assert "chatml is used: its control tokens are of that" in note


def test_names_reach_the_template_unless_the_conversation_has_its_own() -> None:
    options = TemplateOptions("{{ thinks }} {{ how | tojson }}", '{"thinks": false, "how": [1]}')
    template, _ = options.template(METADATA, from_metadata(METADATA), is_needed=False)
    assert template is not None
    assert template.render(CHAT) == "False [1]"
    assert template.render(CHAT, thinks=1) == "1 [1]"


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("{", "is no JSON: .*Give an object such as"),
        ("[" * 100_000, "is no JSON"),
        ("[1]", "is list; it should be an object"),
        ('{"messages": []}', "cannot set 'messages'"),
        ('{"a b": 1}', "cannot set 'a b'"),
    ],
)
def test_names_that_are_malformed_are_refused(given: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        TemplateOptions(None, given).names()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", "llama", context=256)


def prompt_of(capsys: pytest.CaptureFixture[str], tiny: Path, *words: str) -> list[int]:
    command = ("run", str(tiny), "-p", "hi", "-n", "1", "--json", "--backend", "reference", *words)
    assert main(list(command)) == 0
    prompt = json.loads(capsys.readouterr().out)["prompt_tokens"]
    assert isinstance(prompt, list)
    return prompt


def test_run_prompts_in_the_template_that_is_named(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = prompt_of(capsys, tiny, "--chat-template", "vicuna")
    bare = prompt_of(capsys, tiny, "--no-chat")
    text = "USER: hi\nASSISTANT:"
    own = ("--chat-template", "{{ x }}{{ messages[0].content }}", "--chat-template-kwargs")
    assert named == prompt_of(capsys, tiny, "--no-chat", "-p", text)[: len(named)]
    assert prompt_of(capsys, tiny, *own, '{"x": ""}') == bare


def test_a_wrong_template_ends_in_one_sentence(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(tiny), "-p", "hi", "-n", "1", "--backend", "reference"]
    assert main([*words, "--chat-template", "lama3"]) == 2
    assert "unknown chat template 'lama3'. Did you mean llama3?" in capsys.readouterr().err
    assert main([*words, "--chat-template", "{{ 1 / 0 }}"]) == 1
    assert "division by zero" in capsys.readouterr().err
    assert main([*words, "--chat-template-kwargs", "x"]) == 2
    assert "--chat-template-kwargs is no JSON" in capsys.readouterr().err
