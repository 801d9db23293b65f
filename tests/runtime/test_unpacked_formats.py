"""Models in formats whose panels hold other bits than the file, against NumPy on the file's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from loaded_model import feed, loaded
from logit_cases import prompt
from logit_errors import relative_rms
from reference_model import load, logits
from tiny import Tiny, write_model

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import QuantcliError
from quantcli.runtime.sizing import size_model
from quantcli.runtime.weights import packed_nbytes

pytestmark = pytest.mark.jit

CODEBOOKS = ("iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs")
NAMES = (*CODEBOOKS, "nvfp4", "tq1_0")


def tiny(name: str) -> Tiny:
    """Return a model, for nvfp4 with rows that are no multiple of 256."""
    small = Tiny("llama", weight_format=name, n_layers=1)
    return replace(small, d_model=128, d_ff=192) if name == "nvfp4" else small


def test_formats_of_one_model_are_told_apart(tmp_path: Path) -> None:
    """Kernels that share code, loaded from the cache on disk in any order, stay their own."""
    mixed = Tiny("llama", weight_format=(*reversed(NAMES), "tq2_0", "mxfp4"), n_layers=2)
    path = write_model(tmp_path / "m.gguf", mixed)
    with loaded(path, context=64) as model:
        tokens = prompt(model.n_vocab, 40)
        found = feed(model, tokens)
    rounded = logits(load(path, kv_type="f16", activation="q8"), tokens)
    # Another format's levels in one matrix give an error near 1; these roundings' own is near 0.02.
    assert relative_rms(found, rounded) < relative_rms(rounded, logits(load(path), tokens)) < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_computed_as_the_reference_computes_it(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tiny(name))
    with loaded(path, context=64) as model:
        tokens = prompt(model.n_vocab, 40)
        found = feed(model, tokens)
        alone = feed(model, tokens, sequence=0, chunk=1)
    assert alone.tobytes() == found.tobytes()
    rounded = logits(load(path, kv_type="f16", activation="q8"), tokens)
    exact = logits(load(path), tokens)
    # Of the roundings of activations, keys and values few fall the other way: see logit_errors.
    assert relative_rms(found, rounded) < 0.5 * relative_rms(rounded, exact)


@pytest.mark.parametrize("name", NAMES)
def test_the_files_weights_are_those_that_gguf_reads(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tiny(name))
    theirs = {t.name: t for t in gguf.GGUFReader(path).tensors}
    with open_checkpoint(path) as checkpoint:
        for info in checkpoint.tensors.values():
            if info.format.name == name:
                mine = checkpoint.tensor(info.name).dequantize()
                want = gguf.quants.dequantize(theirs[info.name].data, Kind[name.upper()])
                np.testing.assert_array_equal(mine, want)


@pytest.mark.parametrize("name", NAMES)
def test_memory_counts_the_weights_as_they_are_unpacked(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tiny(name))
    with open_checkpoint(path) as checkpoint:
        infos = checkpoint.tensors.values()
        matrices = sum(packed_nbytes(i.shape, name) for i in infos if len(i.shape) == 2)
        vectors = sum(4 * i.shape[0] for i in infos if len(i.shape) == 1)
        assert size_model(checkpoint, context=64).memory.weights_nbytes == matrices + vectors


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_fill_no_block_are_refused_by_name(name: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", tiny(name))
    data = bytearray(path.read_bytes())
    at = data.index(b"blk.0.ffn_down.weight") + len(b"blk.0.ffn_down.weight") + 4
    width = int.from_bytes(data[at : at + 8], "little")
    assert width in (192, 512)
    data[at : at + 8] = (width - 32).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(QuantcliError, match=rf"ffn_down\.weight.*{width - 32}.*{name}"):
        open_checkpoint(path)
