"""quantcli serve: an OpenAI-compatible server with a chat page, on this machine."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import (
    CacheKind,
    LoadOptions,
    ModelArgument,
    ModelOptions,
    OutputOptions,
    expand,
)
from quantcli.cli.speculation import SpeculationOptions
from quantcli.cli.templating import TemplateOptions

if TYPE_CHECKING:
    from quantcli.engine.options import EngineOptions
    from quantcli.server.settings import Settings


@dataclass(frozen=True, slots=True)
class ServeLoadOptions(LoadOptions):
    """How the model is loaded: pages let answers share memory."""

    cache: CacheKind = "paged"


@dataclass(frozen=True, slots=True)
class ServeEngineOptions(SpeculationOptions):
    """How answers share the engine."""

    prefix_caching: Annotated[
        bool,
        Option(
            "--prefix-caching/--no-prefix-caching",
            help="Keep prompts in the cache for others that begin the same.",
        ),
    ] = True
    target_itl: Annotated[
        float,
        Option(
            "--target-itl",
            min=1,
            max=60_000,
            metavar="MS",
            help="Inter-token latency that reading others' prompts should not exceed, in ms.",
        ),
    ] = 200.0
    overcommit: Annotated[
        float,
        Option(
            "--overcommit",
            min=1,
            max=100,
            metavar="X",
            help="Times the cache to promise to answers. Above 1 more run at once; some may be "
            "computed again.",
        ),
    ] = 1.0

    def engine_options(self, max_jobs: int | None = None) -> "EngineOptions":
        """Return the engine's options."""
        return replace(
            super(ServeEngineOptions, self).engine_options(max_jobs),
            prefix_caching=self.prefix_caching,
            target_s=self.target_itl / 1000,
            overcommit=self.overcommit,
        )


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where the server listens, and whom it answers."""

    host: Annotated[str, Option("--host", metavar="ADDRESS", help="Address to listen at.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Option("--port", min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")
    ] = 8080
    parallel: Annotated[
        int,
        Option(
            "-np",
            "--parallel",
            min=1,
            max=256,
            metavar="N",
            help="Answers computed at once; more requests wait.",
        ),
    ] = 8
    max_waiting: Annotated[
        int,
        Option(
            "--max-waiting",
            min=0,
            max=100_000,
            metavar="N",
            help="Requests that may wait; beyond them the answer is 429.",
        ),
    ] = 64
    alias: Annotated[
        str | None,
        Option("-a", "--alias", metavar="NAME", help="The model's name in answers; else MODEL's."),
    ] = None
    api_key_file: Annotated[
        str | None,
        Option(
            "--api-key-file",
            metavar="FILE",
            help="Demand one of the API keys in a file, one a line; or set QUANTCLI_API_KEY.",
            show_default=False,
        ),
    ] = None
    no_auth: Annotated[
        bool, Option("--no-auth", help="Let other machines in without an API key.")
    ] = False
    allowed_host: Annotated[
        list[str] | None,
        Option(
            "--allowed-host",
            metavar="NAME",
            help="A further name by which clients call this server. May be repeated.",
            show_default=False,
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        Option(
            "--cors-origin",
            metavar="ORIGIN",
            help="Let web pages of an origin, such as https://example.com, in. May be repeated.",
            show_default=False,
        ),
    ] = None
    grace: Annotated[
        float,
        Option(
            "--grace",
            min=0,
            max=3600,
            metavar="S",
            help="Seconds for answers under way to end after Ctrl-C or SIGTERM.",
        ),
    ] = 10.0
    log_json: Annotated[
        bool, Option("--log-json", help="Log each request as a line of JSON on standard error.")
    ] = False

    def settings(self, *, quiet: bool) -> "Settings":
        """Return the server's settings. Raises UsageError for a server that is open by mistake."""
        from quantcli.cli.serve_log import logger
        from quantcli.server.settings import Limits, Settings

        return Settings(
            host=self.host,
            port=self.port,
            api_keys=_api_keys(self.api_key_file),
            is_open=self.no_auth,
            allowed_hosts=tuple(self.allowed_host or ()),
            cors_origins=tuple(self.cors_origin or ()),
            grace_s=self.grace,
            limits=Limits(n_waiting=self.max_waiting),
            log=logger(as_json=self.log_json, quiet=quiet),
        )


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    load: ServeLoadOptions,
    serving: ServeOptions,
    templating: TemplateOptions,
    sharing: ServeEngineOptions,
    output: OutputOptions,
) -> None:
    """Serve a model over HTTP: OpenAI's API and a chat page.

    Listens on this machine alone unless --host says otherwise, which then needs an API key. The
    chat page is at /, the API at /v1. Ctrl-C lets answers under way end; a second one does not.
    """
    _check_installed()
    from quantcli.cli.generation import opened
    from quantcli.cli.render import StatusLine
    from quantcli.cli.serve_log import started
    from quantcli.cli.serve_model import service_of
    from quantcli.cli.worker import Worker
    from quantcli.server.serving import Server, address, bound

    name = named.choose(model)
    load.checked()
    sharing.checked()
    templating.names()
    settings = serving.settings(quiet=output.quiet)
    choose = partial(templating.template, is_needed=True)
    listener = bound(settings.host, settings.port)
    status = StatusLine(verbose=output.verbose, quiet=output.quiet)
    with (
        listener,
        Worker() as worker,
        opened(name, load, worker, status, sharing, serving.parallel, choose) as loaded,
    ):
        service = service_of(loaded, settings, serving)
        worker.stream(service.compute)
        url = address(listener)
        Server(service, listener).run(lambda: started(url, service, as_json=serving.log_json))


def _check_installed() -> None:
    """Raise UsageError if the libraries of the extra are not there."""
    from importlib.util import find_spec

    from quantcli.errors import UsageError

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"serving needs {' and '.join(missing)}. Install them with: "
            "pip install 'quantcli[serve]'"
        )


def _api_keys(file: str | None) -> tuple[str, ...]:
    """Return the keys of a file, one a line, and of the environment."""
    import os
    from pathlib import Path

    from quantcli.errors import UsageError

    keys = [os.environ.get("QUANTCLI_API_KEY", "").strip()]
    if file is not None:
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise UsageError(f"{file} is no text; it should have an API key a line.") from None
        lines = [line.strip() for line in text.splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise UsageError(f"{file} has no API key; write one a line.")
        keys += found
    return tuple(key for key in keys if key)
