"""Chat templates for files that have none, by the names that llama.cpp has for them.

Most are of two sorts: turns that look alike but for the role's name, and turns with their own text
before and after each role's. Both are written here as that text, and made into Jinja programs.
"""

from __future__ import annotations

from collections.abc import Mapping

_TEXT = "m.content or ''"
_TRIMMED = "(m.content or '') | trim"


def _loop(body: str, prompt: str, start: str = "") -> str:
    """Return a program: start, the body for each message m, what asks for the answer.

    start   a Jinja expression
    prompt  plain text
    """
    ask = f"{{% if add_generation_prompt %}}{{{{ {prompt!r} }}}}{{% endif %}}" if prompt else ""
    before = f"{{{{ {start} }}}}" if start else ""
    return f"{before}{{% for m in messages %}}{body}{{% endfor %}}{ask}"


def _alike(before: str, after: str, prompt: str, *, trim: bool = False, start: str = "") -> str:
    """Return a program of turns that look alike; ROLE in `before` stands for the role."""
    head, role, tail = before.partition("ROLE")
    parts = (repr(head), "m.role" if role else "''", repr(tail))
    text = _TRIMMED if trim else _TEXT
    return _loop(
        f"{{{{ {' ~ '.join(parts)} ~ ({text}) ~ {after!r} }}}}",
        prompt,
        repr(start) if start else "",
    )


# Text before and after a message; a third item is true where the message's own text is trimmed.
_Turn = tuple[str, str] | tuple[str, str, bool]


def _by_role(turns: Mapping[str, _Turn], prompt: str = "", *, start: str = "") -> str:
    """Return a program with text of its own around each role; "" stands for all other roles.

    A role "first ROLE" counts for the first message alone. Messages of no known role are left out.
    """
    body, word = "", "if"
    for role, (before, after, *trim) in turns.items():
        first, name = role.startswith("first "), role.removeprefix("first ")
        condition = f"m.role == {name!r}" + (" and loop.first" if first else "")
        text = _TRIMMED if trim else _TEXT
        body += f"{{% {word} {condition} %}}" if role else "{% else %}" if body else ""
        body += f"{{{{ {before!r} ~ ({text}) ~ {after!r} }}}}"
        word = "elif"
    closing = "{% endif %}" if any(turns) else ""
    return _loop(body + closing, prompt, start)


def _instructed(
    again: str,
    system: tuple[str, str],
    closed: str,
    answer: str = "",
    *,
    begins: str = "",
    trims: str = "",
) -> str:
    """Return a program of instructions, each open until the assistant answers.

    again    opens an instruction
    system   text around a system message, which is within the first instruction
    closed   follows the user's text
    answer   comes before the assistant's
    begins   opens the first instruction, whoever speaks first, in place of `again`
    trims    whose texts are trimmed: all, assistant or nobody's
    """
    text = _TRIMMED if trims == "all" else _TEXT
    said = _TRIMMED if trims else _TEXT
    is_open = "true" if begins else "false"
    return (
        f"{{% set ns = namespace(open={is_open}) %}}{{{{ {begins!r} }}}}"
        "{% for m in messages %}{% if not ns.open %}"
        f"{{{{ {again!r} }}}}{{% set ns.open = true %}}{{% endif %}}"
        f"{{% if m.role == 'system' %}}{{{{ {system[0]!r} ~ ({text}) ~ {system[1]!r} }}}}"
        f"{{% elif m.role == 'user' %}}{{{{ ({text}) ~ {closed!r} }}}}"
        f"{{% else %}}{{{{ {answer!r} ~ ({said}) ~ '</s>' }}}}{{% set ns.open = false %}}"
        "{% endif %}{% endfor %}"
    )


def _with_users_system(turn: str, prompt: str, *, trim: bool = False) -> str:
    """Return a program in which system messages wait for the user's: `turn` prints ns.system."""
    text = _TRIMMED if trim else _TEXT
    return (
        "{% set ns = namespace(system='') %}{% for m in messages %}"
        f"{{% set text = {text} %}}{{% if m.role == 'system' %}}"
        "{% set ns.system = ns.system ~ text %}"
        f"{{% else %}}{turn}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {prompt!r} }}}}{{% endif %}}"
    )


_HELD = "(ns.system ~ '\\n\\n' if ns.system else '')"
_GEMMA = (
    "{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' }}"
    f"{{% if m.role != 'assistant' %}}{{{{ {_HELD} }}}}{{% set ns.system = '' %}}{{% endif %}}"
    "{{ text ~ '<end_of_turn>\\n' }}"
)
_ORION = (
    f"{{% if m.role == 'user' %}}{{{{ 'Human: ' ~ {_HELD} ~ text ~ '\\n\\nAssistant: </s>' }}}}"
    "{% set ns.system = '' %}{% else %}{{ text ~ '</s>' }}{% endif %}"
)
_MONARCH = f"{{{{ ('' if loop.first else '<s>') ~ m.role ~ '\\n' ~ ({_TEXT}) ~ '</s>\\n' }}}}"
_OPENCHAT = (
    f"{{% set text = {_TEXT} %}}{{% if m.role == 'system' %}}{{{{ text }}}}{{% else %}}"
    "{{ 'GPT4 Correct ' ~ m.role[:1] | upper ~ m.role[1:] ~ ': ' ~ text }}{% endif %}"
    "{{ '<|end_of_turn|>' }}"
)
_RWKV_ROLES = {
    "system": ("System: ", "\n\n", True),
    "user": ("User: ", "\n\n", True),
    "assistant": ("Assistant: ", "\n\n", True),
}
_RWKV = (
    _by_role(_RWKV_ROLES)
    + "{% if messages and messages[-1].role == 'user' %}{{ 'Assistant:' }}{% endif %}"
)


def _granite(tool_caller: str) -> str:
    """Return Granite's program; calls of tools have a role of their own, shown as `tool_caller`."""
    role = f"({tool_caller!r} if m.role == 'assistant_tool_call' else m.role)"
    mark = "('<|tool_call|>' if m.role == 'assistant_tool_call' else '')"
    return _loop(
        f"{{{{ '<|start_of_role|>' ~ {role} ~ '<|end_of_role|>' ~ {mark} ~ ({_TEXT}) }}}}"
        "{{ '<|end_of_text|>\\n' }}",
        "<|start_of_role|>assistant<|end_of_role|>",
    )


def _bailing(end: str = "", thinks: str = "", start: str = "") -> str:
    """Return the program of Ling and Ring, whose roles are in capitals."""
    role = "('HUMAN' if m.role == 'user' else m.role | upper)"
    return _loop(
        f"{{{{ '<role>' ~ {role} ~ '</role>' ~ ({_TEXT}) ~ {end!r} }}}}",
        "<role>ASSISTANT</role>" + thinks,
        start,
    )


_LING2 = "<role>SYSTEM</role>detailed thinking off<|role_end|>"
_UNLESS_SYSTEM = "('' if messages and messages[0].role == 'system' else {!r})"
_GPT_OSS = _loop(
    f"{{{{ '<|start|>' ~ m.role ~ '<|message|>' ~ ({_TEXT}) }}}}"
    "{{ '<|return|>' if m.role == 'assistant' else '<|end|>' }}",
    "<|start|>assistant",
)
_SEED = _loop(
    f"{{{{ '<seed:bos>' ~ m.role ~ '\\n' }}}}{{% set text = {_TEXT} %}}"
    "{{ (text | trim if m.role == 'assistant' else text) ~ '<seed:eos>' }}",
    "<seed:bos>assistant\n",
)
_DEEPSEEK_END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
_HUNYUAN_HOLDER = "<\uff5chy_place\u2581holder\u2581no\u2581{}\uff5c>"
_USER_HY, _ASSISTANT_HY = "<\uff5chy_User\uff5c>", "<\uff5chy_Assistant\uff5c>"
_END_OF_TURN = "<|END_OF_TURN_TOKEN|>"
_TURN_OF = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>"
_PANGU = {
    role: (f"[unused9]{name}\uff1a", "[unused10]")
    for role, name in (
        ("system", "\u7cfb\u7edf"),
        ("user", "\u7528\u6237"),
        ("assistant", "\u52a9\u624b"),
        ("tool", "\u5de5\u5177"),
        ("function", "\u65b9\u6cd5"),
    )
}
_EXAONE: dict[str, _Turn] = {
    "system": ("[|system|]", "[|endofturn|]\n", True),
    "user": ("[|user|]", "\n", True),
    "assistant": ("[|assistant|]", "[|endofturn|]\n", True),
}
_KIMI_ROLES = {"system": "system", "user": "user", "assistant": "assistant", "tool": "system"}
_VICUNA: dict[str, _Turn] = {"user": ("USER: ", "\n"), "assistant": ("ASSISTANT: ", "</s>\n")}

# Source of the names, and of what each is for: llama.cpp's llama-chat.cpp.
TEMPLATES: dict[str, str] = {
    "bailing": _bailing(),
    "bailing-think": _bailing(thinks="<think>"),
    "bailing2": _bailing("<|role_end|>", start=_UNLESS_SYSTEM.format(_LING2)),
    "chatglm3": _alike("<|ROLE|>\n ", "", "<|assistant|>", start="[gMASK]sop"),
    "chatglm4": _alike("<|ROLE|>\n", "", "<|assistant|>\n", start="[gMASK]<sop>"),
    "chatml": _alike("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": _by_role(
        {
            "system": (_TURN_OF.format("SYSTEM"), _END_OF_TURN, True),
            "user": (_TURN_OF.format("USER"), _END_OF_TURN, True),
            "assistant": (_TURN_OF.format("CHATBOT"), _END_OF_TURN, True),
        },
        _TURN_OF.format("CHATBOT"),
    ),
    "deepseek": _by_role(
        {
            "system": ("", ""),
            "user": ("### Instruction:\n", "\n"),
            "assistant": ("### Response:\n", "\n<|EOT|>\n"),
        },
        "### Response:\n",
    ),
    "deepseek-ocr": _alike("", "", ""),
    "deepseek2": _by_role(
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "\n\n"),
            "assistant": ("Assistant: ", _DEEPSEEK_END),
        },
        "Assistant:",
    ),
    "deepseek3": _by_role(
        {
            "system": ("", "\n\n"),
            "user": ("<\uff5cUser\uff5c>", ""),
            "assistant": ("<\uff5cAssistant\uff5c>", _DEEPSEEK_END),
        },
        "<\uff5cAssistant\uff5c>",
    ),
    "exaone-moe": _by_role(
        {
            role: (f"<|{role}|>\n", "<|endofturn|>\n", True)
            for role in ("system", "user", "assistant", "tool")
        },
        "<|assistant|>\n",
    ),
    "exaone3": _by_role(_EXAONE, "[|assistant|]"),
    "exaone4": _by_role(_EXAONE | {"tool": ("[|tool|]", "[|endofturn|]\n", True)}, "[|assistant|]"),
    "falcon3": _alike("<|ROLE|>\n", "\n", "<|assistant|>\n"),
    "gemma": _with_users_system(_GEMMA, "<start_of_turn>model\n", trim=True),
    "gigachat": _by_role(
        {
            "first system": ("", "<|message_sep|>"),
            "user": (
                "user<|role_sep|>",
                "<|message_sep|>available functions<|role_sep|>[]<|message_sep|>",
            ),
            "assistant": ("assistant<|role_sep|>", "<|message_sep|>"),
        },
        "assistant<|role_sep|>",
        start="'<s>'",
    ),
    "glmedge": _alike("<|ROLE|>\n", "", "<|assistant|>"),
    "gpt-oss": _GPT_OSS,
    "granite": _granite("assistant_tool_call"),
    "granite-4.0": _granite("assistant"),
    "granite-4.1": _granite("assistant"),
    "grok-2": _by_role(
        {
            "system": ("System: ", "<|separator|>\n\n", True),
            "user": ("Human: ", "<|separator|>\n\n", True),
            "assistant": ("Assistant: ", "<|separator|>\n\n"),
        },
        "Assistant:",
    ),
    "hunyuan-dense": _by_role(
        {
            "first system": ("", _HUNYUAN_HOLDER.format(3)),
            "assistant": (_ASSISTANT_HY, _HUNYUAN_HOLDER.format(2)),
            "user": (_USER_HY, _ASSISTANT_HY),
        }
    ),
    "hunyuan-moe": _by_role(
        {
            "system": ("<|startoftext|>", "<|extra_4|>"),
            "assistant": ("", "<|eos|>"),
            "": ("<|startoftext|>", "<|extra_0|>"),
        }
    ),
    "hunyuan-vl": _by_role(
        {
            "first system": ("", _HUNYUAN_HOLDER.format(3)),
            "user": ("", _USER_HY),
            "assistant": ("", _ASSISTANT_HY),
        },
        start=repr("<\uff5chy_begin\u2581of\u2581sentence\uff5c>"),
    ),
    "kimi-k2": _by_role(
        {
            role: (f"<|im_{mark}|>{role}<|im_middle|>", "<|im_end|>")
            for role, mark in _KIMI_ROLES.items()
        }
        | {"": ("", "<|im_end|>")},
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    "llama2": _instructed("[INST] ", ("", "\n"), " [/INST]", begins="[INST] "),
    "llama2-sys": _instructed(
        "[INST] ", ("<<SYS>>\n", "\n<</SYS>>\n\n"), " [/INST]", begins="[INST] "
    ),
    "llama2-sys-bos": _instructed(
        "<s>[INST] ", ("<<SYS>>\n", "\n<</SYS>>\n\n"), " [/INST]", begins="[INST] "
    ),
    "llama2-sys-strip": _instructed(
        "[INST] ", ("<<SYS>>\n", "\n<</SYS>>\n\n"), " [/INST]", begins="[INST] ", trims="all"
    ),
    "llama3": _alike(
        "<|start_header_id|>ROLE<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        trim=True,
    ),
    "llama4": _alike(
        "<|header_start|>ROLE<|header_end|>\n\n",
        "<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
        trim=True,
    ),
    "megrez": _alike(
        "<|role_start|>ROLE<|role_end|>", "<|turn_end|>", "<|role_start|>assistant<|role_end|>"
    ),
    "minicpm": _by_role({"user": ("<\u7528\u6237>", "<AI>", True), "": ("", "", True)}),
    "mistral-v1": _instructed(" [INST] ", ("", "\n\n"), " [/INST]", " "),
    "mistral-v3": _instructed("[INST] ", ("", "\n\n"), "[/INST]", " ", trims="assistant"),
    "mistral-v3-tekken": _instructed("[INST]", ("", "\n\n"), "[/INST]"),
    "mistral-v7": _by_role(
        {
            "system": ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"),
            "user": ("[INST] ", "[/INST]"),
            "": (" ", "</s>"),
        }
    ),
    "mistral-v7-tekken": _by_role(
        {
            "system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
            "user": ("[INST]", "[/INST]"),
            "": ("", "</s>"),
        }
    ),
    "monarch": _loop(_MONARCH, "<s>assistant\n"),
    "openchat": _loop(_OPENCHAT, "GPT4 Correct Assistant:"),
    "orion": _with_users_system(_ORION, ""),
    "pangu-embedded": _by_role(
        _PANGU,
        _PANGU["assistant"][0],
        start=_UNLESS_SYSTEM.format("".join(_PANGU["system"])),
    ),
    "phi3": _alike("<|ROLE|>\n", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _alike("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "rwkv-world": _RWKV,
    "seed_oss": _SEED,
    "smolvlm": _by_role(
        {
            "system": ("", "\n\n"),
            "user": ("User: ", "<end_of_utterance>\n"),
            "": ("Assistant: ", "<end_of_utterance>\n"),
        },
        "Assistant:",
        start="'<|im_start|>'",
    ),
    "solar-open": _alike("<|begin|>ROLE<|content|>", "<|end|>", "<|begin|>assistant"),
    "vicuna": _by_role({"system": ("", "\n\n")} | _VICUNA, "ASSISTANT:"),
    "vicuna-orca": _by_role({"system": ("SYSTEM: ", "\n")} | _VICUNA, "ASSISTANT:"),
    "yandex": _by_role(
        {
            "user": (
                " \u041f\u043e\u043b\u044c\u0437\u043e\u0432\u0430\u0442\u0435\u043b\u044c: ",
                "\n\n",
            ),
            "assistant": (" \u0410\u0441\u0441\u0438\u0441\u0442\u0435\u043d\u0442: ", "\n\n"),
        },
        " \u0410\u0441\u0441\u0438\u0441\u0442\u0435\u043d\u0442:[SEP]",
    ),
    "zephyr": _alike("<|ROLE|>\n", "<|endoftext|>\n", "<|assistant|>\n"),
}
