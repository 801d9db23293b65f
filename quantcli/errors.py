"""The exception tree: every failure a user can cause, with the exit code it ends in.

QuantcliError
  UsageError          the command line or request is wrong            exit 2
    UnknownName       not in the catalog; says what is, and the closest
    RequestError      a request to the server is refused; says the field and the HTTP status
  ModelError          the file is not what it should be               exit 1
    CheckpointError   truncated, bad magic, missing tensor
    UnsupportedModel  valid, but not supported; says which feature
    ShapeError        a dimension does not fit a format or an op
  ResourceError       not enough memory, context full, disk full      exit 1
    DownloadError     a model could not be fetched or did not verify
    QueueFull         too many requests wait already
  Cancelled           the user stopped it                             exit 130

A message is one line of up to three parts: what is wrong with the value seen; what would be
right; what to do. Our own bugs stay AssertionError or RuntimeError and end in a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable


class QuantcliError(Exception):
    """Base of every error a user can cause."""

    exit_code = 1


class UsageError(QuantcliError):
    """The command line or the request is wrong."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that is not in the catalog; says what is known and what is closest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Build the message from the kind of thing asked for and the names that exist."""
        from difflib import get_close_matches

        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))
        close = get_close_matches(name.lower(), self.known, n=1, cutoff=0.6)
        self.closest = close[0] if close else None
        hint = f" Did you mean {self.closest}?" if self.closest else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(self.known)}.")


class RequestError(UsageError):
    """A request to the server is refused; carries what OpenAI's clients read besides the message.

    status   of the HTTP response
    param    the field that is wrong, None if it is none in particular
    code     what programs tell cases apart by, None if there is nothing to tell
    kind     OpenAI's `type`
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        **details: int,
    ) -> None:
        """Keep the parts; details are further numbers that the body of the response tells."""
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind
        self.details = details


class ModelError(QuantcliError):
    """The file is not what it should be."""


class CheckpointError(ModelError):
    """A model file is truncated, malformed or lacks a tensor or key."""


class UnsupportedModel(ModelError):
    """A valid model that needs something quantcli does not have; names it."""


class ShapeError(ModelError):
    """A dimension does not fit a format or an op."""


class ResourceError(QuantcliError):
    """Memory, context or disk is exhausted."""


class DownloadError(ResourceError):
    """A model could not be fetched, or what was fetched does not verify."""


class QueueFull(ResourceError):
    """As many requests wait as may; later there will be room."""


class Cancelled(QuantcliError):
    """The user stopped what was running."""

    exit_code = 130
