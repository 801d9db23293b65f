"""What a model knows of each token before it weighs the next one: its last hidden states.

A plan ends in a norm and the output matrix. Compiled, the norm is done while the matrix is; so it
is done here once more, row by row: a row is the same bytes whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from quantcli.errors import UnsupportedModel
from quantcli.formats import F32
from quantcli.plan import Op, Plan


def final_norm(plan: Plan) -> Op:
    """Return the norm between a plan's last layer and its output matrix.

    Raises UnsupportedModel for a plan that ends otherwise.
    """
    producers = {op.output: op for op in plan.ops}
    op = producers[plan.logits]
    while op.kind in ("softcap", "scale", "add"):  # an adapter of the output matrix adds
        op = producers[op.inputs[0]]
    norm = producers[op.inputs[0]] if op.kind == "linear" else op
    if norm.kind not in ("rms_norm", "layer_norm") or norm.params.get("group"):
        raise UnsupportedModel("this model has no norm before its output matrix, so no embeddings.")
    return norm


def normalized(rows: F32, norm: Op, vectors: Mapping[str, F32]) -> F32:
    """Return rows f32 (n, width) after a plan's final norm: x / rms(x) * weight.

    A layer norm takes the mean off before, and may have a bias.
    """
    weight, *bias = (vectors[name][: rows.shape[1]] for name in norm.weights)
    if norm.kind == "layer_norm":
        rows = (rows - np.mean(rows, axis=1, keepdims=True, dtype=np.float64)).astype(np.float32)
    mean = np.mean(np.square(rows, dtype=np.float64), axis=1, keepdims=True)
    scale = (1.0 / np.sqrt(mean + norm.number("eps"))).astype(np.float32)
    result: F32 = rows * scale * weight
    return result + bias[0] if bias else result
