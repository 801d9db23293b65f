"""Conversations that built-in templates are compared over, as pairs of role and content."""

from __future__ import annotations

CONVERSATIONS: dict[str, list[tuple[str, str]]] = {
    "user": [("user", "Hello")],
    "system": [("system", "Be kind."), ("user", "Hello")],
    "turns": [
        ("system", "Be kind."),
        ("user", "Hello"),
        ("assistant", "Hi there."),
        ("user", "How are you?"),
        ("assistant", "Fine."),
        ("user", "Good."),
    ],
    "no_system": [("user", "Hello"), ("assistant", "Hi there."), ("user", "And you?")],
    "spaces": [
        ("system", "  Be kind. \n"),
        ("user", " Hello \n\n"),
        ("assistant", "\tHi  "),
        ("user", " \n"),
    ],
    "empty": [("system", ""), ("user", ""), ("assistant", ""), ("user", "x")],
    "answered": [("user", "1 + 1?"), ("assistant", "2")],
    "other_text": [("user", "{{ 7 * 7 }} 'a' \"b\" \\n \u4f60\u597d \U0001f44b {% x %}")],
    "system_late": [("user", "Hello"), ("system", "Now be brief."), ("user", "Go on")],
}
