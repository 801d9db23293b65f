"""LoRA adapters: llama.cpp's logits, weights that were merged, the same bits, and what is refused.

Goldens are made by scripts/make_goldens_lora.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loaded_model import fed, loaded, step
from logit_cases import ROWS, prompt
from logit_errors import relative_rms
from lora_cases import (
    CASES,
    EMBEDDINGS,
    Case,
    Lora,
    adapter_files,
    delta,
    keys,
    merged,
    reference_logits,
    write_adapter,
    write_pairs,
)
from reference_model import load, logits
from tiny import Tiny, write_model, write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.errors import ModelError
from quantcli.formats import F32
from quantcli.plan.lora import Branch, branched, targets
from quantcli.runtime.adapters import open_adapted, with_adapters
from quantcli.runtime.sizing import size_model

GOLDENS = Path(__file__).parent.parent / "goldens" / "logits" / "lora.npz"
TOLERANCE = 1e-4  # of logits of size 3, as in test_reference_goldens
TOLERANCE_GELU = 2e-3  # a layer: llama.cpp looks GELU up in a table of halves
N_VOCAB = 200
Files = list[tuple[Path, float]]


def compiled(path: Path, adapters: Files, tokens: list[int], **options: object) -> F32:
    """Return the compiled model's logits of a prompt."""
    return fed(path, tokens, adapters=adapters, **({"context": 64} | options))  # type: ignore[arg-type]


def case_files(folder: Path, case: Case) -> tuple[Path, Files]:
    return write_model(folder / "m.gguf", case.tiny), adapter_files(folder, case)


@pytest.mark.parametrize("name", CASES)
def test_logits_with_adapters_are_llama_cpps(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, files = case_files(tmp_path, case)
    with open_checkpoint(path) as checkpoint:
        n_vocab = size_model(checkpoint, context=16).plan.logits.width
    tokens, theirs = prompt(n_vocab), np.load(GOLDENS)[name]
    ours = reference_logits(path, files, tokens, list(ROWS))
    tolerance = TOLERANCE_GELU * case.tiny.n_layers**0.5 if case.tiny.has_gelu else TOLERANCE
    assert np.abs(ours - theirs).max() < tolerance
    assert np.array_equal(ours.argmax(-1), theirs.argmax(-1))
    without = logits(load(path), tokens, list(ROWS))
    assert np.abs(without - theirs).max() > 1.0  # the adapters matter


@pytest.mark.jit
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_adapter_gives_the_logits_of_merged_weights(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path, files = case_files(tmp_path, case)
    twin = write_model(tmp_path / "merged.gguf", merged(case.tiny, *case.loras))
    tokens = prompt(N_VOCAB, 24)
    found = compiled(path, files, tokens)
    # Of the same roundings to halves only few fall the other way, as in test_model_goldens.
    tolerance = 0.5 * 2.0**-11 * case.tiny.n_layers**0.5
    assert relative_rms(found, logits(load(twin, kv_type="f16"), tokens)) < tolerance
    rounded = reference_logits(path, files, tokens, list(range(24)), kv_type="f16")
    assert relative_rms(found, rounded) < tolerance


MORE = {
    "deepseek2": Lora(targets=("attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_output", "ffn_up")),
    "gpt-oss": Lora(rank=3),
    "gemma2": Lora(rank=17, targets=EMBEDDINGS),
    "glm4": Lora(),
}


@pytest.mark.jit
@pytest.mark.parametrize("arch", MORE)
def test_in_quantized_models_chunks_and_threads_do_not_change_a_bit(
    arch: str, tmp_path: Path
) -> None:
    tiny = Tiny(arch, weight_format="mix", biases=True, window=5)
    lora = MORE[arch]
    formats = ("q8_0", "f16", "bf16")
    files = [
        (write_adapter(tmp_path / f"{i}.gguf", tiny, replace(lora, seed=i, weight_format=f)), s)
        for i, (f, s) in enumerate(zip(formats, (1.0, -0.5, 0.25), strict=True))
    ]
    path, tokens = write_model(tmp_path / "m.gguf", tiny), prompt(N_VOCAB, 24)
    whole = compiled(path, files, tokens, n_threads=1)
    assert compiled(path, files, tokens, chunk=1, cache="paged").tobytes() == whole.tobytes()
    assert compiled(path, files, tokens, chunk=9).tobytes() == whole.tobytes()
    rows = list(range(24))
    rounded = reference_logits(path, files, tokens, rows, kv_type="f16", activation="q8")
    exact = reference_logits(path, files, tokens, rows)
    assert relative_rms(whole, rounded) < relative_rms(rounded, exact)
    assert relative_rms(logits(load(path), tokens), exact) > 10 * relative_rms(whole, exact)


@pytest.mark.jit
def test_rows_of_company_do_not_change_a_bit(tmp_path: Path) -> None:
    case = CASES["qwen3moe"]
    path, files = case_files(tmp_path, case)
    tokens = prompt(N_VOCAB, 12)
    alone = compiled(path, files, tokens)
    with loaded(path, adapters=files, context=64, n_sequences=3, cache="paged") as model:
        found = step(model, [(0, 0, tokens[3:]), (1, 0, tokens), (2, 0, tokens[:1])])
    assert found[9:21].tobytes() == alone.tobytes()


def test_a_scale_of_0_changes_nothing_and_adapters_add_up(tmp_path: Path) -> None:
    tiny, lora = Tiny("llama", weight_format="f32"), Lora()
    path, tokens = write_model(tmp_path / "m.gguf", tiny), prompt(N_VOCAB, 8)
    first = write_adapter(tmp_path / "a.gguf", tiny, lora)
    second = write_adapter(tmp_path / "b.gguf", tiny, lora)
    rows = list(range(8))
    off = reference_logits(path, [(first, 0.0)], tokens, rows)
    assert off.tobytes() == logits(load(path), tokens).tobytes()
    both = reference_logits(path, [(first, 0.75), (second, 0.25)], tokens, rows)
    once = reference_logits(path, [(first, 1.0)], tokens, rows)
    np.testing.assert_allclose(both, once, atol=TOLERANCE)


def test_without_alpha_the_rank_divides_nothing(tmp_path: Path) -> None:
    tiny = Tiny("llama", weight_format="f32")
    path, tokens = write_model(tmp_path / "m.gguf", tiny), prompt(N_VOCAB, 4)
    found = []
    for alpha, scale in ((None, 1.0), (0.0, 1.0), (8.0, 0.5), (4.0, 1.0)):  # the rank is 4
        file = write_adapter(tmp_path / f"{alpha}.gguf", tiny, Lora(alpha=alpha))
        found.append(reference_logits(path, [(file, scale)], tokens, [3]))
    assert all(logit.tobytes() == found[0].tobytes() for logit in found)


def test_tied_matrices_are_adapted_apart(tmp_path: Path) -> None:
    """One of the embedding changes what is looked up, one of the output the logits."""
    tiny, untied = (Tiny("llama", weight_format="f32", tied=tied) for tied in (True, False))
    path, tokens = write_model(tmp_path / "m.gguf", tiny), prompt(N_VOCAB, 4)
    for name, other in (("token_embd.weight", "output.weight"), ("output.weight", "embd")):
        lora = Lora(targets=(name,))
        file = write_pairs(
            tmp_path / f"{name}.gguf", "llama", lora.matrices(untied), keys("llama", lora.alpha)
        )
        found = reference_logits(path, [(file, 1.0)], tokens, [3])
        weights = tiny.weights()
        weights["output.weight"] = weights["token_embd.weight"].copy()
        assert other not in lora.targets
        weights[name] = weights[name] + 2 * delta(lora.matrices(untied), name)
        twin = _with_weights(tmp_path / f"{name}.twin.gguf", untied, weights)
        np.testing.assert_allclose(found, logits(load(twin), tokens, [3]), atol=TOLERANCE)


def _with_weights(path: Path, tiny: Tiny, weights: dict[str, F32]) -> Path:
    class Given(Tiny):
        def weights(self) -> dict[str, F32]:
            return weights

    fields = {name: getattr(tiny, name) for name in tiny.__dataclass_fields__}
    return write_model(path, Given(**fields))


def test_a_rank_of_1_may_leave_its_axis_out(tmp_path: Path) -> None:
    tiny, lora = Tiny("qwen2moe", weight_format="f32"), Lora(rank=1)
    path, tokens = write_model(tmp_path / "m.gguf", tiny), prompt(N_VOCAB, 4)
    matrices, metadata = lora.matrices(tiny), keys("qwen2moe", 2.0)
    flat = {n: m.reshape(m.shape[-1:]) if m.size == m.shape[-1] else m for n, m in matrices.items()}
    assert any(flat[name].ndim < matrices[name].ndim for name in flat)
    files = [
        write_pairs(tmp_path / f"{i}.gguf", "qwen2moe", m, metadata)
        for i, m in enumerate((matrices, flat))
    ]
    found = [reference_logits(path, [(file, 1.0)], tokens, [3]) for file in files]
    assert found[0].tobytes() == found[1].tobytes()


def test_the_plan_adds_in_place_and_shares_barriers(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", "llama", n_layers=1)
    with open_checkpoint(path) as checkpoint:
        plan = size_model(checkpoint, context=16).plan
    names = [name for name in targets(plan) if name.startswith("blk")]
    branches = [Branch(n, f"{n}.a", f"{n}.b", 4, 0.5) for n in names]
    found = branched(plan, branches)
    order = [op.weights[0].removeprefix("blk.0.attn_") for op in found.ops if op.kind == "linear"]
    first = order.index("q.weight.a")
    assert order[first : first + 9] == [
        "q.weight.a", "q.weight", "k.weight.a", "k.weight", "v.weight.a", "v.weight",
        "q.weight.b", "k.weight.b", "v.weight.b",
    ]  # fmt: skip
    for op in found.ops:
        if op.kind == "linear" and op.weights[0].endswith(".b"):
            (reader,) = found.readers(op.output)
            assert reader.kind == "add"
            assert reader.inputs[1] == op.output
    assert list(plan.lines()) == list(branched(plan, []).lines())


def test_memory_counts_adapters(tmp_path: Path) -> None:
    tiny = Tiny("llama", weight_format="q8_0")
    path = write_model(tmp_path / "m.gguf", tiny)
    file = write_adapter(tmp_path / "a.gguf", tiny, Lora(rank=16))
    with open_checkpoint(path) as checkpoint:
        before = size_model(checkpoint, context=64).memory
    with open_adapted(path, [(file, 1.0)]) as checkpoint:
        after = size_model(checkpoint, context=64).memory
        adapter = checkpoint.adapters[0].checkpoint
    assert after.weights_nbytes == before.weights_nbytes + adapter.nbytes  # of rank 16: no padding
    assert after.buffers_nbytes > before.buffers_nbytes


MISFITS = {
    "another architecture": ("qwen2", {}, "is made for qwen2 models, and m.gguf is a llama model"),
    "no such tensor": ("llama", {"rename": ("blk.0.attn_q", "blk.9.attn_q")}, "does not have"),
    "a norm": ("llama", {"rename": ("blk.0.attn_q.", "blk.0.attn_norm.")}, "cannot be adapted"),
    "wrong input": ("llama", {"a": (4, 64)}, "is 4 x 64, but 4 x 128"),
    "wrong output": ("llama", {"b": (96, 4)}, "is 96 x 4, but 128 x 4"),
    "ranks differ": ("llama", {"a": (3, 128)}, "is 3 x 128, but 4 x 128"),
    "transposed": ("llama", {"a": (128, 4)}, "is 128 x 4, but 4 x 128"),
    "NaN": ("llama", {"fill": np.nan}, "NaN"),
    "infinity": ("llama", {"fill": -np.inf}, "NaN or infinity"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_named(name: str, tmp_path: Path) -> None:
    arch, change, message = MISFITS[name]
    tiny = Tiny("llama", weight_format="f32")
    path = write_model(tmp_path / "m.gguf", tiny)
    matrices = Lora(targets=("attn_q",)).matrices(tiny)
    tensor = "blk.0.attn_q.weight"
    for half in "ab":
        if half in change:
            matrices[f"{tensor}.lora_{half}"] = np.ones(change[half], np.float32)
    if "fill" in change:
        matrices[f"{tensor}.lora_b"][5, 2] = change["fill"]
    if "rename" in change:
        matrices = {n.replace(*change["rename"]): m for n, m in matrices.items()}
    file = write_pairs(tmp_path / "adapter.gguf", arch, matrices, keys(arch, 8.0))
    with open_checkpoint(path) as base, pytest.raises(ModelError) as caught:
        with_adapters(base, [(file, 1.0)])
    said = str(caught.value)
    assert said.startswith(f"{file}: ")
    assert message in said
    assert "\n" not in said
    if name != "another architecture":
        assert "lora_" in said


def test_an_adapter_of_heads_own_matrices_is_refused(tmp_path: Path) -> None:
    tiny = Tiny("deepseek2", weight_format="f32")
    path = write_model(tmp_path / "m.gguf", tiny)
    shape = tiny.shapes()["blk.0.attn_k_b.weight"]
    pair = {"a": (shape[0], 4, shape[2]), "b": (*shape[:2], 4)}
    matrices = {f"blk.0.attn_k_b.weight.lora_{x}": np.ones(s, np.float32) for x, s in pair.items()}
    file = write_pairs(tmp_path / "adapter.gguf", "deepseek2", matrices, keys("deepseek2", 8.0))
    with pytest.raises(ModelError, match=r"attn_k_b\.weight\.lora_a.* cannot be adapted"):
        open_adapted(path, [(file, 1.0)])


def test_a_damaged_adapter_ends_in_one_line_or_works(tmp_path: Path) -> None:
    tiny = Tiny("llama", weight_format="f32", n_layers=1)
    path = write_model(tmp_path / "m.gguf", tiny)
    whole = write_adapter(tmp_path / "a.gguf", tiny, Lora(targets=("attn_q",))).read_bytes()
    random = np.random.RandomState(0)
    file, refusals = tmp_path / "b.gguf", []
    for _ in range(150):
        data = bytearray(whole[: random.randint(1, len(whole))] if random.rand() < 0.3 else whole)
        for at in random.randint(0, min(len(data), 600), random.randint(1, 5)):
            data[at] = random.randint(256)
        file.write_bytes(data)
        try:
            open_adapted(path, [(file, 1.0)]).close()
        except ModelError as error:
            refusals.append(str(error))
    assert len(refusals) > 75
    assert all(str(file) in said and "\n" not in said for said in refusals)
