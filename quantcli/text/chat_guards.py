"""What a chat template's operators, methods and filters may make: checked before they make it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import BuiltinMethodType, MethodType

from jinja2.exceptions import SecurityError

from quantcli.text.chat_budget import Budget

WIDEST = 10_000  # columns that a text is padded to, lists in a batch, and such

LISTS = (list, tuple)


def check_operator(budget: Budget, operator: str, left: object, right: object) -> None:
    """Check an arithmetic operator."""
    if operator == "+" and isinstance(left, str) and isinstance(right, str):
        budget.make(len(left) + len(right))
    elif operator == "+" and isinstance(left, LISTS) and isinstance(right, LISTS):
        budget.make_list(len(left) + len(right))
    elif operator == "*":
        _check_product(budget, left, right)
    elif operator == "%" and isinstance(left, str):
        check_percent(budget, left, right)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        budget.make_integer(left.bit_length() * max(right, 1))
    else:
        budget.spend()


def _check_product(budget: Budget, left: object, right: object) -> None:
    if isinstance(left, int) and isinstance(right, int):
        budget.make_integer(left.bit_length() + right.bit_length())
    elif isinstance(right, int):
        _check_repeated(budget, left, right)
    elif isinstance(left, int):
        _check_repeated(budget, right, left)


def _check_repeated(budget: Budget, value: object, n_times: int) -> None:
    if isinstance(value, str):
        budget.make(len(value) * max(n_times, 0))
    elif isinstance(value, LISTS):
        budget.make_list(len(value) * max(n_times, 0))


def check_width(n: object) -> None:
    """Check a number of columns or items that an argument asks for."""
    if isinstance(n, int) and abs(n) > WIDEST:
        raise SecurityError(f"a width of {n} is not for templates")


def check_percent(budget: Budget, template: object, *args: object, **kwargs: object) -> None:
    """Check a text formatted with %."""
    text = str(template)
    if "*" in text and re.search(r"%[^%a-zA-Z]*\*", text):
        raise SecurityError("a width given apart is not for templates")
    _check_fields(budget, text, text.count("%"), (args, kwargs))


def check_format(budget: Budget, template: str, *args: object, **kwargs: object) -> None:
    """Check a text formatted with str.format or str.format_map."""
    if re.search(r"\{[^{}]*\{", template.replace("{{", "")):
        raise SecurityError("a format within a format is not for templates")
    _check_fields(budget, template, template.count("{"), (args, kwargs))


def _check_fields(budget: Budget, template: str, n_fields: int, values: object) -> None:
    """Check a format: each field is at most as wide as the widest number or all values."""
    widest = max(map(int, re.findall(r"\d{1,9}", template)), default=0)
    check_width(widest)
    budget.make(len(template) + n_fields * (widest + budget.weigh(values)))


def check_indent(
    budget: Budget, text: object, width: int | str = 4, *args: object, **kwargs: object
) -> None:
    """Check a text whose lines are indented."""
    n_columns = len(width) if isinstance(width, str) else width
    check_width(n_columns)
    budget.make(len(str(text)) + (str(text).count("\n") + 1) * n_columns)


def check_replace(
    budget: Budget, text: object, old: object, new: object, count: int | None = None
) -> None:
    """Check the replacement of a text within a text."""
    check_search(budget, text, (old,))
    n_times = str(text).count(str(old))
    n_times = n_times if count is None or count < 0 else min(n_times, count)
    budget.make(len(str(text)) + n_times * len(str(new)))


def check_search(budget: Budget, text: object, args: Sequence[object]) -> None:
    """Check a search in a text, which may take as long as the product of both lengths."""
    for sought in args:
        if isinstance(sought, str):
            budget.spend(1 + (len(str(text)) * len(sought) >> 12))


def check_join(budget: Budget, separator: str, texts: Sequence[str]) -> None:
    """Check texts that are joined."""
    budget.make(sum(map(len, texts)) + len(separator) * len(texts))


def check_method(
    budget: Budget, method: BuiltinMethodType | MethodType, args: Sequence[object]
) -> None:
    """Check the call of a method of a built-in type or of a loop."""
    owner, name = method.__self__, method.__name__
    budget.weigh(args)
    if not isinstance(owner, str):
        budget.weigh(owner)
    elif name == "replace" and len(args) >= 2:
        check_replace(budget, owner, args[0], args[1])
    elif name in ("center", "ljust", "rjust", "zfill"):
        check_width(args[0] if args else 0)
    elif name == "expandtabs":
        n_columns = args[0] if args and isinstance(args[0], int) else 8
        check_width(n_columns)
        budget.make(len(owner) + owner.count("\t") * max(n_columns, 0))
    else:
        check_search(budget, owner, args)
