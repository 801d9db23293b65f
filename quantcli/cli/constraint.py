"""Options for what an answer must match: a JSON schema, a grammar or a regular expression."""

# No "from __future__ import annotations" here: Typer and `expand` read the annotations.

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.errors import UsageError

if TYPE_CHECKING:
    from quantcli.engine.request import GrammarSpec


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """What an answer must match."""

    json_schema: Annotated[
        str | None,
        Option(
            "--json-schema",
            "-j",
            metavar="SCHEMA",
            help='The answer is JSON of this schema, such as {"type": "object"}.',
            show_default=False,
        ),
    ] = None
    json_schema_file: Annotated[
        str | None,
        Option(
            "--json-schema-file",
            "-jf",
            metavar="FILE",
            help="The same, from a file.",
            show_default=False,
        ),
    ] = None
    grammar: Annotated[
        str | None,
        Option(
            "--grammar",
            metavar="GRAMMAR",
            help="The answer matches a grammar: GBNF, or Lark if it has no ::=.",
            show_default=False,
        ),
    ] = None
    grammar_file: Annotated[
        str | None,
        Option("--grammar-file", metavar="FILE", help="The same, from a file.", show_default=False),
    ] = None
    regex: Annotated[
        str | None,
        Option(
            "--regex",
            metavar="REGEX",
            help="The answer matches a regular expression.",
            show_default=False,
        ),
    ] = None

    def spec(self) -> "GrammarSpec | None":
        """Return what an answer must match, None for anything.

        Raises UsageError if two things are asked for, or if a file is not UTF-8 or too large.
        """
        from quantcli.cli.prompt import read_text
        from quantcli.engine.grammar_limits import check_limits
        from quantcli.engine.request import GrammarSpec

        given = {
            "--json-schema": self.json_schema,
            "--json-schema-file": self.json_schema_file,
            "--grammar": self.grammar,
            "--grammar-file": self.grammar_file,
            "--regex": self.regex,
        }
        asked = {name: value for name, value in given.items() if value is not None}
        if not asked:
            return None
        if len(asked) > 1:
            raise UsageError(f"an answer matches one thing; {' and '.join(asked)} are given.")
        ((name, value),) = asked.items()
        text = read_text(value) if name.endswith("-file") else value
        kind = "json_schema" if "schema" in name else "regex" if name == "--regex" else "gbnf"
        if kind == "gbnf" and "::=" not in text:
            kind = "lark"
        spec = GrammarSpec(kind, text)
        check_limits(spec)
        return spec
