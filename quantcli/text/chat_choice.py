"""Which chat template a conversation gets: the file's, one that is asked for, or a guess."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quantcli.errors import UnknownName
from quantcli.text.chat import KEY, ChatTemplate, spellings
from quantcli.text.chat_builtin import TEMPLATES
from quantcli.text.vocabulary import PREFIX, Metadata

FALLBACK = "chatml"
# A template, and control tokens that no other's models have together; the first that fits counts.
_TELLTALE = (
    ("llama3", "<|start_header_id|> <|end_header_id|> <|eot_id|>"),
    ("llama4", "<|header_start|> <|header_end|> <|eot|>"),
    ("kimi-k2", "<|im_user|> <|im_assistant|> <|im_middle|>"),
    ("phi4", "<|im_start|> <|im_sep|> <|im_end|>"),
    ("smolvlm", "<|im_start|> <end_of_utterance>"),
    ("chatml", "<|im_start|> <|im_end|>"),
    ("gemma", "<start_of_turn> <end_of_turn>"),
    ("chatglm4", "[gMASK] <sop> <|user|> <|assistant|>"),
    ("phi3", "<|user|> <|assistant|> <|end|>"),
    ("exaone-moe", "<|user|> <|assistant|> <|endofturn|>"),
    ("gpt-oss", "<|start|> <|message|> <|channel|>"),
    ("solar-open", "<|begin|> <|content|> <|end|>"),
    ("command-r", "<|START_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|>"),
    ("granite", "<|start_of_role|> <|end_of_role|>"),
    ("deepseek3", "<\uff5cUser\uff5c> <\uff5cAssistant\uff5c>"),
    ("exaone4", "[|user|] [|assistant|] [|endofturn|]"),
    ("hunyuan-dense", "<\uff5chy_User\uff5c> <\uff5chy_Assistant\uff5c>"),
    ("seed_oss", "<seed:bos> <seed:eos>"),
    ("megrez", "<|role_start|> <|role_end|> <|turn_end|>"),
    ("bailing2", "<role> </role> <|role_end|>"),
    ("gigachat", "<|role_sep|> <|message_sep|>"),
    ("mistral-v7", "[INST] [/INST] [SYSTEM_PROMPT]"),
    ("mistral-v3", "[INST] [/INST]"),
)


def named(metadata: Metadata, name: str, defaults: Mapping[str, object]) -> ChatTemplate:
    """Return the template of a name: the file's own, or a built-in one.

    defaults   further names for the template

    Raises UnknownName, which lists both.
    """
    own = metadata.get(f"{KEY}.{name}", metadata.get(KEY) if name == "default" else None)
    source = own if isinstance(own, str) else TEMPLATES.get(name)
    if source is None:
        found = [key.removeprefix(f"{KEY}.") for key in metadata if key.startswith(f"{KEY}.")]
        raise UnknownName("chat template", name, [*found, *TEMPLATES])
    return ChatTemplate(source, spellings(metadata), defaults=defaults)


def guessed(metadata: Metadata, control_texts: Collection[str]) -> str | None:
    """Return the built-in template that a vocabulary's control tokens tell of, None if none."""
    known = set(control_texts)
    for name, tokens in _TELLTALE:
        if known.issuperset(tokens.split()):
            is_tekken = name.startswith("mistral") and metadata.get(PREFIX + "model") == "gpt2"
            return f"{name}-tekken" if is_tekken else name
    return None


def instead(
    metadata: Metadata, control_texts: Collection[str], defaults: Mapping[str, object]
) -> tuple[ChatTemplate, str]:
    """Return a template for a file that has none, and one sentence about the choice."""
    name = guessed(metadata, control_texts)
    why = "its control tokens are of that"
    if name is None:
        name, why = FALLBACK, "its control tokens tell of none, so that answers may be poor"
    note = f"the file has no chat template; {name} is used: {why}. --chat-template names another."
    return named(metadata, name, defaults), note
