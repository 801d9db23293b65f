"""How a server is set up, and the most that one request may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from quantcli.errors import UsageError

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
Log = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of everything that a request can make large; beyond it is an error, never a load.

    body_nbytes       bytes of a body
    json_depth        levels of arrays and objects in it
    n_choices         answers of one request: prompts times `n`
    n_prompts         prompts of one request
    n_embeddings      inputs of one request for embeddings
    n_top_logprobs    alternatives told for each token
    n_biases          entries of logit_bias
    n_stops           stop strings
    stop_nbytes       bytes of one of them
    n_tools           tools
    n_messages        messages
    schema_nbytes     bytes of a JSON schema, a grammar or a regular expression
    n_connections     open connections
    n_waiting         requests that wait for the engine
    header_s          seconds for a request's headers to arrive
    body_s            seconds between two pieces of its body
    send_s            seconds for a slow reader to take a piece of a stream
    ping_s            seconds of silence after which a stream says that it lives
    """

    body_nbytes: int = 4 << 20
    json_depth: int = 64
    n_choices: int = 16
    n_prompts: int = 16
    n_embeddings: int = 256
    n_top_logprobs: int = 20
    n_biases: int = 1024
    n_stops: int = 16
    stop_nbytes: int = 256
    n_tools: int = 128
    n_messages: int = 2048
    schema_nbytes: int = 64 << 10
    n_connections: int = 256
    n_waiting: int = 64
    header_s: float = 10.0
    body_s: float = 30.0
    send_s: float = 30.0
    ping_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server is set up.

    host, port     where it listens; port 0 takes a free one
    api_keys       any of them opens the server; none: everybody may ask
    is_open        whether to listen beyond this machine without a key
    allowed_hosts  further names by which clients may call the server
    cors_origins   web pages' origins that may ask; no others may
    grace_s        seconds for answers under way to end when the server is told to stop
    log            called with what is known of each request that has ended

    Raises UsageError for a server that anybody on the network could use.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    is_open: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    grace_s: float = 10.0
    limits: Limits = field(default_factory=Limits)
    log: Log | None = None

    def __post_init__(self) -> None:
        """Refuse an open server that was not asked for, and keys that no client can send."""
        if self.host not in LOOPBACK and not self.api_keys and not self.is_open:
            raise UsageError(
                f"--host {self.host} lets other machines in, and there is no API key. Add "
                "--api-key-file FILE, or --no-auth if everybody on the network may use this model."
            )
        for key in self.api_keys:
            if not key.isascii() or not key.isprintable() or not key.strip():
                raise UsageError("an API key must be printable ASCII; write another to the file.")
        for origin in self.cors_origins:
            if origin == "*" or "://" not in origin or origin.rstrip("/") != origin:
                raise UsageError(
                    f"--cors-origin {origin!r} is not an origin such as https://example.com."
                )
