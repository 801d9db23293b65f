"""Another program's model runs the same workloads through the same loop as ours."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np
import pytest
from fake_llama_cpp import N_VOCAB, Library
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import QuantcliError, ResourceError, UnknownName, UsageError
from quantcli.evaluate.peer import Peer, load_library
from quantcli.evaluate.throughput import Workload, measure, random_tokens
from quantcli.runtime.model import Batch, Model


def peer(library: Library, **options: object) -> Peer:
    settings = {"context": 64, "n_threads": 3} | options
    return Peer(cast("ModuleType", library), Path("m.gguf"), **settings)  # type: ignore[arg-type]


def test_it_gets_our_settings_and_keeps_its_own_defaults_elsewhere() -> None:
    library = Library()
    model = peer(library, kv_type="q8_0", n_sequences=4)
    params = library.params
    assert (params.n_ctx, params.n_seq_max) == (256, 4)
    assert (params.n_threads, params.n_threads_batch) == (3, 3)
    assert (params.type_k, params.type_v) == (8, 8)
    assert params.flash_attn_type == 1
    assert (model.n_vocab, model.context, model.max_rows) == (N_VOCAB, 64, 512)
    assert model.name == "llama-cpp-python 9.9.9"


def test_it_wears_our_adapters() -> None:
    library = Library()
    peer(library, adapters=[(Path("a.gguf"), 1.0), (Path("bcd.gguf"), -0.5)])
    assert library.worn == [(6, 1.0), (8, -0.5)]
    with pytest.raises(ResourceError, match=r"cannot apply peft; leave --peer or --lora out"):
        peer(library, adapters=[(Path("peft"), 1.0)])
    assert library.freed[-2:] == ["context", "model"]


def test_a_workload_reaches_it_as_it_would_reach_ours() -> None:
    library = Library()
    model = peer(library, n_sequences=2)
    measure(model, Workload("tg", 3, depth=4, n_sequences=2), 1, warmup=False)
    tokens = [random_tokens(N_VOCAB, s, 5) for s in (0, 1)]
    fed = [(step["tokens"], step["sequences"], step["outputs"]) for step in library.steps[:2]]
    assert fed == [(tokens[s][:4], [s] * 4, [3]) for s in (0, 1)]
    start = [tokens[0][4], tokens[1][4]]
    assert [step["tokens"] for step in library.steps[2:]] == [
        [(token + i) % N_VOCAB for token in start] for i in range(3)
    ]
    assert [step["positions"] for step in library.steps[2:]] == [[4, 4], [5, 5], [6, 6]]
    assert (0, 4, -1) in library.removed
    assert library.removed[-2:] == [(0, -1, -1), (1, -1, -1)]


def test_no_logits_are_asked_for_where_none_are_wanted() -> None:
    library = Library()
    assert peer(library).forward(Batch([1, 2], [0, 1], [0, 0], [])).shape == (0, N_VOCAB)
    assert library.steps[0]["outputs"] == []


def test_closing_gives_everything_back() -> None:
    library = Library()
    peer(library).close()
    assert library.freed == ["batch", "context", "model"]


def test_what_it_cannot_do_is_one_sentence() -> None:
    with pytest.raises(ResourceError, match=r"cannot load m\.gguf"):
        peer(Library(is_good_file=False))
    library = Library()
    with pytest.raises(ResourceError, match="cannot make a context of 2097152"):
        peer(library, context=2 << 20)
    assert library.freed == ["model"]
    library = Library()
    model = peer(library)
    library.code = 1
    with pytest.raises(ResourceError, match="a step of 1 rows: code 1"):
        model.forward(Batch([1], [0], [0], [0]))
    library.can_remove = False
    with pytest.raises(QuantcliError, match="cannot drop a sequence's tokens from 3 on"):
        model.kv.truncate(0, 3)


def test_a_peer_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UsageError, match=r"not installed.*pip install llama-cpp-python"):
        load_library("llama-cpp-python")


def test_an_old_peer_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("llama_cpp")
    old.__version__ = "0.2.1"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llama_cpp", old)
    with pytest.raises(UsageError, match=r"0\.2\.1 has no llama_model_load_from_file"):
        load_library("llama-cpp-python")


def test_an_unknown_peer_names_those_known() -> None:
    with pytest.raises(UnknownName, match="Did you mean llama-cpp-python"):
        load_library("llama-cpp-pyton")


def test_the_real_one_computes_what_we_do(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", exc_type=ImportError)
    path = write_tiny(tmp_path / "m.gguf", "llama", weight_format="q8_0")
    batch = Batch([1, 2, 3], [0, 1, 2], [0, 0, 0], [0, 2])
    theirs = Peer(load_library("llama-cpp-python"), path, context=64, n_threads=1)
    with open_checkpoint(path) as checkpoint:
        ours = Model.load(checkpoint, context=64, backend="reference")
        ours.kv.reserve(0, 3)
        np.testing.assert_allclose(theirs.forward(batch), ours.forward(batch), atol=0.2)
        ours.close()
    theirs.close()
