"""JSON schemas of OpenAI's responses, written from its API reference: what a client may rely on."""

from __future__ import annotations

Schema = dict[str, object]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
LOGPROB: Schema = {"type": "number", "maximum": 1e-6}


def record(required: Schema, optional: Schema | None = None) -> Schema:
    """Return the schema of an object."""
    properties = required | (optional or {})
    return {"type": "object", "required": list(required), "properties": properties}


def many(item: Schema, **more: object) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, **more}


def optional(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


FINISH: Schema = {"enum": ["stop", "length", "tool_calls", "content_filter"]}
USAGE = record(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
    {"prompt_tokens_details": record({"cached_tokens": COUNT})},
)
_ENTRY: Schema = {
    "token": TEXT,
    "logprob": LOGPROB,
    "bytes": optional(many({"type": "integer", "minimum": 0, "maximum": 255})),
}
LOGPROBS = record(
    {"content": optional(many(record({**_ENTRY, "top_logprobs": many(record(_ENTRY))})))}
)
CALL = record(
    {
        "id": TEXT,
        "type": {"const": "function"},
        "function": record({"name": TEXT, "arguments": TEXT}),
    }
)
CHAT = record(
    {
        "id": TEXT,
        "object": {"const": "chat.completion"},
        "created": COUNT,
        "model": TEXT,
        "choices": many(
            record(
                {
                    "index": COUNT,
                    "message": record(
                        {
                            "role": {"const": "assistant"},
                            "content": optional(TEXT),
                            "refusal": optional(TEXT),
                        },
                        {"tool_calls": many(CALL, minItems=1)},
                    ),
                    "logprobs": optional(LOGPROBS),
                    "finish_reason": FINISH,
                }
            ),
            minItems=1,
        ),
        "usage": USAGE,
    }
)
CALL_DELTA = record(
    {"index": COUNT},
    {
        "id": TEXT,
        "type": {"const": "function"},
        "function": record({}, {"name": TEXT, "arguments": TEXT}),
    },
)
CHAT_CHUNK = record(
    {
        "id": TEXT,
        "object": {"const": "chat.completion.chunk"},
        "created": COUNT,
        "model": TEXT,
        "choices": many(
            record(
                {
                    "index": COUNT,
                    "delta": record(
                        {},
                        {
                            "role": {"const": "assistant"},
                            "content": optional(TEXT),
                            "tool_calls": many(CALL_DELTA, minItems=1),
                        },
                    ),
                    "finish_reason": optional(FINISH),
                },
                {"logprobs": optional(LOGPROBS)},
            )
        ),
    },
    {"usage": optional(USAGE)},
)
LEGACY_LOGPROBS = record(
    {
        "tokens": many(TEXT),
        "token_logprobs": many(optional(LOGPROB)),
        "top_logprobs": many(optional({"type": "object", "additionalProperties": LOGPROB})),
        "text_offset": many(COUNT),
    }
)
COMPLETION = record(
    {
        "id": TEXT,
        "object": {"const": "text_completion"},
        "created": COUNT,
        "model": TEXT,
        "choices": many(
            record(
                {
                    "index": COUNT,
                    "text": TEXT,
                    "logprobs": optional(LEGACY_LOGPROBS),
                    "finish_reason": optional(FINISH),
                }
            )
        ),
    },
    {"usage": USAGE},
)
MODELS = record(
    {
        "object": {"const": "list"},
        "data": many(
            record({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT})
        ),
    }
)
EMBEDDINGS = record(
    {
        "object": {"const": "list"},
        "model": TEXT,
        "data": many(
            record(
                {
                    "object": {"const": "embedding"},
                    "index": COUNT,
                    "embedding": {"anyOf": [many({"type": "number"}), TEXT]},
                }
            )
        ),
        "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)
