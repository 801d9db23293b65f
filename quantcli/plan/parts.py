"""What a plan is made of: buffers, ops, and the numbers of those that have many."""

from __future__ import annotations

from dataclasses import dataclass, field

Param = int | float | str | bool | None

TOKENS = "tokens"  # one row for each token of a step
OUTPUTS = "outputs"  # one row for each token whose logits are wanted
# One row for each expert that each row of an axis goes to; in which order is the executor's choice.
ENTRIES = {TOKENS: "token entries", OUTPUTS: "output entries"}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value between two ops: f32 (rows, width), where `axis` names the rows."""

    name: str
    width: int
    axis: str = TOKENS


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of one kind of layer.

    style            "norm" rotates pairs (2i, 2i+1), "neox" pairs (i, i + n_rot/2)
    n_rot            leading dimensions of a head that rotate, even
    freq_base        theta_i = position * freq_base ** (-2i / n_rot) / factor_i
    scaling          "none", "linear" or "yarn"
    factor           scaling factor (linear, yarn)
    original_context context the model was trained with before scaling (yarn)
    ext_factor, attn_factor, beta_fast, beta_slow   yarn's parameters
    log_mul          yarn's magnitude is divided by 0.1 log_mul ln(factor) + 1; 0: it is not
    freq_factors     name of the tensor with factor_i (llama3's rope_freqs), or None
    long_factors     the same for contexts beyond original_context (longrope), or None
    start            first dimension of a head that rotates
    """

    style: str
    n_rot: int
    freq_base: float
    scaling: str = "none"
    factor: float = 1.0
    original_context: int = 0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    log_mul: float = 0.0
    freq_factors: str | None = None
    long_factors: str | None = None
    start: int = 0


@dataclass(frozen=True, slots=True)
class Heads:
    """The shape and rule of one attention.

    n_heads, n_kv_heads, head_dim   query heads, key/value heads (a divisor), width of one
    scale     factor on q . k
    window    keys a query sees, itself included; 0 means all
    softcap   cap * tanh(score / cap) before the softmax; 0 means none
    sinks     name of the tensor with one extra logit a head, or None
    value_dim width of a value head where it is not head_dim; never more
    temperature, temperature_length   q grows with its position by 1 + temperature * ln(1 +
              floor(position / temperature_length)); 0 means it does not
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: str | None = None
    temperature: float = 0.0
    temperature_length: int = 1
    value_dim: int = 0

    @property
    def value_width(self) -> int:
        """Width of one value head."""
        return self.value_dim or self.head_dim


@dataclass(frozen=True, slots=True)
class Routing:
    """How a row chooses experts: the best scores, ties to the lower expert, in falling order.

    n_experts, n_used   experts there are, and that a row goes to
    score       "softmax" over all experts, "sigmoid" of each, or "softmax_of_chosen": over the
                chosen ones, which the logits themselves choose
    bias        name of a tensor added to scores for choosing only, or None
    normalize   whether the weights of the chosen are divided by their sum
    scale       factor on weights
    """

    n_experts: int
    n_used: int
    score: str = "softmax"
    bias: str | None = None
    normalize: bool = True
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Op:
    """One entry of a plan.

    kind     a key of SIGNATURES
    inputs   buffers it reads
    output   the buffer it writes
    weights  tensor names it reads, in the order of its kind's signature
    params   its numbers, by name
    layer    the transformer layer it belongs to, or None
    rope, heads, routing   set for the kinds that need them
    """

    kind: str
    inputs: tuple[Buffer, ...]
    output: Buffer
    weights: tuple[str, ...] = ()
    params: dict[str, Param] = field(default_factory=dict)
    layer: int | None = None
    rope: Rope | None = None
    heads: Heads | None = None
    routing: Routing | None = None

    def number(self, name: str) -> float:
        """Return a numeric parameter."""
        value = self.params[name]
        assert isinstance(value, int | float), (self.kind, name, value)
        return float(value)
