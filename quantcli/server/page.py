"""The chat page: one static file, which may load nothing from anywhere and run nothing else."""

from __future__ import annotations

import base64
import re
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response


async def page(request: Request) -> Response:
    """Return the chat page."""
    html, policy = _loaded()
    return HTMLResponse(
        html,
        headers={
            "content-security-policy": policy,
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        },
    )


@cache
def _loaded() -> tuple[str, str]:
    """Return the page and its content security policy, which names its script and style by hash."""
    html = (files("quantcli.server") / "static" / "index.html").read_text(encoding="utf-8")
    hashes = {}
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests = [base64.b64encode(sha256(text.encode()).digest()).decode() for text in found]
        hashes[tag] = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return html, policy
