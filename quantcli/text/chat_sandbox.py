"""A Jinja2 environment for templates that nobody vouches for: as Hugging Face's, but bounded.

Jinja2's immutable sandbox keeps a template away from Python's insides. What it does not stop is a
template that never ends or fills the memory; so here loops, calls, operators, filters and output
go through a Budget. Filters that no chat template uses and that can grow text are left out.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial, wraps
from types import BuiltinMethodType, GeneratorType, MethodType
from typing import Never, cast

from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quantcli.errors import UsageError
from quantcli.text.chat_budget import STEPS_PER_CALL, Budget
from quantcli.text.chat_code import BoundedCode, Each, GenerationTag
from quantcli.text.chat_guards import (
    check_format,
    check_indent,
    check_join,
    check_method,
    check_operator,
    check_percent,
    check_replace,
    check_search,
    check_width,
)

_FILTERS = """
    abs attr batch capitalize count d default dictsort e escape first float forceescape format
    groupby indent int items join last length list lower map max min reject rejectattr replace
    reverse round safe select selectattr slice sort string sum title trim unique upper urlencode
    wordcount
"""
_TEXT_METHODS = """
    capitalize casefold center count endswith expandtabs find format format_map index isalnum
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle
    isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust
    rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_TEXT_METHODS.split()),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset(),
    float: frozenset({"is_integer"}),
    type: frozenset(),
}
Function = Callable[..., object]


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The environment that chat templates are compiled and rendered in, with `use` around both."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    code_generator_class = BoundedCode

    def __init__(self) -> None:
        """Set up what Hugging Face's chat templates may use."""
        self._local = threading.local()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
            finalize=self._shown,
            optimized=False,
        )
        own: dict[str, Function] = {
            "join": self._join,
            "replace": self._replace,
            "sum": self._sum,
            "tojson": self._tojson,
        }
        checks: dict[str, Function] = {
            "batch": lambda items, n, *_: check_width(n),
            "format": lambda *args, **kwargs: check_percent(self.budget, *args, **kwargs),
            "indent": lambda *args, **kwargs: check_indent(self.budget, *args, **kwargs),
            "round": lambda number, precision=0, *_: check_width(precision),
            "slice": lambda context, items, n, *_: check_width(n),
            "trim": lambda text, chars=None: check_search(self.budget, text, (chars,)),
        }
        functions: dict[str, Function] = {
            name: self.filters[name] for name in _FILTERS.split()
        } | own
        self.filters = {name: self._bounded(f, checks.get(name)) for name, f in functions.items()}
        for name, test in list(self.tests.items()):
            self.tests[name] = self._bounded(cast("Function", test))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        del self.globals["lipsum"]

    @contextmanager
    def use(self, budget: Budget) -> Iterator[None]:
        """Spend from a budget, in this thread, within the block."""
        previous = getattr(self._local, "budget", None)
        self._local.budget = budget
        try:
            yield
        finally:
            self._local.budget = previous

    @property
    def budget(self) -> Budget:
        """The budget in use in this thread."""
        budget: Budget = self._local.budget
        return budget

    # What compiled templates call: see BoundedCode.

    def each(self, items: Iterable[object]) -> Each:
        """Return items for a loop, whose every turn is a step."""
        return Each(items, self.budget)

    def weighed(self, value: object) -> object:
        """Return a value that was just put together or is about to be compared.

        What makes its items one by one, as filters do, has them weighed as they are made.
        """
        if isinstance(value, GeneratorType):
            return self.budget.watch(value)
        self.budget.weigh(value)
        return value

    def getitem(self, obj: object, argument: object) -> object:  # type: ignore[override]
        """Return an item or attribute; a long path through deep values takes as many steps."""
        self.budget.spend()
        return super().getitem(obj, argument)  # type: ignore[arg-type]

    def joined(self, values: Sequence[object]) -> str:
        """Return values as one text: the operator ~."""
        return self.concat([self._text(value) for value in values])

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        """Return the output of a macro or block as one text."""
        parts = list(parts)
        check_join(self.budget, "", parts)
        return "".join(parts)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Return the result of an arithmetic operator, if it is not too large."""
        check_operator(self.budget, operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(
        __self, __context: Context, __obj: Function, *args: object, **kwargs: object
    ) -> object:
        """Call a function, macro or method for a template."""
        __self.budget.spend(STEPS_PER_CALL)
        args = tuple(__self._watched(value) for value in args)
        if isinstance(__obj, BuiltinMethodType | MethodType):
            if isinstance(__obj.__self__, str) and __obj.__name__ == "join":
                __obj = partial(__self._join_texts, __obj.__self__)
            else:
                check_method(__self.budget, __obj, args)
        elif isinstance(__obj, LoopContext) and args:  # the next level of a recursive loop
            args = (__self.each(args[0]), *args[1:])  # type: ignore[arg-type]
        result = super().call(__context, __obj, *args, **kwargs)
        return __self._made(result)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Return whether a template may see an attribute: of built-in types, only known methods."""
        if not super().is_safe_attribute(obj, attr, value):
            return False
        for kind, methods in METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return True

    def unsafe_undefined(self, obj: object, attribute: str) -> Never:
        """Refuse to show an attribute."""
        raise SecurityError(f"{type(obj).__name__}.{attribute} is not for templates")

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        """Return a guarded str.format or str.format_map if the value is one, else None."""
        sandboxed = super().wrap_str_format(value)
        if sandboxed is None or not isinstance(value, BuiltinMethodType | MethodType):
            return None
        template = str(value.__self__)

        @wraps(sandboxed)
        def bounded(*args: object, **kwargs: object) -> str:
            check_format(self.budget, template, *args, **kwargs)
            return sandboxed(*args, **kwargs)

        return bounded

    def _bounded(self, function: Function, check: Function | None = None) -> Function:
        """Return a filter or test that weighs its arguments, checks them, and its result."""

        @wraps(function)  # keeps the mark of those that are given the context first
        def bounded(*args: object, **kwargs: object) -> object:
            args = tuple(map(self.weighed, args))
            kwargs = {name: self.weighed(value) for name, value in kwargs.items()}
            if check is not None:
                check(*args, **kwargs)
            return self._made(function(*args, **kwargs))

        return bounded

    def _made(self, value: object) -> object:
        if isinstance(value, str):
            self.budget.make(len(value))
        elif isinstance(value, list | tuple | dict):
            self.budget.make_list(len(value))
        elif isinstance(value, int):
            self.budget.make_integer(value.bit_length())
        return value

    def _watched(self, value: object) -> object:
        return self.budget.watch(value) if isinstance(value, GeneratorType) else value

    def _shown(self, value: object) -> object:
        return value if type(value) is str else self.weighed(value)

    def _text(self, value: object) -> str:
        return value if type(value) is str else str(self.weighed(value))

    # Filters that are not Jinja2's own.

    def _join(self, items: Iterable[object], d: object = "", attribute: str | None = None) -> str:
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        return self._join_texts(self._text(d), map(self._text, items))

    def _join_texts(self, separator: str, texts: Iterable[str]) -> str:
        texts = list(texts)
        check_join(self.budget, separator, texts)
        return separator.join(texts)

    def _replace(self, text: object, old: object, new: object, count: int | None = None) -> str:
        check_replace(self.budget, text, old, new, count)
        return str(text).replace(str(old), str(new), -1 if count is None else count)

    def _sum(
        self, items: Iterable[object], attribute: str | None = None, start: object = 0
    ) -> object:
        if attribute is not None:
            items = map(make_attrgetter(self, attribute), items)
        total = start
        for item in items:
            check_operator(self.budget, "+", total, item)
            total = total + item  # type: ignore[operator]
        return total

    def _tojson(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Return JSON as Hugging Face's templates expect it: plain, not escaped for HTML."""
        if indent is None and separators is None:
            return json.dumps(value, ensure_ascii=ensure_ascii, sort_keys=sort_keys)
        check_width(len(indent) if isinstance(indent, str) else indent)
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )
        chunks: list[str] = []
        for chunk in encoder.iterencode(value):  # white space may be most of it
            self.budget.make(len(chunk))
            chunks.append(chunk)
        return self.concat(chunks)


def _raise_exception(message: object) -> Never:
    raise UsageError(f"the model's chat template refuses this conversation: {message}")


_UNPADDED = re.compile(r"%[-#]([dmHIMSjUWy])")


def _strftime_now(form: str) -> str:
    """Return the local date and time; %-d, without leading zeros, works on every system."""
    if len(form) > 200 or re.search(r"%[-_0^#:+]*\d", form):
        raise SecurityError("a width in a date is not for templates")
    now = datetime.now()
    form = _UNPADDED.sub(lambda m: now.strftime("%" + m[1]).lstrip("0") or "0", form)
    return now.strftime(form)
