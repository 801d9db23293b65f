"""SIMD values as Numba types: sixteen 32-bit lanes everywhere; LLVM splits them where it must."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.extending import register_model

N_LANES = 16

_ELEMENTS = {
    "i8": ir.IntType(8),
    "i16": ir.IntType(16),
    "i32": ir.IntType(32),
    "f16": ir.HalfType(),
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i64": ir.IntType(64),
}


class Vec(types.Type):
    """A SIMD vector of `n` elements of one LLVM element type."""

    def __init__(self, element: str, n: int) -> None:
        """Name the type after its shape, such as f32x16."""
        self.element = element
        self.n = n
        super().__init__(f"{element}x{n}")

    @property
    def llvm(self) -> ir.VectorType:
        """The LLVM type."""
        return ir.VectorType(_ELEMENTS[self.element], self.n)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    """How Numba holds a Vec: as the LLVM vector itself."""

    def __init__(self, manager, fe_type) -> None:
        super().__init__(manager, fe_type, fe_type.llvm)


f32x16 = Vec("f32", 16)
f64x16 = Vec("f64", 16)
i32x16 = Vec("i32", 16)
i64x16 = Vec("i64", 16)
i8x64 = Vec("i8", 64)
i8x16 = Vec("i8", 16)

I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
F16 = ir.HalfType()
F32 = ir.FloatType()
VOID = ir.VoidType()
F32X16 = f32x16.llvm
F64X16 = f64x16.llvm
I32X16 = i32x16.llvm
I64X16 = i64x16.llvm
I8X64 = i8x64.llvm
I8X16 = i8x16.llvm
I16X16 = ir.VectorType(I16, 16)
I16X32 = ir.VectorType(I16, 32)
F16X16 = ir.VectorType(F16, 16)
