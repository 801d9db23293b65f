"""quantcli tokenize: text to tokens."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from typing import Annotated

from typer import Argument, Option

from quantcli.cli.options import Json, ModelArgument, ModelOptions, expand


@expand
def command(
    model: ModelArgument = None,
    text: Annotated[
        str | None,
        Argument(metavar="[TEXT]", help="The text; without it, -f or standard input."),
    ] = None,
    *,
    named: ModelOptions,
    prompt: Annotated[
        str | None, Option("-p", "--prompt", metavar="TEXT", help="The same as TEXT.")
    ] = None,
    file: Annotated[
        str | None, Option("-f", "--file", metavar="FILE", help="Read the text from a file.")
    ] = None,
    special: Annotated[
        bool, Option("--special", help="Read spellings of control tokens as those tokens.")
    ] = False,
    bos: Annotated[
        bool, Option("--bos/--no-bos", help="Add the tokens the model wants at the start and end.")
    ] = True,
    ids: Annotated[bool, Option("--ids", help="Print only the ids, on one line.")] = False,
    as_json: Json = False,
) -> None:
    """Show how text becomes tokens."""
    if model is not None and named.model_option is not None and text is None:
        model, text = None, model  # tokenize -m MODEL TEXT
    given = _text(text, prompt, file)

    from quantcli.checkpoint import open_checkpoint
    from quantcli.checkpoint.store import resolve
    from quantcli.text import from_metadata

    with open_checkpoint(resolve(named.choose(model))) as checkpoint:
        tokenizer = from_metadata(checkpoint.metadata)
    tokens = tokenizer.encode(given, add_special=bos, parse_special=special)
    pieces = [tokenizer.token_bytes(token) for token in tokens]
    _show(tokens, pieces, ids=ids, as_json=as_json)


def _text(text: str | None, prompt: str | None, file: str | None) -> str:
    from quantcli.cli.prompt import read_prompt
    from quantcli.errors import UsageError

    if text is not None and prompt is not None:
        raise UsageError("two texts are given, TEXT and -p. Give one.")
    given = read_prompt(prompt if text is None else text, file)
    if given is None:
        raise UsageError("no text is given. Add it after the model, or give -f or pipe it in.")
    return given


def _show(tokens: list[int], pieces: list[bytes], *, ids: bool, as_json: bool) -> None:
    from quantcli.cli import render

    if as_json:
        rows: list[render.JsonValue] = [
            {"id": token, "text": piece.decode("utf-8", "replace"), "bytes": piece.hex()}
            for token, piece in zip(tokens, pieces, strict=True)
        ]
        render.emit_json({"n_tokens": len(tokens), "tokens": rows})
    elif ids:
        print(*tokens)
    else:
        for token, piece in zip(tokens, pieces, strict=True):
            print(f"{token:>7}  {_quoted(piece)}")


def _quoted(piece: bytes) -> str:
    """Return a piece in quotes; bytes that are no whole character as escapes."""
    return repr(piece.decode("utf-8", "backslashreplace")).replace("\\\\x", "\\x")
