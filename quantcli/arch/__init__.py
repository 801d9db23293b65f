"""What a model is: hyper-parameters read from a file's metadata, and the plan that follows.

An architecture declares and never computes. `get(name).build(Hyper.from_metadata(...))` is a plan;
`check_tensors` says whether a file holds what the plan reads.
"""

from __future__ import annotations

from typing import Protocol

from quantcli import catalog
from quantcli.arch.hyper import Hyper
from quantcli.arch.tensors import check_tensors
from quantcli.plan import Plan

__all__ = ["Arch", "Hyper", "check_tensors", "get"]


class Arch(Protocol):
    """One architecture: a module of this package holds one as `ARCH`."""

    @property
    def name(self) -> str:
        """The catalog's spelling, which is GGUF's `general.architecture`."""
        ...

    def build(self, hyper: Hyper) -> Plan:
        """Return the plan of a model with these hyper-parameters.

        Raises ShapeError if they do not fit each other.
        """
        ...


def get(name: str) -> Arch:
    """Return an architecture by its name, or raise UnknownName."""
    return catalog.load("architecture", name).ARCH  # type: ignore[no-any-return]
