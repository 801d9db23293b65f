"""The server's routes, and the border at which every error becomes a response."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quantcli.errors import QuantcliError, RequestError
from quantcli.server import metrics
from quantcli.server.chat import chat_completions
from quantcli.server.completions import completions
from quantcli.server.embeddings import embeddings
from quantcli.server.guard import Guard
from quantcli.server.page import page
from quantcli.server.replies import JsonReply, error_reply
from quantcli.server.service import Service
from quantcli.server.text_endpoints import (
    apply_template,
    detokenize,
    tokenize,
    tokenizer_info,
)

_GONE = 499  # nginx's status for a client that left; only the log sees it


def create_app(service: Service) -> ASGIApp:
    """Return the server as an ASGI app; its lifespan attaches the runner to the loop."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.attach()
        yield
        service.close()

    routes = [Route("/", page, methods=["GET"]), Route("/metrics", show_metrics, methods=["GET"])]
    for prefix in ("", "/v1"):
        routes += [
            Route(prefix + "/health", health, methods=["GET"]),
            Route(prefix + "/models", models, methods=["GET"]),
            Route(prefix + "/models/{name:path}", one_model, methods=["GET"]),
            Route(prefix + "/lora-adapters", lora_adapters, methods=["GET"]),
            Route(prefix + "/chat/completions", chat_completions, methods=["POST"]),
            Route(prefix + "/completions", completions, methods=["POST"]),
            Route(prefix + "/embeddings", embeddings, methods=["POST"]),
            Route(prefix + "/tokenize", tokenize, methods=["POST"]),
            Route(prefix + "/detokenize", detokenize, methods=["POST"]),
            Route(prefix + "/tokenizer_info", tokenizer_info, methods=["GET"]),
            Route(prefix + "/apply-template", apply_template, methods=["POST"]),
        ]
    handlers = {HTTPException: _refused, QuantcliError: _refused, Exception: _refused}
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.service = service
    return Border(Guard(app, service.settings), service)


async def health(request: Request) -> Response:
    """Tell whether the engine works."""
    status, body = cast("Service", request.app.state.service).health()
    return JsonReply(body, status)


async def models(request: Request) -> Response:
    """List the model."""
    served = cast("Service", request.app.state.service).served
    return JsonReply({"object": "list", "data": [served.described()]})


async def one_model(request: Request) -> Response:
    """Describe the model, if that is the one asked for."""
    served = cast("Service", request.app.state.service).served
    name = request.path_params["name"]
    if name != served.name:
        raise RequestError(
            f"there is no model {name[:80]!r} here, only {served.name}.",
            status=404,
            param="model",
            code="model_not_found",
        )
    return JsonReply(served.described())


async def lora_adapters(request: Request) -> Response:
    """List the adapters that the model wears, as llama-server does."""
    return JsonReply(list(cast("Service", request.app.state.service).served.adapters))


async def show_metrics(request: Request) -> Response:
    """Tell what the server has done, in Prometheus' format."""
    service = cast("Service", request.app.state.service)
    text = service.metrics.text(service.runner.status())
    return PlainTextResponse(text, media_type=metrics.CONTENT_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    """Return the response of an error of the request's."""
    if isinstance(error, HTTPException):
        what = f"{request.method} {request.url.path[:80]}"
        detail = {404: "there is no such route", 405: "not with this method"}.get(
            error.status_code, error.detail
        )
        refused = RequestError(f"{what}: {detail}.", status=error.status_code, code="not_found")
        reply = error_reply(refused, request.state.request_id)
        reply.headers.update(error.headers or {})
        return reply
    return error_reply(error, request.state.request_id)


class Border:
    """Around everything: numbers requests, logs them, and turns our own bugs into a response."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        """Stand around an app."""
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whatever happens."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        start = time.perf_counter()
        state = scope.setdefault("state", {})
        state["request_id"] = "req-" + secrets.token_hex(8)
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except (ClientDisconnect, OSError):
            status = _GONE
        except Exception as error:  # noqa: BLE001 - this is the border
            self._service.report(error)
            if not status:
                await error_reply(error, state["request_id"])(scope, receive, watched)
        self._note(scope, status or _GONE, time.perf_counter() - start)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log a request. Never what it says."""
        self._service.metrics.take_response(status)
        state = scope["state"]
        entry: dict[str, object] = {
            "request_id": state["request_id"],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 6),
        }
        if answer := state.get("answer"):
            entry.update(answer.noted())
        self._service.log(entry)
