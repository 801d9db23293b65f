#!/usr/bin/env python3
"""Write tests/goldens/chat_builtin.json: conversations in llama.cpp's built-in chat templates.

Needs llama-cpp-python beside quantcli.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "text")]

import llama_cpp  # noqa: E402
from conversations import CONVERSATIONS  # noqa: E402

GOLDEN = ROOT / "tests" / "goldens" / "chat_builtin.json"


def names() -> list[str]:
    """Return the names of the templates that llama.cpp has."""
    most = 256
    found = (ctypes.c_char_p * most)()
    n = llama_cpp.llama_chat_builtin_templates(found, most)
    return sorted(found[i].decode() for i in range(n))


def applied(name: str, conversation: list[tuple[str, str]], *, asks: bool) -> str:
    """Return a conversation in a template."""
    messages = (llama_cpp.llama_chat_message * len(conversation))(
        *((role.encode(), content.encode()) for role, content in conversation)
    )
    text = ctypes.create_string_buffer(1 << 14)
    n = llama_cpp.llama_chat_apply_template(
        name.encode(), messages, len(messages), asks, text, len(text)
    )
    assert 0 <= n < len(text), (name, n)
    return text.raw[:n].decode()


def main() -> None:
    """Ask for every name, with the prompt for an answer and without it."""
    content = {
        "tool": "llama.cpp",
        "version": f"llama-cpp-python {llama_cpp.__version__}",
        "templates": {
            name: {
                key: [applied(name, messages, asks=asks) for asks in (True, False)]
                for key, messages in CONVERSATIONS.items()
            }
            for name in names()
        },
    }
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{GOLDEN.relative_to(ROOT)}: {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
