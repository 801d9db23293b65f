"""The body of a request: bounded in size, time and depth, and turned into JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Never

from starlette.requests import ClientDisconnect, Request

from quantcli.errors import RequestError
from quantcli.server.fields import Fields, refuse
from quantcli.server.settings import Limits

# A client that sends too much reads the answer only after it has sent all; up to here it may.
_MOST_DISCARDED = 64 << 20
_DISCARD_S = 10.0


async def read_fields(request: Request, limits: Limits) -> Fields:
    """Return the object that is a request's body.

    Raises RequestError for a body that is no JSON object, too large or too deep.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        # A page of another origin can send other types without asking first.
        raise RequestError(
            f"the body's type is {kind or 'not given'}; send Content-Type: application/json.",
            status=415,
        )
    value = parsed(await _read(request, limits), limits.json_depth)
    if not isinstance(value, dict):
        refuse("the body is no JSON object; it should be {...}.")
    return Fields(value)


async def _read(request: Request, limits: Limits) -> bytes:
    """Return the bytes of a body."""
    declared = request.headers.get("content-length", "")
    most = limits.body_nbytes
    if declared.isdecimal() and len(declared) < 20 and int(declared) > most:
        await _discard(request, int(declared))
        _too_large(most)
    pieces: list[bytes] = []
    n = 0
    stream = request.stream()
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream, None), limits.body_s)
        except TimeoutError:
            raise RequestError(
                f"nothing of the body came for {limits.body_s:g} s.", status=408
            ) from None
        if piece is None:
            return b"".join(pieces)
        n += len(piece)
        if n > most:
            pieces.clear()
            await _discard(request, n)
            _too_large(most)
        pieces.append(piece)


async def _discard(request: Request, n_nbytes: int) -> None:
    """Read the rest of a body to nowhere, so that the client gets to read the answer."""
    if n_nbytes > _MOST_DISCARDED:
        return
    n = 0
    try:
        async with asyncio.timeout(_DISCARD_S):
            while n < _MOST_DISCARDED:
                message = await request.receive()
                n += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
    except (TimeoutError, ClientDisconnect):
        return


def _too_large(most: int) -> Never:
    raise RequestError(f"the body is larger than {most} bytes.", status=413)


def parsed(data: bytes, most_levels: int) -> object:
    """Return the value of a JSON text. Raises RequestError for one that is malformed or deep."""
    try:
        value: object = json.loads(data, parse_constant=_not_json)
    except RecursionError:
        _too_deep(most_levels)
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        refuse(f"the body is not valid JSON: {' '.join(str(error).split())[:200]}.")
    check_depth(value, most_levels)
    return value


def check_depth(value: object, most_levels: int) -> None:
    """Raise RequestError for arrays and objects in more levels than allowed."""
    level: list[object] = [value] if isinstance(value, dict | list) else []
    for _ in range(most_levels):
        if not level:
            return
        below: list[object] = []
        for item in level:
            children = item.values() if isinstance(item, dict) else item
            below += [c for c in children if isinstance(c, dict | list)]  # type: ignore[attr-defined]
        level = below
    if level:
        _too_deep(most_levels)


def _too_deep(most_levels: int) -> Never:
    refuse(f"the body is nested too deeply; at most {most_levels} levels are allowed.")


def _not_json(name: str) -> Never:
    raise ValueError(f"{name} is no JSON number")
