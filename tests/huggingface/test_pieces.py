"""Tensors that GGUF divides or turns: every range of rows is that part of what NumPy makes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hf_archs import ALL_BIASED, CASES, MLP
from hf_folders import weights_of, write_folder, write_weights

from quantcli import formats
from quantcli.arch.hf_config import HFConfig
from quantcli.arch.hugging_face import (
    Piece,
    Take,
    even,
    everything,
    first_half,
    odd,
    second_half,
)
from quantcli.checkpoint import open_checkpoint
from quantcli.errors import CheckpointError, ModelError, UnsupportedModel
from quantcli.formats import BlockFormat
from quantcli.huggingface.folder import open_model
from quantcli.huggingface.pieces import piece_of
from quantcli.huggingface.rows import n_rows
from quantcli.qtensor import U8

NOTHING = HFConfig({})


@dataclass(frozen=True)
class Given:
    """An array as a source, which insists on being read by whole units."""

    values: np.ndarray
    unit: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def format(self) -> BlockFormat:
        return formats.get("f32")

    def read(self, row_start: int, row_stop: int) -> U8:
        assert row_start % self.unit == 0, row_start
        assert row_stop % self.unit == 0 or row_stop == n_rows(self.shape), row_stop
        rows = self.values.reshape(n_rows(self.shape), -1)[row_start:row_stop]
        return np.ascontiguousarray(rows, "<f4").view(np.uint8).ravel()


def latents(config: HFConfig, n: int) -> tuple[Take, ...]:
    return (Take(6, 0, 4),)


def values(config: HFConfig, n: int) -> tuple[Take, ...]:
    return (Take(6, 4, 2),)


def three(config: HFConfig, n: int) -> tuple[Take, ...]:
    return tuple(Take(6, 2 * i, 2) for i in range(3))


W = np.arange(3 * 12 * 8, dtype=np.float32).reshape(3, 12, 8)
M, V = W[0], W[0, :, 0]
HEADS = M.reshape(2, 6, 8)
PIECES = [
    (W, Piece("x", first_half), W[:, :6]),
    (W, Piece("x", second_half), W[:, 6:]),
    (W, Piece("x", even), W[:, ::2]),
    (W, Piece("x", odd), W[:, 1::2]),
    (M, Piece("x", odd), M[1::2]),
    (V, Piece("x", second_half), V[6:]),
    (M, Piece("x", even, of_columns=True), M[:, ::2]),
    (W, Piece("x", odd, of_columns=True, transposed=True), W[..., 1::2].swapaxes(1, 2)),
    (W, Piece("x", everything, transposed=True), W.swapaxes(1, 2)),
    (M, Piece("x", latents, apart=True, transposed=True), HEADS[:, :4].swapaxes(1, 2)),
    (M, Piece("x", values, apart=True), HEADS[:, 4:]),
    (M, Piece("x", three), HEADS.reshape(2, 3, 2, 8).swapaxes(0, 1).reshape(12, 8)),
    (V, Piece("x", three), V.reshape(2, 3, 2).swapaxes(0, 1).reshape(12)),
]


@pytest.mark.parametrize("unit", [1, 4, 5])
@pytest.mark.parametrize(("given", "piece", "want"), PIECES)
def test_any_range_of_rows_is_what_numpy_cuts(
    given: np.ndarray, piece: Piece, want: np.ndarray, unit: int
) -> None:
    source = piece_of(Given(given, unit), piece, NOTHING)
    assert source.shape == want.shape
    rows = want.reshape(n_rows(want.shape), -1)
    for start in range(0, len(rows), source.unit):
        for stop in range(start + source.unit, len(rows) + 1, source.unit):
            got = source.read(start, stop).view("<f4").reshape(stop - start, -1)
            assert np.array_equal(got, rows[start:stop]), (start, stop)


@pytest.mark.parametrize("take", [Take(5, 0, 1), Take(6, 4, 3), Take(6, -1, 2), Take(0, 0, 1)])
def test_a_shape_that_cannot_be_cut_is_refused(take: Take) -> None:
    with pytest.raises(CheckpointError, match=r"shape \[12, 8\]; config.json calls for"):
        piece_of(Given(M), Piece("x", lambda config, n: (take,)), NOTHING)


@pytest.mark.parametrize("takes", [first_half, second_half, even, odd])
def test_an_odd_number_of_rows_has_no_halves(takes: object) -> None:
    with pytest.raises(CheckpointError, match="in 3 rows; it must be an even number"):
        piece_of(Given(M[:3]), Piece("x", takes), NOTHING)  # type: ignore[arg-type]


CODES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def test_mxfp4_experts_mean_what_the_folder_means(tmp_path: Path) -> None:
    case = CASES["gpt_oss"]
    weights = weights_of(case, 270)
    base = "model.layers.1.mlp.experts.gate_up_proj"
    blocks, scales = weights[f"{base}_blocks"], weights[f"{base}_scales"]
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    want = np.ldexp(CODES[codes], scales[..., None].astype(int) - 127)
    want = want.reshape(*blocks.shape[:2], -1)
    with open_model(write_folder(tmp_path / "m", case), pre="gpt-2") as checkpoint:
        for name, rows in (("gate", want[:, ::2]), ("up", want[:, 1::2])):
            tensor = checkpoint.tensor(f"blk.1.ffn_{name}_exps.weight")
            assert (tensor.format.name, tensor.shape) == ("mxfp4", rows.shape)
            got = tensor.format.decode(tensor.data.reshape(-1).view(tensor.format.block))
            assert np.array_equal(got.reshape(rows.shape), rows)


def refused(folder: Path, kind: type[ModelError], match: str) -> None:
    with pytest.raises(kind, match=match) as caught:
        open_checkpoint(folder).close()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda w, n: w.pop(n + "_scales"), "has no tensor .*down_proj_scales"),
        (lambda w, n: w.update({n + "_scales": w[n + "_scales"][:, 1:]}), "16 for each scale"),
        (lambda w, n: w.update({n + "_blocks": w[n + "_blocks"][..., 1:]}), "must be bytes"),
        (lambda w, n: w.update({n + "_scales": np.float32(w[n + "_scales"])}), "must be bytes"),
        (lambda w, n: w.pop(n + "_blocks"), "down_proj_scales' has no place"),
    ],
)
def test_mxfp4_parts_that_do_not_fit_are_named(change: object, match: str, tmp_path: Path) -> None:
    case = CASES["gpt_oss"]
    folder, weights = write_folder(tmp_path / "m", case), weights_of(case, 270)
    change(weights, "model.layers.0.mlp.experts.down_proj")  # type: ignore[operator]
    write_weights(folder, weights, "BF16")
    refused(folder, ModelError, match)


def test_biases_of_zeros_are_left_out_and_others_refused(tmp_path: Path) -> None:
    layer = ALL_BIASED + MLP + "input_layernorm:d"
    case = replace(CASES["cohere2"], layer=layer, zero_biases=True)
    with open_model(write_folder(tmp_path / "m", case), pre="gpt-2") as checkpoint:
        assert not [name for name in checkpoint.tensors if name.endswith(".bias")]
    folder = write_folder(tmp_path / "n", replace(case, zero_biases=False))
    refused(folder, UnsupportedModel, "_proj.bias' is not zero; models of this class have no bias")
