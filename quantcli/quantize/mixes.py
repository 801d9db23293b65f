"""Mixes: what a file type such as q4_k_m puts where, as rows. The choices are llama.cpp's.

Source: llama_tensor_get_type_impl and llama_ftype_get_default_type of llama.cpp's
src/llama-quant.cpp, file types of its include/llama.h; the goldens of tests/quantize hold them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quantcli.errors import UnknownName, UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands in its model, as far as mixes look at it.

    index, count   its number among the tensors of its kind, and how many a model has
    n_gqa          query heads that share a key/value head
    n_experts      experts of a layer, 0 for a dense model
    has_imatrix    whether statistics of the inputs are given
    is_70b         a Llama of 80 layers with grouped queries, whose attn_v is small and sensitive
    """

    index: int
    count: int
    n_gqa: int = 1
    n_experts: int = 0
    has_imatrix: bool = False
    is_70b: bool = False

    @property
    def is_first_eighth(self) -> bool:
        """Whether it belongs to the first eighth of the layers."""
        return self.index < self.count // 8

    @property
    def gets_more_bits(self) -> bool:
        """Whether it is in the first or the last eighth, or every third between them."""
        i, n = self.index, self.count
        # C's remainder has the sign of the dividend, but the first condition covers i < n // 8
        return self.is_first_eighth or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


CONDITIONS: dict[str, Callable[[Place], bool]] = {
    "always": lambda _: True,
    "more bits": lambda p: p.gets_more_bits,
    "first 2": lambda p: p.index < 2,
    "first 4": lambda p: p.index < 4,
    "first 1/8": lambda p: p.is_first_eighth,
    "first 1/16": lambda p: p.index < p.count // 16,
    "first 1/8, imatrix": lambda p: p.is_first_eighth and p.has_imatrix,
    "first 1/8, no imatrix": lambda p: p.is_first_eighth and not p.has_imatrix,
    "4 queries a head": lambda p: p.n_gqa >= 4,
    "8 experts": lambda p: p.n_experts == 8,
    "not 8 experts": lambda p: p.n_experts != 8,
    "70b": lambda p: p.is_70b,
}

# Kinds of tensors, by the first of these that its name contains; "output" and "token_embd" are
# whole names. A fused attn_qkv and MLA's attn_kv_b are treated as attn_v.
KINDS = (
    ("attn_qkv.weight", "attn_v"),
    ("attn_kv_b.weight", "attn_v"),
    ("attn_v.weight", "attn_v"),
    ("attn_k.weight", "attn_k"),
    ("attn_q.weight", "attn_q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)
OUTPUT = "output.weight"
EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


def kind_of(name: str) -> str:
    """Return the kind of a tensor: "output", "token_embd", one of KINDS, or "other"."""
    if name == OUTPUT:
        return "output"
    if name in EMBEDDINGS:
        return "token_embd"
    return next((kind for part, kind in KINDS if part in name), "other")


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors of a kind get a format where a condition holds; the first rule that does decides."""

    kind: str
    format: str
    when: str = "always"


@dataclass(frozen=True, slots=True)
class Mix:
    """A file type.

    file_type   the number that files carry as general.file_type
    default     the format of what no rule names
    output      that of the output matrix, and of the embedding where they are one
    embedding   that of an embedding of its own; None: the default
    experts     that of matrices of experts, where they differ
    """

    name: str
    file_type: int
    default: str
    summary: str
    rules: tuple[Rule, ...] = ()
    output: str = "q6_k"
    embedding: str | None = None
    experts: str | None = None


_EXPERTS_OUTPUT = Rule("attn_output", "q5_k", "8 experts")
# Attention is a small part of a model of eight experts, so that more bits there cost little.
_EXPERTS = (Rule("attn_v", "q8_0", "8 experts"), Rule("attn_k", "q8_0", "8 experts"))
_70B = {"q3_k": "q5_k", "q4_k": "q5_k"}  # attn_v is eight times smaller there than attn_q


def _pure(name: str, file_type: int, format_name: str, summary: str, output: str = "q6_k") -> Mix:
    return Mix(name, file_type, format_name, summary, output=output)


MIXES = (
    _pure("f32", 0, "f32", "32 bits, as the model is computed", "f32"),
    _pure("f16", 1, "f16", "16 bits, IEEE half", "f16"),
    Mix(
        "q4_0",
        2,
        "q4_0",
        "4.5 bits, blocks of 32, fast",
        (Rule("ffn_down", "q4_1", "first 1/8, imatrix"),),
    ),
    _pure("q4_1", 3, "q4_1", "5 bits, blocks of 32"),
    _pure("q8_0", 7, "q8_0", "8.5 bits, next to lossless", "q8_0"),
    Mix(
        "q5_0",
        8,
        "q5_0",
        "5.5 bits, blocks of 32",
        (Rule("ffn_down", "q5_1", "first 1/8, imatrix"),),
    ),
    _pure("q5_1", 9, "q5_1", "6 bits, blocks of 32"),
    Mix(
        "q2_k",
        10,
        "q2_k",
        "about 3.0 bits, great loss",
        (
            Rule("attn_v", "q4_k", "4 queries a head"),
            Rule("attn_v", "q3_k"),
            Rule("ffn_down", "q3_k"),
            _EXPERTS_OUTPUT,
            Rule("attn_output", "q3_k"),
        ),
    ),
    Mix("q3_k_s", 11, "q3_k", "3.5 bits, great loss", (_EXPERTS_OUTPUT,)),
    Mix(
        "q3_k_m",
        12,
        "q3_k",
        "3.9 bits, noticeable loss",
        (
            Rule("attn_v", "q5_k", "first 2"),
            Rule("attn_v", "q4_k"),
            Rule("ffn_down", "q5_k", "first 1/16"),
            Rule("ffn_down", "q4_k"),
            _EXPERTS_OUTPUT,
            Rule("attn_output", "q4_k"),
        ),
    ),
    Mix(
        "q3_k_l",
        13,
        "q3_k",
        "4.3 bits, noticeable loss",
        (
            Rule("attn_v", "q5_k"),
            Rule("ffn_down", "q5_k"),
            Rule("attn_output", "q5_k", "not 8 experts"),
        ),
    ),
    Mix(
        "q4_k_s",
        14,
        "q4_k",
        "4.6 bits, small loss",
        (
            Rule("attn_v", "q5_k", "first 4"),
            Rule("ffn_down", "q5_k", "first 1/8"),
            _EXPERTS_OUTPUT,
        ),
    ),
    Mix(
        "q4_k_m",
        15,
        "q4_k",
        "4.9 bits, small loss: the usual choice",
        (
            Rule("attn_v", "q6_k", "more bits"),
            Rule("ffn_down", "q6_k", "more bits"),
            _EXPERTS_OUTPUT,
        ),
    ),
    _pure("q5_k_s", 16, "q5_k", "5.5 bits, very small loss"),
    Mix(
        "q5_k_m",
        17,
        "q5_k",
        "5.7 bits, very small loss",
        (Rule("attn_v", "q6_k", "more bits"), Rule("ffn_down", "q6_k", "more bits")),
    ),
    _pure("q6_k", 18, "q6_k", "6.6 bits, next to no loss"),
    Mix(
        "q2_k_s",
        21,
        "q2_k",
        "2.7 bits, needs an imatrix",
        (Rule("attn_v", "q4_k", "4 queries a head"), Rule("ffn_down", "q4_k", "first 1/8")),
    ),
    Mix(
        "iq4_nl",
        25,
        "iq4_nl",
        "4.5 bits, blocks of 32, steps that are not even",
        (
            Rule("attn_v", "q5_k", "4 queries a head"),
            Rule("ffn_down", "q5_k", "first 1/8, no imatrix"),
            _EXPERTS_OUTPUT,
        ),
    ),
    Mix(
        "iq4_xs",
        30,
        "iq4_xs",
        "4.3 bits, small loss",
        (
            Rule("attn_v", "q5_k", "4 queries a head"),
            Rule("ffn_down", "q5_k", "first 1/8, no imatrix"),
            _EXPERTS_OUTPUT,
        ),
    ),
    _pure("bf16", 32, "bf16", "16 bits, as most models are trained", "bf16"),
    Mix("tq1_0", 36, "tq1_0", "1.7 bits, for ternary models", embedding="q4_k"),
    Mix("tq2_0", 37, "tq2_0", "2.1 bits, for ternary models", embedding="q4_k"),
    Mix(
        "mxfp4_moe",
        38,
        "q8_0",
        "experts in MXFP4, the rest in q8_0",
        output="q8_0",
        experts="mxfp4",
    ),
    # llama.cpp has no such file type; this one is closest in number, and readers only show it
    _pure("mxfp4", 38, "mxfp4", "4.25 bits, blocks of 32, 4-bit floats"),
)
ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}
NEEDS_STATISTICS = "q2_k_s"  # llama.cpp refuses it without


# Formats without an encoder, llama.cpp's file types made of them, and what to take in their place.
UNWRITTEN = frozenset({"iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs", "nvfp4"})
_UNWRITTEN_MIXES = frozenset({"iq2_m", "iq3_m", "iq3_xs"})
_IN_PLACE = {"iq1": "q2_k", "iq2": "q2_k", "iq3": "q3_k_m", "nvfp4": "q4_k_m"}


def mix(name: str) -> Mix:
    """Return a mix by its name in any case, llama.cpp's aliases included.

    Raises UnknownName, or UsageError for one of a format that is only read.
    """
    wanted = name.lower()
    wanted = ALIASES.get(wanted, wanted)
    refuse_unwritten(wanted)
    found = next((row for row in MIXES if row.name == wanted), None)
    if found is None:
        raise UnknownName("type", name, (*(row.name for row in MIXES), *ALIASES))
    return found


def refuse_unwritten(name: str) -> None:
    """Refuse a format, or a file type of formats, that is only read (UsageError)."""
    if name in UNWRITTEN or name in _UNWRITTEN_MIXES:
        writable = next(good for start, good in _IN_PLACE.items() if name.startswith(start))
        raise UsageError(f"{name} can be read and run but not written; {writable} can be written.")


def closest_mix(bits_per_weight: float) -> str:
    """Return the file type whose main format is closest in size, as a label for other mixes."""
    from quantcli import formats

    def distance(row: Mix) -> float:
        return abs(formats.get(row.default).bits_per_weight - bits_per_weight)

    return min(MIXES, key=distance).name


def uniform(format_name: str, like: Mix) -> Mix:
    """Return a mix's namesake of one format everywhere, for --pure."""
    return replace(like, default=format_name, rules=(), output=format_name, embedding=None)


def choose(row: Mix, kind: str, place: Place, *, is_expert: bool = False) -> str:
    """Return the format that a mix gives to a tensor inside the layers."""
    if row.name == "mxfp4_moe":
        return row.experts if is_expert and row.experts else row.default
    if row.default in ("f32", "f16", "bf16"):
        return row.default
    for rule in (*_EXPERTS, *row.rules):
        if rule.kind == kind and CONDITIONS[rule.when](place):
            chosen = rule.format
            break
    else:
        chosen = row.default
    return _70B.get(chosen, chosen) if kind == "attn_v" and place.is_70b else chosen
