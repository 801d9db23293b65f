"""Text and tokens without an answer: /tokenize, /detokenize, /tokenizer_info, /apply-template."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from quantcli.server.asking import attended
from quantcli.server.body import read_fields
from quantcli.server.fields import MAX_INT, refuse, shown
from quantcli.server.prompts import read_conversation
from quantcli.server.replies import JsonReply
from quantcli.server.service import Service
from quantcli.server.tools import read_tools
from quantcli.text.tokenizer import whole_characters


async def tokenize(request: Request) -> Response:
    """Return the tokens of a text; fields and defaults are llama-server's, or vLLM's."""
    service = cast("Service", request.app.state.service)
    fields = await read_fields(request, service.settings.limits)
    text, is_vllm = fields.text("content"), False
    if text is None:
        text, is_vllm = fields.text("prompt"), True
    if text is None:
        refuse("content is missing; give the text.", "content")
    name = "add_special_tokens" if is_vllm else "add_special"
    add_special = fields.flag(name, default=is_vllm)
    parse_special = fields.flag("parse_special", default=True)
    with_pieces = fields.flag("with_pieces")
    tokenizer = service.served.tokenizer
    content = whole_characters(text)

    def work() -> list[int]:
        return tokenizer.encode(content, add_special=add_special, parse_special=parse_special)

    ids = await attended(request, service.in_pool(work))
    tokens: list[object] = list(ids)
    if with_pieces:
        tokens = [{"id": token, "piece": tokenizer.token_text(token)} for token in ids]
    return JsonReply({"tokens": tokens, "count": len(ids), "max_model_len": service.served.context})


async def detokenize(request: Request) -> Response:
    """Return the text of tokens, control tokens spelled out."""
    service = cast("Service", request.app.state.service)
    fields = await read_fields(request, service.settings.limits)
    tokenizer = service.served.tokenizer
    ids: list[int] = []
    for token in fields.items("tokens", MAX_INT):
        is_id = isinstance(token, int) and not isinstance(token, bool)
        if not is_id or not 0 <= cast("int", token) < tokenizer.n_vocab:
            refuse(
                f"tokens has {shown(token)}; ids go from 0 to {tokenizer.n_vocab - 1}.", "tokens"
            )
        ids.append(cast("int", token))
    text = await attended(request, service.in_pool(lambda: tokenizer.decode(ids, special=True)))
    return JsonReply({"content": text, "prompt": text})


async def tokenizer_info(request: Request) -> Response:
    """Tell of the tokenizer what lm-eval asks vLLM for, so that it needs none of its own."""
    served = cast("Service", request.app.state.service).served
    tokenizer = served.tokenizer
    special = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    named = {
        name: None if token is None else tokenizer.token_text(token)
        for name, token in special.items()
    }
    return JsonReply(
        {
            "tokenizer_class": "quantcli",
            **named,
            "pad_token": named["eos_token"],
            "chat_template": served.source or None,
            "model_max_length": served.context,
        }
    )


async def apply_template(request: Request) -> Response:
    """Return the text that a conversation becomes before it is tokenized."""
    service = cast("Service", request.app.state.service)
    served, limits = service.served, service.settings.limits
    fields = await read_fields(request, limits)
    tools = read_tools(fields, limits, served.source, takes_tools=served.template_takes_tools)
    conversation = read_conversation(fields, limits, tools)
    text = await attended(request, service.in_pool(lambda: conversation.rendered(served)))
    return JsonReply({"prompt": text})
