"""The command line: built from the catalog, with the one border where errors become messages.

Exit codes: 0 done; 1 the file, the machine or the network failed; 2 the command line is wrong;
70 a bug in quantcli; 130 interrupted by Ctrl-C; 141 the reader of the output went away.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from typer import Typer

EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_PIPE = 141  # 128 + SIGPIPE


def main(args: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Every error ends here, in one sentence.

    Nothing but the standard library is imported before the border is up, so that Ctrl-C during
    the imports is quiet too. With --debug, or QUANTCLI_DEBUG=1, errors bring their traceback.
    """
    debug = os.environ.get("QUANTCLI_DEBUG", "") not in ("", "0")
    try:
        words = list(sys.argv[1:] if args is None else args)
        debug = _take_debug(words) or debug
        _open_streams()
        code = _run(words)
        sys.stdout.flush()
    except SystemExit as stop:  # a signal told us to end
        code = stop.code if isinstance(stop.code, int) else 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is the border
        code = _report(error, debug)
    if _is_computing():
        leave(code)
    return code


def build() -> Typer:
    """Return the Typer application of every command in the catalog."""
    import typer

    from quantcli import catalog
    from quantcli.cli.arguments import Command

    app = typer.Typer(
        name="quantcli",
        help="Run quantized language models on a CPU.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def quantcli(
        version: bool = typer.Option(False, "--version", is_eager=True, help="Show the version."),
        debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    ) -> None:
        """Run quantized language models on a CPU."""

    for row in catalog.COMMANDS:
        module = catalog.load("command", row.name)
        described = {"help": module.command.__doc__, "short_help": row.summary}
        app.command(row.name, cls=Command, **described)(module.command)
    return app


def _run(words: list[str]) -> int:
    """Run a command line; errors of all kinds leave as exceptions."""
    if "--version" in words[:1]:
        from quantcli import __version__

        print(f"quantcli {__version__}")
        return 0
    import typer

    from quantcli import catalog

    command = typer.main.get_command(build())
    if "_QUANTCLI_COMPLETE" in os.environ:
        command.main(words, prog_name="quantcli")
    if words and not words[0].startswith("-"):
        catalog.lookup("command", words[0])
    try:
        # Not command.main(): it turns KeyboardInterrupt into Abort and EPIPE into exit code 1.
        with command.make_context("quantcli", words or ["--help"]) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return int(stop.exit_code)
    return 0


def _take_debug(words: list[str]) -> bool:
    """Remove --debug wherever it stands before a `--`, and return whether it was there."""
    end = words.index("--") if "--" in words else len(words)
    if "--debug" not in words[:end]:
        return False
    words[:end] = [word for word in words[:end] if word != "--debug"]
    return True


def _open_streams() -> None:
    """Make output UTF-8 whatever the console's code page, and have a place for it if closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started with the stream closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _report(error: BaseException, debug: bool) -> int:
    """Say what happened on standard error and return the exit code."""
    try:
        if _is_closed_pipe(error):
            _abandon(sys.stdout)
            return EXIT_PIPE
        code, message = explain(error)
        if debug or code == EXIT_BUG:
            import traceback

            traceback.print_exception(error, file=sys.stderr)
        if message:
            print(f"error: {message}", file=sys.stderr)
        _flush_or_abandon(sys.stdout)
        sys.stderr.flush()
    except OSError:  # standard error is gone too: the exit code has to say it
        _abandon(sys.stdout)
        _abandon(sys.stderr)
        return EXIT_PIPE if _is_closed_pipe(error) else explain(error)[0]
    return code


def explain(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and the sentence for the user, "" if nothing is to say."""
    from quantcli.errors import QuantcliError

    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED, ""
    if isinstance(error, QuantcliError):
        return error.exit_code, _one_line(str(error))
    if isinstance(error, MemoryError):
        return 1, (
            "out of memory. Use a smaller --ctx, --kv-type q8_0 or a smaller model; "
            "'quantcli doctor' shows what is available."
        )
    if isinstance(error, OSError) and error.errno is not None:
        place = f": {error.filename}" if error.filename is not None else ""
        return 1, _one_line(f"{(error.strerror or str(error)).lower()}{place}")
    usage = _usage_message(error)
    if usage is not None:
        return 2, _one_line(usage)
    return EXIT_BUG, (
        "this is a bug in quantcli, not in what you did. Please report the traceback above "
        "together with the output of 'quantcli doctor'."
    )


def _usage_message(error: BaseException) -> str | None:
    """Return what is wrong with the command line if that is what the error says, else None."""
    import typer

    usage_error = typer.BadParameter.__base__  # click's UsageError, wherever typer keeps click
    if usage_error is None or not isinstance(error, usage_error):
        return None
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "quantcli"
    message: str = error.format_message()  # type: ignore[attr-defined]
    return f"{message.rstrip('.')}. See '{command} --help'."


def _one_line(text: str) -> str:
    """Return text without line breaks or control characters, which a file name may hold."""
    words = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)


def _is_closed_pipe(error: BaseException) -> bool:
    """Return whether an error means that whoever read our output has gone."""
    import errno

    if isinstance(error, BrokenPipeError):
        return True
    # Windows says EINVAL for it
    return sys.platform == "win32" and getattr(error, "errno", None) == errno.EINVAL


def _is_computing() -> bool:
    """Return whether a worker was left behind; an exit would free its arrays under it."""
    return any(thread.name == "engine" and thread.is_alive() for thread in threading.enumerate())


def _flush_or_abandon(stream: object) -> None:
    try:
        stream.flush()  # type: ignore[attr-defined]
    except OSError:
        _abandon(stream)


def _abandon(stream: object) -> None:
    """Send what a stream still holds nowhere, so that the flush at exit cannot fail."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[attr-defined]
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        return


def leave(code: int) -> NoReturn:
    """End the process at once, output flushed, while a thread may still be computing.

    An ordinary exit would free the arrays under that thread's compiled code.
    """
    for stream in (sys.stdout, sys.stderr):
        _flush_or_abandon(stream)
    os._exit(code)
