"""Multiple-choice questions from a JSONL file, in the spellings that are in use.

One JSON object a line; lines of white space are passed over. Which spelling a line has is told by
its keys:

    context, choices, answer        ours; the context is used as it is
    question, choices, answer       the context is "Question: ...\\nAnswer:"
    question, choices, answerKey    ARC, as on the Hugging Face hub, where choices are an object of
                                    text and label, or as first published, inside the question
    ctx, endings, label             HellaSwag; activity_label, ctx_a and ctx_b are used if there

`choices` and `endings` are lists of two strings or more. `answer` and `label` are the index of the
right one, from 0, or a letter from A; `answerKey` is one of the labels. A choice follows its
context after one space, unless either brings white space.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantcli.errors import UsageError
from quantcli.evaluate.corpus import decode_utf8

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

_SPELLINGS = "context/choices/answer, question/choices/answer, ARC's or HellaSwag's"


@dataclass(frozen=True, slots=True)
class Question:
    """A context, ways to go on from it, and which of them is right.

    line    where it stands in its file, from 1
    answer  index of the right choice
    """

    line: int
    context: str
    choices: tuple[str, ...]
    answer: int

    def text(self, choice: int) -> str:
        """Return the context with a choice behind it."""
        end = self.choices[choice]
        gap = "" if not self.context or self.context[-1].isspace() or end[0].isspace() else " "
        return f"{self.context}{gap}{end}"


def read_questions(path: Path, limit: int | None = None) -> list[Question]:
    """Return the questions of a JSONL file, at most `limit`.

    Raises UsageError that gives the line and what is wrong with it, or if there is no question.
    """
    name = str(path)
    text = decode_utf8(name, path.read_bytes()).removeprefix("\ufeff")
    questions: list[Question] = []
    for number, line in enumerate(text.split("\n"), 1):
        if limit is not None and len(questions) == limit:
            break
        if line.strip():
            questions.append(_question(line, number, f"{name}, line {number}"))
    if not questions:
        raise UsageError(f"{name} has no question. Give one JSON object a line.")
    return questions


def _question(line: str, number: int, where: str) -> Question:
    try:
        record: Value = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: this is no JSON ({error}).") from None
    except RecursionError:
        raise UsageError(f"{where}: this is nested too deeply.") from None
    if not isinstance(record, dict):
        raise UsageError(f"{where}: this is no JSON object, but {_kind(record)}.")
    if "endings" in record:
        context, choices, answer = _hellaswag(record, where)
    elif "answerKey" in record:
        context, choices, answer = _arc(record, where)
    elif "choices" in record and ("context" in record or "question" in record):
        context, choices, answer = _plain(record, where)
    else:
        raise UsageError(
            f"{where}: keys {', '.join(map(repr, record)) or 'none'} are no known spelling of a "
            f"question. Use {_SPELLINGS}."
        )
    if len(choices) < 2:
        raise UsageError(f"{where}: there are {len(choices)} choices. Give two or more.")
    if "" in choices:
        raise UsageError(f"{where}: choice {choices.index('')} is empty.")
    return Question(number, context, tuple(choices), answer)


def _plain(record: Mapping[str, Value], where: str) -> tuple[str, list[str], int]:
    choices = _strings(record, "choices", where)
    context = (
        _string(record, "context", where)
        if "context" in record
        else _asked(_string(record, "question", where))
    )
    return context, choices, _index(record, "answer", choices, where)


def _arc(record: Mapping[str, Value], where: str) -> tuple[str, list[str], int]:
    """Read ARC's spelling: answerKey is one of the choices' labels."""
    asked = record.get("question")
    if isinstance(asked, dict):
        listed = asked.get("choices")
        question = _string(asked, "stem", where)
        if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
            raise UsageError(
                f"{where}: question.choices is {_kind(listed)}, not a list of objects."
            )
        objects = [item for item in listed if isinstance(item, dict)]
        choices = [_string(item, "text", where) for item in objects]
        labels = [_string(item, "label", where) for item in objects]
    else:
        listed = record.get("choices")
        question = _string(record, "question", where)
        if not isinstance(listed, dict):
            raise UsageError(
                f"{where}: choices is {_kind(listed)}, not an object of text and label."
            )
        choices, labels = _strings(listed, "text", where), _strings(listed, "label", where)
    key = record["answerKey"]
    if len(labels) != len(choices) or key not in labels:
        raise UsageError(f"{where}: answerKey {key!r} is none of the labels {labels}.")
    return _asked(question), choices, labels.index(str(key))


def _hellaswag(record: Mapping[str, Value], where: str) -> tuple[str, list[str], int]:
    """Read HellaSwag's spelling, cleaned as is usual: marks of WikiHow's pages are taken out."""
    if "ctx_a" in record and "ctx_b" in record:
        second = _string(record, "ctx_b", where)
        context = f"{_string(record, 'ctx_a', where)} {second[:1].upper()}{second[1:].lower()}"
    else:
        context = _string(record, "ctx", where)
    if "activity_label" in record:
        context = f"{_string(record, 'activity_label', where)}: {context}"
    choices = [_cleaned(ending) for ending in _strings(record, "endings", where)]
    return _cleaned(context), choices, _index(record, "label", choices, where)


def _cleaned(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _asked(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _string(record: Mapping[str, Value], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise UsageError(f"{where}: {key} is {_kind(value)}, not a string.")
    return value


def _strings(record: Mapping[str, Value], key: str, where: str) -> list[str]:
    value = record.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where}: {key} is {_kind(value)}, not a list of strings.")
    return [item for item in value if isinstance(item, str)]


def _index(record: Mapping[str, Value], key: str, choices: Sequence[str], where: str) -> int:
    """Return the index that an answer means: a number from 0, as a number or text, or a letter."""
    value = record.get(key)
    index = value if isinstance(value, int) and not isinstance(value, bool) else -1
    if isinstance(value, str):
        text = value.strip()
        if re.fullmatch(r"[0-9]{1,9}", text):
            index = int(text)
        elif re.fullmatch(r"[A-Za-z]", text):
            index = ord(text.upper()) - ord("A")
    if not 0 <= index < len(choices):
        raise UsageError(
            f"{where}: {key} is {value!r}. Give the index of one of the {len(choices)} choices, "
            "from 0, or its letter, from A."
        )
    return index


def _kind(value: Value) -> str:
    """Return what a JSON value is, in a word or two."""
    if isinstance(value, bool):
        return "a truth value"
    names = {type(None): "missing", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")
