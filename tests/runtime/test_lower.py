"""Plans, also ones that no architecture makes, lowered and run against the NumPy executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from checkpoints_in_memory import MemoryCheckpoint, tensor

from quantcli.formats import F32
from quantcli.kvcache import create
from quantcli.plan import Buffer, Heads, Plan, Rope
from quantcli.runtime.compiled import CompiledBackend
from quantcli.runtime.fusion import Fusion
from quantcli.runtime.memory import plan_memory
from quantcli.runtime.reference import ReferenceExecutor
from quantcli.runtime.sizing import Sizing
from quantcli.runtime.step import Batch

pytestmark = pytest.mark.jit

N_VOCAB, CONTEXT, MAX_ROWS = 50, 64, 24
STEPS = [  # prompt, one row alone, two sequences at once, one output of several rows
    Batch([3, 1, 4, 1, 5], [0, 1, 2, 3, 4], [0] * 5, [0, 1, 2, 3, 4]),
    Batch([9], [5], [0], [0]),
    Batch([2, 6, 5, 3], [0, 6, 1, 7], [1, 0, 1, 0], [3, 0, 3]),
    Batch([5, 8, 9], [2, 3, 4], [1] * 3, [2]),
]
Shapes = dict[str, tuple[int, ...]]


def weights(shapes: Shapes, formats: tuple[str, ...] = ("f32",)) -> MemoryCheckpoint:
    """Return random weights on a scale that keeps buffers lively."""
    random, made = np.random.default_rng(1), {}
    for i, (name, shape) in enumerate(shapes.items()):
        noise = random.standard_normal(shape)
        values = noise / np.sqrt(shape[1]) if len(shape) == 2 else 1 + 0.3 * noise
        fits = [f for f in formats if len(shape) == 2 and (f[0] != "q" or shape[1] % 32 == 0)]
        made[name] = tensor(name, np.float32(values), fits[i % len(fits)] if fits else "f32")
    return MemoryCheckpoint(made)


@contextmanager
def compiled(
    plan: Plan, checkpoint: MemoryCheckpoint, *, cache: str = "paged", n_threads: int = 2
) -> Iterator[Callable[[Batch], F32]]:
    """Lower a plan; give a function that runs a step."""
    plan.verify()
    memory = plan_memory(
        context=CONTEXT,
        weights_nbytes=0,
        kv_nbytes_per_token=0,
        buffers_nbytes=0,
        available=0,
        n_sequences=2,
    )
    sizing = Sizing(None, plan, memory, MAX_ROWS, 2, 2)  # type: ignore[arg-type]
    kv = create(cache, context=CONTEXT, n_sequences=2)
    backend = CompiledBackend(checkpoint, sizing, kv, n_threads, "f16")  # type: ignore[arg-type]

    def run(batch: Batch) -> F32:
        for sequence in set(batch.sequences):
            kv.reserve(sequence, CONTEXT)
        return backend.forward(batch).copy()

    try:
        yield run
    finally:
        backend.close()


def check(plan: Plan, formats: tuple[str, ...] = ("f32",), tolerance: float = 0.01) -> None:
    """Compare every step with the NumPy executor; bytes on 1 to 3 threads with each other.

    Rounding is tested with the kernels. Here only what is far off matters: a buffer that another
    op wrote over, a missing barrier, a wrong row.
    """
    checkpoint = weights(plan.weights, formats)
    is_quantized = any(name[0] == "q" for name in formats)
    oracle = ReferenceExecutor(
        plan,
        checkpoint.tensor,
        context=CONTEXT,
        kv_type="f16",
        activation="q8" if is_quantized else "f32",
    )
    wanted = [oracle.forward(b.tokens, b.positions, b.sequences, b.outputs) for b in STEPS]
    outcomes = set()
    for n_threads in (1, 2, 3):
        with compiled(plan, checkpoint, n_threads=n_threads) as run:
            found = [run(batch) for batch in STEPS]
        for got, want in zip(found, wanted, strict=True):
            assert got.shape == want.shape
            assert np.abs(got - want).max() <= tolerance * (want.std() + 1e-6)
        outcomes.add(b"".join(array.tobytes() for array in found))
    assert len(outcomes) == 1


class RandomPlan:
    """A plan whose ops read any buffers written before, of any width."""

    def __init__(self, seed: int, n_ops: int = 14) -> None:
        self.random = np.random.default_rng(seed)
        self.plan = Plan()
        self.n_weights = 0
        self.pool = [self.plan.embed("embed", N_VOCAB, 64, scale=2.0)]
        for _ in range(n_ops):
            kind = self.random.choice(
                ["norm", "linear", "gated", "add", "add", "scale", "attention"]
            )
            self.pool.append(getattr(self, kind)())
        out = self.plan.select(self.plan.rms_norm(self.pick(), self.name(), 1e-5))
        if seed % 2:
            out = self.plan.rms_norm(out, self.name(), 1e-5)
        if seed % 3 == 0:
            out = self.plan.add(out, self.linear(out, out.width))
        self.plan.softcap(self.linear(out, N_VOCAB), 5.0)

    def name(self) -> str:
        self.n_weights += 1
        return f"weight {self.n_weights}"

    def pick(self, width: int = 0) -> Buffer:
        """Choose a buffer, most often a late one."""
        fits = [buffer for buffer in self.pool if width in (0, buffer.width)]
        return fits[-1 - int(self.random.exponential(1.5)) % len(fits)]

    def chance(self) -> bool:
        return bool(self.random.integers(2))

    def norm(self) -> Buffer:
        return self.plan.rms_norm(self.pick(), self.name(), 1e-5)

    def linear(self, x: Buffer | None = None, width: int = 0) -> Buffer:
        x, width = x or self.pick(), width or int(self.random.choice([64, 64, 96, 40]))
        return self.plan.linear(x, self.name(), width, self.name() if self.chance() else None)

    def gated(self) -> Buffer:
        gate = self.pick()
        return self.plan.gated(
            gate, self.pick(gate.width), str(self.random.choice(["silu", "gelu_tanh"]))
        )

    def add(self) -> Buffer:
        x = self.pick()
        return self.plan.add(x, self.linear(width=x.width) if self.chance() else self.pick(x.width))

    def scale(self) -> Buffer:
        return self.plan.scale(self.pick(), 0.7)

    def attention(self) -> Buffer:
        self.plan.layer = 0 if self.plan.layer is None else self.plan.layer + 1
        source, n_kv_heads = self.pick(), int(self.random.choice([1, 2]))
        q, k, v = (self.linear(source, 32 * n) for n in (2, n_kv_heads, n_kv_heads))
        if self.chance():
            q, k = (self.plan.rms_norm(x, self.name(), 1e-5, group=32) for x in (q, k))
        if self.chance():
            rope = Rope(str(self.random.choice(["norm", "neox"])), 16, 100.0)
            q, k = (self.plan.rope(x, rope, 32) for x in (q, k))
        window = int(self.random.choice([0, 3]))
        return self.plan.attention(q, k, v, Heads(2, n_kv_heads, 32, 0.3, window))


@pytest.mark.parametrize("seed", range(40))
def test_any_plan_gives_what_numpy_gives(seed: int) -> None:
    check(RandomPlan(seed).plan)


@pytest.mark.parametrize("seed", range(100, 108))
def test_any_plan_with_any_formats_gives_what_numpy_gives(seed: int) -> None:
    check(RandomPlan(seed).plan, ("q8_0", "f32", "f16", "q5_1", "q4_0", "bf16"), tolerance=0.3)


def logits(plan: Plan, x: Buffer) -> Plan:
    """End a plan with rows chosen and a matrix."""
    plan.linear(plan.select(x), "output", N_VOCAB)
    return plan


def start() -> tuple[Plan, Buffer]:
    plan = Plan()
    return plan, plan.embed("embed", N_VOCAB, 64)


def residual_before_it_exists(plan: Plan, x: Buffer) -> Buffer:
    product = plan.linear(x, "a", 64)
    return plan.add(plan.scale(x, 0.5), product)


def residual_that_is_read_later(plan: Plan, x: Buffer) -> Buffer:
    total = plan.add(x, plan.linear(x, "a", 64))
    return plan.add(total, x)


def twice_itself(plan: Plan, x: Buffer) -> Buffer:
    return plan.add(x, x)


def linear_as_first_operand(plan: Plan, x: Buffer) -> Buffer:
    return plan.add(plan.linear(x, "a", 64), x)


def two_residuals_in_a_row(plan: Plan, x: Buffer) -> Buffer:
    for name in "abc":
        x = plan.add(x, plan.linear(plan.rms_norm(x, f"norm {name}", 1e-5), name, 64))
    return x


def a_norm_of_two_kinds_of_readers(plan: Plan, x: Buffer) -> Buffer:
    h = plan.rms_norm(x, "norm", 1e-5)
    return plan.add(h, plan.linear(h, "a", 64))


def a_gate_that_an_add_reads(plan: Plan, x: Buffer) -> Buffer:
    return plan.add(x, plan.gated(plan.linear(x, "a", 64), plan.linear(x, "b", 64), "silu"))


def post_norms(plan: Plan, x: Buffer) -> Buffer:
    y = plan.rms_norm(plan.linear(x, "a", 64), "norm a", 1e-5)
    x = plan.add(x, y)
    return plan.add(plan.rms_norm(plan.linear(x, "b", 64), "norm b", 1e-5), x)


def a_result_that_nobody_reads(plan: Plan, x: Buffer) -> Buffer:
    plan.linear(x, "a", 64)
    plan.rms_norm(x, "norm", 1e-5)
    return plan.scale(x, 2.0)


def narrow_and_wide(plan: Plan, x: Buffer) -> Buffer:
    narrow = plan.rms_norm(plan.linear(x, "a", 40), "norm a", 1e-5)
    wide = plan.linear(plan.linear(narrow, "b", 100), "c", 64)
    return plan.add(wide, plan.linear(plan.scale(narrow, 3.0), "d", 64))


@pytest.mark.parametrize(
    "body",
    [
        residual_before_it_exists,
        residual_that_is_read_later,
        twice_itself,
        linear_as_first_operand,
        two_residuals_in_a_row,
        a_norm_of_two_kinds_of_readers,
        a_gate_that_an_add_reads,
        post_norms,
        a_result_that_nobody_reads,
        narrow_and_wide,
    ],
    ids=lambda body: body.__name__,
)
def test_buffers_are_shared_only_where_nothing_is_lost(
    body: Callable[[Plan, Buffer], Buffer],
) -> None:
    plan, x = start()
    check(logits(plan, body(plan, x)))


def test_a_query_that_is_rotated_in_place_has_no_other_reader() -> None:
    plan, x = start()
    plan.layer = 0
    q, k, v = (plan.linear(x, name, 64) for name in "qkv")
    ends = [plan.rope(b, Rope("norm", 32, 100.0), 32) for b in (q, k)]
    x = plan.add(plan.attention(*ends, v, Heads(2, 2, 32, 0.2)), q)
    with pytest.raises(AssertionError, match="rotated in place"):
        Fusion(logits(plan, x))


def test_what_is_fused_is_read_off_the_plan() -> None:
    plan, x = start()
    plan.layer = 0
    h = plan.rms_norm(x, "norm", 1e-5)
    q, k, v = (plan.linear(h, name, 64) for name in "qkv")
    rope = Rope("neox", 32, 100.0)
    q_end, k_end = (
        plan.rope(plan.rms_norm(b, f"{b.name} norm", 1e-5, 32), rope, 32) for b in (q, k)
    )
    attended = plan.linear(plan.attention(q_end, k_end, v, Heads(2, 2, 32, 0.2)), "o", 64)
    x = plan.add(x, attended)
    gate = plan.gated(plan.linear(x, "gate", 96), plan.linear(x, "up", 96), "silu")
    x = plan.add(x, plan.rms_norm(plan.linear(gate, "down", 64), "post", 1e-5))
    logits(plan, x)
    fusion = Fusion(plan)
    fused = [op.kind for op in plan.ops if fusion.is_fused(op)]
    assert fused == ["rms_norm", "rms_norm", "rope", "rms_norm", "rope", "gated", "rms_norm"]
    assert fusion.paths[q_end].source == q
    assert fusion.paths[k_end].norm == plan.ops[7]
    assert set(fusion.staged) == {h, gate}
    assert len(fusion.into_add) == 1
    assert fusion.roots(gate) == tuple(
        op.output for op in plan.ops if op.weights[:1] in (("gate",), ("up",))
    )
    check(plan)


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
def test_a_row_wants_the_same_bytes_from_any_cache(cache: str) -> None:
    plan = RandomPlan(3).plan
    checkpoint = weights(plan.weights)
    with compiled(plan, checkpoint, cache=cache) as run, compiled(plan, checkpoint) as paged:
        for batch in STEPS:
            assert run(batch).tobytes() == paged(batch).tobytes()
