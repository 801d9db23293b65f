"""Jinja2 as Hugging Face's transformers sets it up for chat templates, without bounds."""

from __future__ import annotations

import json
from datetime import datetime

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The tag that marks what the model wrote."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body of the tag."""
        lineno = next(parser.stream).lineno
        return nodes.Scope(
            parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno
        )


def _raise(message: str) -> None:
    raise TemplateError(message)


def render(source: str, **values: object) -> str:
    """Return what a template gives for some values."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, **how: json.dumps(
        value, ensure_ascii=ensure_ascii, **how
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source).render(**values)
