"""How a request wants its tokens chosen: OpenAI's fields, and llama-server's names for the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quantcli.engine.request import GrammarSpec, SamplingParams
from quantcli.server.fields import MAX_INT, Fields, refuse, shown
from quantcli.server.schemas import closed
from quantcli.server.settings import Limits

# Field: (parameter, lowest, highest).
_NUMBERS: dict[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0.0, 100.0),
    "top_p": ("top_p", 0.0, 1.0),
    "min_p": ("min_p", 0.0, 1.0),
    "typical_p": ("typical_p", 0.0, 1.0),
    "repetition_penalty": ("repeat_penalty", 0.01, 100.0),
    "repeat_penalty": ("repeat_penalty", 0.01, 100.0),
    "presence_penalty": ("presence_penalty", -100.0, 100.0),
    "frequency_penalty": ("frequency_penalty", -100.0, 100.0),
}
_INTEGERS: dict[str, tuple[str, int, int]] = {
    "top_k": ("top_k", -1, MAX_INT),
    "repeat_last_n": ("repeat_last_n", -1, MAX_INT),
    "seed": ("seed", -1, 2**64 - 1),
    "min_tokens": ("min_tokens", 0, MAX_INT),
}
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")  # the first one given counts
_GRAMMARS = {"grammar": "gbnf", "regex": "regex", "lark": "lark"}
_MAX_BIAS = 100.0  # OpenAI's


def sampling_params(
    fields: Fields,
    limits: Limits,
    metadata: Mapping[str, object],
    *,
    max_tokens: int | None,
    n_logprobs: int | None = None,
    n_prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Return the sampling parameters: the request's, then the model file's, then the defaults.

    max_tokens   where the request names none

    Raises RequestError for a field that is wrong.
    """
    if fields.raw("lora"):
        refuse(
            "lora: the adapters and their scales are those that the server was started with, see "
            "/lora-adapters; leave it out.",
            "lora",
        )
    user: dict[str, object] = {}
    for name, (parameter, lowest, highest) in _NUMBERS.items():
        if (number := fields.number(name, lowest, highest)) is not None:
            user[parameter] = number
    for name, (parameter, least, most) in _INTEGERS.items():
        if (integer := fields.integer(name, least, most)) is not None:
            user[parameter] = integer
    length = _length(fields)
    user["max_tokens"] = max_tokens if length is None else length
    user["ignore_eos"] = fields.flag("ignore_eos")
    user["logit_bias"] = _biases(fields, limits)
    user["stop"] = _stops(fields, limits)
    user["stop_tokens"] = _stop_tokens(fields, limits)
    user["n_logprobs"] = n_logprobs
    user["n_prompt_logprobs"] = n_prompt_logprobs
    return SamplingParams.resolve(user, metadata)


def n_choices(fields: Fields, limits: Limits, n_prompts: int = 1) -> int:
    """Return `n`. Raises RequestError if prompts times `n` are too many, or for `best_of`."""
    n = fields.integer("n", 1, limits.n_choices) or 1
    best_of = fields.integer("best_of", 1, limits.n_choices)
    if best_of is not None and best_of != n:
        refuse("best_of is not supported, unless it equals n.", "best_of")
    if n * n_prompts > limits.n_choices:
        refuse(
            f"{n_prompts} prompts of {n} choices each are {n * n_prompts} answers; at most "
            f"{limits.n_choices} are allowed.",
            "n",
        )
    return n


def grammar_spec(fields: Fields, limits: Limits) -> GrammarSpec | None:
    """Return what the answer must match, None if nothing.

    Raises RequestError if it is malformed, too large, or given twice.
    """
    specs = [spec for spec in (_response_format(fields, limits),) if spec is not None]
    for name, kind in _GRAMMARS.items():
        text = fields.text(name, limits.schema_nbytes)
        if text:
            specs.append(GrammarSpec(kind, text))
    if (schema := fields.raw("json_schema")) is not None:
        specs.append(schema_spec(schema, limits, fields.where + "json_schema"))
    if len(specs) > 1:
        refuse("the answer's form is given twice; give one of response_format, grammar, regex.")
    return specs[0] if specs else None


def _response_format(fields: Fields, limits: Limits) -> GrammarSpec | None:
    wanted = fields.object("response_format")
    if wanted is None:
        return None
    kind = wanted.one_of("type", ("text", "json_object", "json_schema"), "text")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = wanted.raw("schema")  # llama-server's way
        if schema is not None:
            return schema_spec(schema, limits, "response_format.schema")
        return GrammarSpec("json_object")
    described = wanted.object("json_schema")
    if described is None:
        wanted.wrong("json_schema", "an object with name and schema")
    schema = described.raw("schema")
    if schema is None:
        return GrammarSpec("json_object")  # any JSON is what a schema that says nothing allows
    return schema_spec(schema, limits, "response_format.json_schema.schema")


def schema_spec(schema: object, limits: Limits, place: str) -> GrammarSpec:
    """Return the grammar of a JSON schema."""
    if not isinstance(schema, dict):
        refuse(f"{place} is {shown(schema)}; it should be a JSON schema, an object.", place)
    text = json.dumps(closed(schema))
    if len(text) > limits.schema_nbytes:
        refuse(
            f"{place} takes {len(text)} bytes; at most {limits.schema_nbytes} are allowed.", place
        )
    return GrammarSpec("json_schema", text)


def _length(fields: Fields) -> int | None:
    given = [fields.integer(name, -1) for name in _LENGTHS]
    return next((length for length in given if length is not None), None)


def _biases(fields: Fields, limits: Limits) -> dict[int, float] | None:
    biases = fields.object("logit_bias")
    if biases is None:
        return None
    if len(biases.values) > limits.n_biases:
        refuse(
            f"logit_bias has {len(biases.values)} entries; at most {limits.n_biases} are allowed.",
            "logit_bias",
        )
    result: dict[int, float] = {}
    for name in biases.values:
        if not (name.isascii() and name.isdecimal() and len(name) < 10):
            refuse(f"logit_bias: {shown(name)} is no token id.", "logit_bias")
        bias = biases.number(name, -_MAX_BIAS, _MAX_BIAS)
        if bias is not None:
            # OpenAI: -100 is a ban.
            result[int(name)] = bias if bias > -_MAX_BIAS else -float("inf")
    return result


def _stops(fields: Fields, limits: Limits) -> tuple[str, ...]:
    value = fields.raw("stop")
    stops = [value] if isinstance(value, str) else fields.items("stop", limits.n_stops)
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            refuse(f"stop has {shown(stop)}; it should be strings of a character or more.", "stop")
        if len(stop.encode("utf-8", "replace")) > limits.stop_nbytes:
            refuse(f"a stop string is longer than {limits.stop_nbytes} bytes.", "stop")
    return tuple(str(stop) for stop in stops)


def _stop_tokens(fields: Fields, limits: Limits) -> tuple[int, ...]:
    tokens = fields.items("stop_token_ids", limits.n_stops)
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= MAX_INT:
            refuse(f"stop_token_ids has {shown(token)}; it should be token ids.", "stop_token_ids")
    return tuple(token for token in tokens if isinstance(token, int))
