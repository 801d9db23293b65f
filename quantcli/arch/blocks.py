"""The decoder block that most architectures share, with a switch for each way they differ.

x = embed(tokens); per layer x += o(attention(norm(x))), x += down(act(gate) * up) of norm(x);
logits = output(norm(x)). Behind the last attention, which stores keys and values of all rows, only
rows whose logits are wanted go on. An architecture is a `Decoder` with its switches set.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantcli.arch.attention import attend
from quantcli.arch.hyper import EMBEDDING, Hyper
from quantcli.arch.layers import here, join, linear, norm
from quantcli.arch.mlp import feed_forward
from quantcli.arch.switches import Switches, no_experts
from quantcli.errors import UnsupportedModel
from quantcli.plan import Buffer, Plan


@dataclass(frozen=True, slots=True)
class Decoder(Switches):
    """An architecture made of the shared block: see `switches.Switches`."""

    def build(self, hyper: Hyper) -> Plan:
        """Return the plan. Biases and an output matrix of its own are read if the file has them.

        Raises ShapeError if the hyper-parameters do not fit each other, UnsupportedModel or
        CheckpointError for a key of the architecture's own that is wrong.
        """
        self.check(hyper)
        plan = Plan()
        x = plan.embed(EMBEDDING, hyper.n_vocab, hyper.d_model, self.embed_scale(hyper))
        for layer in range(hyper.n_layers):
            plan.layer = layer
            x = self._layer(plan, hyper, x)
        plan.layer = None
        x = norm(plan, self, hyper, x, "output_norm")
        tied = "output.weight" not in hyper.tensors
        weight = EMBEDDING.removesuffix(".weight") if tied else "output"
        x = linear(plan, hyper, x, weight, hyper.n_vocab)
        if (factor := self.logit_scale(hyper)) != 1.0:
            x = plan.scale(x, factor)
        if cap := self.logit_softcap(hyper):
            plan.softcap(x, cap)
        plan.verify()
        return plan

    def check(self, hyper: Hyper) -> None:
        """Raise UnsupportedModel for numbers that the architecture has no use for."""
        if hyper.n_experts > 1 and self.experts is no_experts:
            raise UnsupportedModel(
                f"{hyper.arch}.expert_count is {hyper.n_experts}: {hyper.arch} models with experts "
                "are not supported; use a dense one."
            )
        if hyper.value_dim != hyper.head_dim:
            raise UnsupportedModel(
                f"{hyper.arch}.attention.value_length is {hyper.value_dim}, but only models whose "
                f"heads are all as wide as attention.key_length, {hyper.head_dim}, are supported."
            )

    def attend(self, plan: Plan, hyper: Hyper, h: Buffer) -> Buffer:
        """Append attention over a normed input; return what goes into the output matrix."""
        return attend(plan, self, hyper, h)

    def unfold(self, plan: Plan, hyper: Hyper, o: Buffer) -> Buffer:
        """Append what happens to chosen rows of attention's result before the output matrix."""
        return o

    def _layer(self, plan: Plan, hyper: Hyper, x: Buffer) -> Buffer:
        """Append a layer; return the residual stream after it."""
        layer, prefix = here(plan)
        h = norm(plan, self, hyper, x, f"{prefix}.attn_norm") if self.pre_norms else x
        o = self.attend(plan, hyper, h)
        source = self.mlp_reads(hyper, layer)
        if layer == hyper.n_layers - 1:
            o, x = plan.select(o), plan.select(x)
            if source == "same":
                h = plan.select(h)
        o = linear(plan, hyper, self.unfold(plan, hyper, o), f"{prefix}.attn_output", hyper.d_model)
        if source == "sum":
            x = join(plan, self, hyper, x, o, f"{prefix}.post_attention_norm")
        if source != "same":
            name = f"{prefix}.{self.ffn_norm}"
            h = norm(plan, self, hyper, x, name) if self.pre_norms else x
        d = feed_forward(plan, self, hyper, h)
        if source != "sum":
            x = plan.add(x, o)
        return join(plan, self, hyper, x, d, f"{prefix}.post_ffw_norm")
