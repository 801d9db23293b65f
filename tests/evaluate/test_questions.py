"""Multiple-choice questions: every spelling, and errors by line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantcli.errors import UsageError
from quantcli.evaluate.questions import Question, read_questions

ARC_CHOICES = {"text": ["iron", "wood"], "label": ["A", "B"]}
SPELLINGS = {
    "ours": (
        {"context": "The sky is", "choices": ["blue", "green"], "answer": 0},
        Question(1, "The sky is", ("blue", "green"), 0),
    ),
    "ours by letter": (
        {"context": "The sky is", "choices": ["blue", "green", "red"], "answer": "c"},
        Question(1, "The sky is", ("blue", "green", "red"), 2),
    ),
    "a question": (
        {"question": "What is hot?", "choices": ["ice", "fire"], "answer": "1"},
        Question(1, "Question: What is hot?\nAnswer:", ("ice", "fire"), 1),
    ),
    "arc on the hub": (
        {"id": "x", "question": "What rusts?", "choices": ARC_CHOICES, "answerKey": "A"},
        Question(1, "Question: What rusts?\nAnswer:", ("iron", "wood"), 0),
    ),
    "arc with numbers": (
        {
            "question": "What rusts?",
            "choices": {"text": ["wood", "iron"], "label": ["1", "2"]},
            "answerKey": "2",
        },
        Question(1, "Question: What rusts?\nAnswer:", ("wood", "iron"), 1),
    ),
    "arc as first published": (
        {
            "question": {
                "stem": "What rusts?",
                "choices": [{"text": "wood", "label": "A"}, {"text": "iron", "label": "B"}],
            },
            "answerKey": "B",
        },
        Question(1, "Question: What rusts?\nAnswer:", ("wood", "iron"), 1),
    ),
    "hellaswag": (
        {
            "ind": 24,
            "activity_label": "Roof shingle removal",
            "ctx_a": "A man is sitting on a roof.",
            "ctx_b": "he",
            "ctx": "A man is sitting on a roof. he",
            "endings": ["is using wrap.", "starts [step] pulling up  roofing."],
            "label": "1",
        },
        Question(
            1,
            "Roof shingle removal: A man is sitting on a roof. He",
            ("is using wrap.", "starts pulling up roofing."),
            1,
        ),
    ),
    "hellaswag, little of it": (
        {"ctx": "How to [title] cook", "endings": ["a", "b"], "label": 0},
        Question(1, "How to. cook", ("a", "b"), 0),
    ),
}


def read(tmp_path: Path, *lines: object) -> list[Question]:
    path = tmp_path / "q.jsonl"
    text = "\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines)
    path.write_text(text, encoding="utf-8")
    return read_questions(path)


@pytest.mark.parametrize(("record", "expected"), SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_is_read(tmp_path: Path, record: object, expected: Question) -> None:
    assert read(tmp_path, record) == [expected]


def test_empty_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    record = SPELLINGS["ours"][0]
    questions = read(tmp_path, "", record, "  \r", record, "")
    assert [question.line for question in questions] == [2, 4]
    path = tmp_path / "q.jsonl"
    assert len(read_questions(path, limit=1)) == 1
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_questions(path)) == 2


def test_a_choice_follows_its_context_after_one_space() -> None:
    question = Question(1, "The sky is", ("blue", " green", "\tred"), 0)
    assert [question.text(i) for i in range(3)] == [
        "The sky is blue",
        "The sky is green",
        "The sky is\tred",
    ]
    assert Question(1, "Sky: ", ("blue", "red"), 0).text(0) == "Sky: blue"
    assert Question(1, "", ("blue", "red"), 0).text(0) == "blue"


GOOD = SPELLINGS["ours"][0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"context": ', r"line 2: this is no JSON \("),
        ("[1, 2]", "line 2: this is no JSON object, but a list"),
        ("3", "but a number"),
        ("null", "but missing"),
        ("[" * 100_000, "nested too deeply"),
        ({}, "keys none are no known spelling"),
        ({"text": "a", "choices": ["a", "b"]}, "keys 'text', 'choices' are no known spelling"),
        (GOOD | {"choices": ["a"]}, "there are 1 choices. Give two or more"),
        (GOOD | {"choices": []}, "answer is 0. Give the index of one of the 0 choices"),
        (GOOD | {"choices": ["a", ""]}, "choice 1 is empty"),
        (GOOD | {"choices": ["a", 3]}, "choices is a list, not a list of strings"),
        (GOOD | {"choices": "ab"}, "choices is a string, not a list of strings"),
        (GOOD | {"context": 3}, "context is a number, not a string"),
        (GOOD | {"answer": 2}, "answer is 2. Give the index of one of the 2 choices"),
        (GOOD | {"answer": -1}, "answer is -1"),
        (GOOD | {"answer": True}, "answer is True"),
        (GOOD | {"answer": "C"}, "answer is 'C'"),
        (GOOD | {"answer": "blue"}, "answer is 'blue'"),
        ({"context": "a", "choices": ["a", "b"]}, "answer is None"),
        (
            {"question": "a", "choices": ARC_CHOICES, "answerKey": "C"},
            r"answerKey 'C' is none of the labels \['A', 'B'\]",
        ),
        ({"question": "a", "choices": ["a", "b"], "answerKey": "A"}, "choices is a list, not an"),
        ({"question": {"stem": "a", "choices": ["x"]}, "answerKey": "A"}, "not a list of objects"),
        ({"question": {"choices": []}, "answerKey": "A"}, "stem is missing, not a string"),
        ({"endings": ["a", "b"], "label": 0}, "ctx is missing, not a string"),
        ({"ctx": "x", "endings": ["a", "b"]}, "label is None"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read(tmp_path, GOOD, line, GOOD)
    assert "q.jsonl, line 2: " in str(error.value)


def test_a_file_without_questions_or_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"q.jsonl has no question"):
        read(tmp_path, "", " ")
    path = tmp_path / "q.jsonl"
    path.write_bytes(b'{"context": "\xff"}')
    with pytest.raises(UsageError, match="not valid UTF-8: byte 0xff at offset 13"):
        read_questions(path)
