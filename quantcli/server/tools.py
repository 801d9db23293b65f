"""Tools that a request offers: checked, shown to the model, and demanded if the request says so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from quantcli.engine.request import GrammarSpec
from quantcli.server.fields import Fields, refuse
from quantcli.server.schemas import closed
from quantcli.server.settings import Limits
from quantcli.server.tool_calls import STYLES, Style, style_of

_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,128}")

_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}

# For models whose template knows no tools.
_INSTRUCTIONS = """\
You can call functions. Each is given as JSON with its name, description and parameters:
{tools}
To call one, answer with nothing but a JSON object of this form:
{{"name": "function name", "arguments": {{"parameter": "value"}}}}
The result comes in the next message. Answer in words when no function is needed."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request offers and demands.

    tools        as the template takes them
    parameters   of each tool by name, its JSON schema
    choice       "auto", "required", or the name of the tool that must be called
    is_parallel  whether one answer may have several calls
    style        how the model writes calls
    """

    tools: tuple[Mapping[str, object], ...]
    parameters: Mapping[str, Mapping[str, object]]
    choice: str
    is_parallel: bool
    style: Style

    @property
    def is_demanded(self) -> bool:
        """Whether the answer must be a call."""
        return self.choice != "auto"

    def instructions(self) -> str:
        """Return what tells a model of its tools whose template does not."""
        functions = (json.dumps(tool["function"]) for tool in self.tools)
        return _INSTRUCTIONS.format(tools="\n".join(functions))

    def grammar(self) -> GrammarSpec | None:
        """Return what makes the answer a call, None if it need not be one."""
        if not self.is_demanded:
            return None
        names = self.parameters if self.choice == "required" else (self.choice,)
        calls = [self._call(name) for name in names]
        schema = json.dumps(calls[0] if len(calls) == 1 else {"anyOf": calls})
        style = self.style
        if not style.closer:
            return GrammarSpec("json_schema", schema)
        return GrammarSpec(
            "lark",
            f'start: "{style.opener}" "\\n" call "\\n" "{style.closer}"\ncall: %json {schema}\n',
        )

    def _call(self, name: str) -> dict[str, object]:
        parameters = closed(self.parameters[name])
        return {
            "type": "object",
            "properties": {"name": {"const": name}, self.style.argument: parameters},
            "required": ["name", self.style.argument],
            "additionalProperties": False,
        }


def read_tools(fields: Fields, limits: Limits, template: str, *, takes_tools: bool) -> Tools | None:
    """Return the tools of a request, None if there are none or none may be called.

    takes_tools   whether the chat template shows tools

    Raises RequestError for tools that are malformed, and for a choice that is none of them.
    """
    tools: list[Mapping[str, object]] = []
    parameters: dict[str, Mapping[str, object]] = {}
    for entry in fields.objects("tools", limits.n_tools):
        entry.one_of("type", ("function",), "function")
        function = entry.object("function")
        if function is None:
            entry.wrong("function", "an object with a name and parameters")
        name = _name(function)
        if name in parameters:
            refuse(f"{function.where}name {name!r} is used twice.", function.where + "name")
        schema = function.object("parameters")
        values = schema.values if schema else _NO_PARAMETERS
        description = function.text("description")
        parameters[name] = values
        shown = {"name": name, "description": description or "", "parameters": values}
        tools.append({"type": "function", "function": shown})
    if sum(len(json.dumps(p)) for p in parameters.values()) > limits.schema_nbytes:
        refuse(f"the tools' parameters take over {limits.schema_nbytes} bytes.", "tools")
    choice = _choice(fields, parameters)
    if not tools or choice == "none":
        return None
    style = style_of(template) if takes_tools else STYLES["json"]
    is_parallel = fields.flag("parallel_tool_calls", default=True)
    return Tools(tuple(tools), parameters, choice, is_parallel, style)


def _name(function: Fields) -> str:
    name = function.text("name")
    if name is None or not _NAME.fullmatch(name):
        function.wrong("name", "1 to 128 letters, digits and _-.:")
    return name


def _choice(fields: Fields, known: Mapping[str, object]) -> str:
    value = fields.raw("tool_choice")
    if isinstance(value, dict):
        function = Fields(value, "tool_choice.").object("function")
        name = function.text("name") if function is not None else None
        if name is None or name not in known:
            refuse("tool_choice names no tool of the request.", "tool_choice")
        return name
    choice = fields.one_of("tool_choice", ("auto", "none", "required", "any"), "auto")
    choice = "required" if choice == "any" else choice
    if choice == "required" and not known:
        refuse("tool_choice is 'required', and there are no tools.", "tool_choice")
    return choice
