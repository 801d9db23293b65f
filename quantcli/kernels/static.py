"""Compile-time values: a frozen object whose Numba type carries the object itself.

A kernel written once is compiled for each format it is called with, as a template would be, and
the code generators read the format from the type. The object costs nothing at run time.
"""

from __future__ import annotations

from numba.core import types
from numba.core.datamodel import models
from numba.core.imputils import lower_constant
from numba.extending import register_model, typeof_impl


class StaticType(types.Opaque):
    """The Numba type of one compile-time value."""

    def __init__(self, value) -> None:
        """Name the type after the value's class and name."""
        self.value = value
        super().__init__(f"{type(value).__name__}({value.name})")


register_model(StaticType)(models.OpaqueModel)


@lower_constant(StaticType)
def _lower_static(context, builder, kind, value):
    return context.get_dummy_value()


def register_static(cls):
    """Let objects of a class, each with a `name`, be used in kernels as compile-time values."""

    @typeof_impl.register(cls)
    def _typeof(value, context):
        return StaticType(value)

    return cls
