"""The model that a server serves, with what requests need of it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from quantcli.engine.request import SamplingParams
from quantcli.text import Tokenizer
from quantcli.text.chat import ChatTemplate


@dataclass
class Served:
    """A loaded model.

    name       what /v1/models calls it
    n_slots    the longest prompt that its cache can hold
    n_vocab    tokens that there are
    metadata   the file's keys and values
    facts      further numbers that /v1/models tells
    adapters   the LoRA adapters that it wears, as /lora-adapters lists them
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    metadata: Mapping[str, object]
    context: int
    n_slots: int
    facts: Mapping[str, object] = field(default_factory=dict)
    adapters: Sequence[object] = ()
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def source(self) -> str:
        """The program of the chat template: of two that for tools, "" if there is none."""
        if self.template is None:
            return ""
        return (self.template.for_tools or self.template).source

    @cached_property
    def template_takes_tools(self) -> bool:
        """Whether the chat template shows tools to the model."""
        return re.search(r"\btools\b", self.source) is not None

    @cached_property
    def template_thinks(self) -> bool:
        """Whether the model was trained to think between <think> and </think>."""
        return "think>" in self.source

    @property
    def defaults(self) -> SamplingParams:
        """The sampling parameters of a request that names none."""
        return SamplingParams.resolve({}, self.metadata)

    def described(self) -> dict[str, object]:
        """Return the model as /v1/models lists it."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "quantcli",
            "meta": {"n_ctx": self.context, "n_vocab": self.tokenizer.n_vocab, **self.facts},
        }

    def token_text(self, token: int) -> str:
        """Return a token's text, U+FFFD for bytes that are no character; of control tokens "" ."""
        if self.tokenizer.is_hidden(token):
            return ""
        return self.tokenizer.token_bytes(token).decode("utf-8", "replace")
