"""Options that several commands share, in groups; names are llama.cpp's where one exists.

A group is a frozen dataclass whose fields are Typer options. A command asks for a group by
annotating a parameter with it, and `expand` puts the group's options on its command line:

    @expand
    def command(model: ModelArgument = None, *, load: LoadOptions) -> None: ...
"""

# No "from __future__ import annotations" here: Typer and `expand` read the annotations.

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Option

from quantcli.errors import UsageError

if TYPE_CHECKING:
    from quantcli.engine.request import SamplingParams

ModelArgument = Annotated[
    str | None,
    Argument(
        metavar="MODEL",
        help="A name from the catalog, hf.co/org/repo:QUANT, a GGUF file or a Hugging Face folder.",
        show_default=False,
    ),
]
Json = Annotated[bool, Option("--json", help="Print one JSON document instead of text.")]


BACKENDS = ("compiled", "reference")

ContextLength = Annotated[
    int | None,
    Option(
        "-c",
        "--ctx",
        "--ctx-size",
        min=0,
        metavar="N",
        help="Context in tokens; by default the model's own, or what fits in memory.",
        show_default=False,
    ),
]
Lora = Annotated[
    list[str] | None,
    Option(
        "--lora",
        "--lora-scaled",
        metavar="FILE[:SCALE]",
        help="Apply a LoRA adapter: a GGUF file, or a folder of PEFT's. May be repeated.",
        show_default=False,
    ),
]
CacheKind = Annotated[
    str, Option("--cache", metavar="KIND", help="KV cache kind: contiguous or paged.")
]
Threads = Annotated[
    int | None,
    Option(
        "-t",
        "--threads",
        min=1,
        max=1024,
        metavar="N",
        help="Threads; by default the physical cores this process may use.",
        show_default=False,
    ),
]
BackendName = Annotated[
    str | None,
    Option(
        "--backend",
        metavar="NAME",
        envvar="QUANTCLI_BACKEND",
        help="compiled (default), or reference: slow, in NumPy, for checking.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model, for those used to naming it with an option."""

    model_option: Annotated[
        str | None,
        Option("-m", "--model", metavar="MODEL", help="The same as MODEL.", show_default=False),
    ] = None

    def choose(self, argument: str | None) -> str:
        """Return the model's name. Raises UsageError unless it was given exactly once."""
        if argument is not None and self.model_option is not None:
            raise UsageError(
                f"two models are named: {argument} and -m {self.model_option}. Name one."
            )
        name = argument if argument is not None else self.model_option
        if not name:
            raise UsageError("no model is named. Give a name such as smollm2, or a GGUF file.")
        return name


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """How long the context is, and how it is kept."""

    ctx: ContextLength = None
    kv_type: Annotated[
        list[str] | None,
        Option(
            "--kv-type",
            "-ctk",
            "--cache-type-k",
            "-ctv",
            "--cache-type-v",
            metavar="TYPE",
            help="KV cache type: f16 (default) or q8_0.",
            show_default=False,
        ),
    ] = None

    def chosen_kv_type(self) -> str:
        """Return the KV cache type. Raises UsageError if keys and values are to differ."""
        from quantcli import catalog

        asked = set(self.kv_type or ())
        if len(asked) > 1:
            raise UsageError(
                f"keys and values are asked for as {' and '.join(sorted(asked))}; "
                "they have one type here. Use --kv-type f16 or --kv-type q8_0."
            )
        return catalog.lookup("KV cache type", asked.pop() if asked else "f16").name


@dataclass(frozen=True, slots=True)
class LoadOptions(ContextOptions):
    """How a model is loaded."""

    threads: Threads = None
    cache: CacheKind = "contiguous"
    backend: BackendName = None
    lora: Lora = None

    def checked(self) -> "LoadOptions":
        """Return these options after checking every name, before anything slow begins."""
        from quantcli import catalog
        from quantcli.errors import UnknownName

        self.chosen_kv_type()
        catalog.lookup("cache", self.cache)
        if self.chosen_backend() not in BACKENDS:
            raise UnknownName("backend", self.chosen_backend(), BACKENDS)
        return self

    def chosen_backend(self) -> str:
        """Return the backend's name."""
        return self.backend or BACKENDS[0]


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is chosen; what is not given comes from the model, then llama.cpp."""

    temp: Annotated[
        float | None,
        Option("--temp", "--temperature", metavar="X", help="Temperature; 0 is greedy. [0.8]"),
    ] = None
    top_k: Annotated[
        int | None, Option("--top-k", metavar="N", help="Keep the N likeliest; 0 is off. [40]")
    ] = None
    top_p: Annotated[
        float | None, Option("--top-p", metavar="X", help="Keep this much probability. [0.95]")
    ] = None
    min_p: Annotated[
        float | None,
        Option("--min-p", metavar="X", help="Drop what is rarer than X times the best. [0.05]"),
    ] = None
    typical: Annotated[
        float | None,
        Option("--typical", "--typical-p", metavar="X", help="Locally typical; 1 is off. [1]"),
    ] = None
    repeat_penalty: Annotated[
        float | None, Option("--repeat-penalty", metavar="X", help="1 is off. [1]")
    ] = None
    repeat_last_n: Annotated[
        int | None,
        Option("--repeat-last-n", metavar="N", help="Tokens that penalties look at. [64]"),
    ] = None
    presence_penalty: Annotated[
        float | None, Option("--presence-penalty", metavar="X", help="0 is off. [0]")
    ] = None
    frequency_penalty: Annotated[
        float | None, Option("--frequency-penalty", metavar="X", help="0 is off. [0]")
    ] = None
    seed: Annotated[
        int | None,
        Option("-s", "--seed", metavar="N", help="Same seed, same answer; -1 is random. [-1]"),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        Option(
            "-l",
            "--logit-bias",
            metavar="ID=X",
            help="Add X to a token's logit: 15043=1.5, 15043+1, 15043-inf. May be repeated.",
            show_default=False,
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        Option(
            "-r",
            "--stop",
            "--reverse-prompt",
            metavar="TEXT",
            help="End the answer before this text. May be repeated.",
            show_default=False,
        ),
    ] = None
    max_tokens: Annotated[
        int,
        Option(
            "-n",
            "--max-tokens",
            "--predict",
            "--n-predict",
            min=-1,
            metavar="N",
            help="Most tokens to generate; -1 is until the model or the context ends.",
        ),
    ] = -1
    ignore_eos: Annotated[
        bool, Option("--ignore-eos", help="Go on after the model's end-of-text token.")
    ] = False
    context_shift: Annotated[
        bool,
        Option(
            "--context-shift/--no-context-shift",
            help="When the context is full, drop the oldest half instead of stopping.",
        ),
    ] = False
    keep: Annotated[
        int,
        Option("--keep", min=-1, metavar="N", help="First tokens a shift keeps; -1: the prompt."),
    ] = 0

    def params(self, metadata: Mapping[str, object] | None = None) -> "SamplingParams":
        """Return the sampling parameters: these options, then the file's, then the defaults.

        Raises UsageError for a value out of range.
        """
        from quantcli.engine.request import SamplingParams

        user: dict[str, object] = {
            "temperature": self.temp,
            "typical_p": self.typical,
            "logit_bias": dict(map(_bias, self.logit_bias)) if self.logit_bias else None,
            "stop": tuple(self.stop) if self.stop else None,
            "ignore_eos": self.ignore_eos,
        }
        for name in (
            "top_k",
            "top_p",
            "min_p",
            "repeat_penalty",
            "repeat_last_n",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "max_tokens",
        ):
            user[name] = getattr(self, name)
        return SamplingParams.resolve(user, metadata)


def _bias(text: str) -> tuple[int, float]:
    """Return (token id, bias) of `15043=1.5`, `15043+1`, `15043-1` or `15043-inf`."""
    match = re.fullmatch(r"\s*(\d+)(?:=([+-]?[^=]+)|([+-].+))", text)
    try:
        if match is None:
            raise ValueError(text)
        return int(match[1]), float(match[2] or match[3])
    except ValueError:
        raise UsageError(
            f"--logit-bias {text!r} is not ID=BIAS, such as 15043=1.5, 15043-1 or 15043-inf."
        ) from None


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Where the prompt comes from and how it reaches the model."""

    prompt: Annotated[
        str | None,
        Option("-p", "--prompt", metavar="TEXT", help="The prompt.", show_default=False),
    ] = None
    file: Annotated[
        str | None,
        Option(
            "-f",
            "--file",
            metavar="FILE",
            help="Read the prompt from a file; - is standard input.",
            show_default=False,
        ),
    ] = None
    system: Annotated[
        str | None,
        Option(
            "-sys",
            "--system",
            "--system-prompt",
            metavar="TEXT",
            help="System message of a chat.",
            show_default=False,
        ),
    ] = None
    chat: Annotated[
        bool | None,
        Option(
            "-cnv/-no-cnv",
            "--chat/--no-chat",
            help="Use the model's chat template; by default if it has one.",
            show_default=False,
        ),
    ] = None

    special: Annotated[
        bool,
        Option(
            "--special",
            help="With --no-chat, read spellings of control tokens as those tokens.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is said about the work on standard error."""

    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Show progress and timings even without a terminal.")
    ] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show neither progress nor timings.")] = (
        False
    )


def expand(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose groups of options are single parameters, for Typer to read."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: hint for name, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)
    }
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in groups:
            annotation = hints[parameter.name]
            parameters.append(
                parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY)
            )
            continue
        for field in fields(groups[parameter.name]):
            assert field.default is not MISSING, field
            parameters.append(
                inspect.Parameter(
                    field.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=field.default,
                    annotation=field.type,
                )
            )

    @wraps(function)
    def command(**values: Any) -> None:
        arguments: dict[str, Any] = {}
        for name, group in groups.items():
            own = {field.name: values.pop(field.name) for field in fields(group)}
            arguments[name] = group(**own)
        function(**values, **arguments)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    del command.__wrapped__  # type: ignore[attr-defined]
    return command
