"""The Python that a chat template is compiled to: it asks the environment before it does work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.ext import Extension
from jinja2.parser import Parser

from quantcli.text.chat_budget import Budget


class Each:
    """The items of a loop; each turn takes a step."""

    def __init__(self, items: Iterable[object], budget: Budget) -> None:
        """Wrap what is looped over."""
        self._items = items
        self._budget = budget

    def __iter__(self) -> Iterator[object]:
        for item in self._items:
            self._budget.spend()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]


class BoundedCode(CodeGenerator):
    """Writes loops, ~, comparisons and literals as calls of BoundedEnvironment."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        """Write a loop over each item."""
        each = nodes.EnvironmentAttribute("each", lineno=node.lineno)
        node.iter = nodes.Call(each, [node.iter], [], None, None, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write the operator ~."""
        self.write("environment.joined((")
        for child in node.nodes:
            self.visit(child, frame)
            self.write(", ")
        self.write("))")

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:
        """Write a comparison of weighed values."""
        self.write("(")
        self._visit_weighed(self.visit, node.expr, frame)
        for operand in node.ops:
            self.visit(operand, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Write one side of a comparison."""
        self.write(f" {operators[node.op]} ")
        self._visit_weighed(self.visit, node.expr, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Write a list, weighed because it may hold one list many times."""
        self._visit_weighed(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Write a dict, weighed as a list is."""
        self._visit_weighed(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Write a tuple, weighed as a list is, or the names that one is unpacked to."""
        if node.ctx == "load":
            self._visit_weighed(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Write a slice, weighed because it is a copy, or the access to an item."""
        if isinstance(node.arg, nodes.Slice):
            self._visit_weighed(super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _visit_weighed(self, visit: Callable[..., object], node: nodes.Expr, frame: Frame) -> None:
        if isinstance(node, nodes.Const):
            self.visit(node, frame)
        else:
            self.write("environment.weighed(")
            visit(node, frame)
            self.write(")")


class GenerationTag(Extension):
    """{% generation %}: marks, for training, what the model wrote; here its body is just shown."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body of the tag."""
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)
