"""What a model is: hyper-parameters read from a file's metadata, and the plan that follows.

An architecture declares and never computes. `get(name).build(Hyper.from_metadata(...))` is a plan;
`check_tensors` says whether a file holds what the plan reads.
"""

from __future__ import annotations

from typing import Protocol

from quantcli import catalog
from quantcli.arch.hugging_face import HuggingFace
from quantcli.arch.hyper import Hyper
from quantcli.arch.tensors import check_tensors
from quantcli.errors import UnsupportedModel
from quantcli.plan import Plan

__all__ = ["Arch", "Hyper", "HuggingFace", "check_tensors", "get", "in_folders", "of_class"]


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


def in_folders(name: str) -> HuggingFace | None:
    """Return how an architecture lies in Hugging Face folders, None if it says nothing of it."""
    return getattr(catalog.load("architecture", name), "HF", None)


def of_class(class_name: str) -> str:
    """Return the architecture of a model class that config.json names in `architectures`.

    Raises UnsupportedModel with the architectures that are known.
    """
    known: dict[str, str] = {}
    for name in catalog.names("architecture"):
        if (declared := in_folders(name)) is not None:
            known |= dict.fromkeys(declared.classes, name)
    if class_name not in known:
        readable = ", ".join(sorted(set(known.values())))
        raise UnsupportedModel(
            f"config.json: models of class {class_name[:80]!r} cannot be read from their folder; "
            f"try a GGUF file of the model. Folders are read of {readable}."
        )
    return known[class_name]
