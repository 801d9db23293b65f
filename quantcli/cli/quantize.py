"""quantcli quantize: make a model smaller."""

# No "from __future__ import annotations" here: Typer reads the annotations.

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from quantcli.cli.options import (
    BackendName,
    Json,
    ModelArgument,
    ModelOptions,
    OutputOptions,
    Threads,
    expand,
)
from quantcli.errors import UsageError

if TYPE_CHECKING:
    from quantcli.cli.quantize_run import Session
    from quantcli.cli.render import StatusLine
    from quantcli.huggingface.scheme import ExportScheme
    from quantcli.quantize.recipe import Recipe

DEFAULT_TYPE = "q4_k_m"
DEFAULT_TOKENS = 32768
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """What becomes what; names are llama-quantize's where it has them."""

    type: Annotated[
        str | None,
        Option(
            "--type",
            metavar="TYPE",
            help="What to make of it: q4_k_m, Q5_K_S, q8_0, iq4_xs, bf16 and so on. "
            f"[{DEFAULT_TYPE}]",
        ),
    ] = None
    bpw: Annotated[
        float | None,
        Option(
            "--bpw",
            min=0.5,
            max=32.0,
            metavar="X",
            help="The best mix of formats of X bits per weight, in place of a type.",
            show_default=False,
        ),
    ] = None
    probe: Annotated[
        bool,
        Option(
            "--probe/--no-probe",
            help="Measure what matters in this model before formats are chosen for a size; "
            "without, other models' measurements are used.",
        ),
    ] = True
    tensor_type: Annotated[
        list[str] | None,
        Option(
            "--tensor-type",
            metavar="REGEX=TYPE",
            help="Format of the tensors whose names match, such as ffn_down=q6_k. Repeatable.",
            show_default=False,
        ),
    ] = None
    output_tensor_type: Annotated[
        str | None,
        Option(
            "--output-tensor-type",
            metavar="TYPE",
            help="Format of the output matrix.",
            show_default=False,
        ),
    ] = None
    token_embedding_type: Annotated[
        str | None,
        Option(
            "--token-embedding-type",
            metavar="TYPE",
            help="Format of the token embedding.",
            show_default=False,
        ),
    ] = None
    keep_output: Annotated[
        bool,
        Option("--keep-output", "--leave-output-tensor", help="Leave output.weight as it is."),
    ] = False
    pure: Annotated[bool, Option("--pure", help="Give every matrix the type's main format.")] = (
        False
    )
    fallback: Annotated[
        str,
        Option(
            "--fallback",
            metavar="POLICY",
            help="Where rows fit no block of 256: llama.cpp takes the larger formats that "
            "llama-quantize takes; size finds the best ones of the size that the type stands for.",
        ),
    ] = "llama.cpp"

    def recipe(self) -> "Recipe":
        """Return the recipe. Raises UsageError or UnknownName for what cannot be."""
        from quantcli.errors import UnknownName
        from quantcli.quantize.fallback import POLICIES
        from quantcli.quantize.mixes import closest_mix, mix
        from quantcli.quantize.recipe import Override, Recipe, format_name

        policy = next((p for p in POLICIES if p == self.fallback), None)
        if policy is None:
            raise UnknownName("fallback policy", self.fallback, POLICIES)
        output, embedding = self.output_tensor_type, self.token_embedding_type
        if self.bpw is not None and (self.type is not None or self.pure):
            raise UsageError("--bpw chooses the formats itself; leave --type and --pure out.")
        if output and self.keep_output:
            raise UsageError("--keep-output and --output-tensor-type exclude each other.")
        return Recipe(
            mix(self.type or (closest_mix(self.bpw) if self.bpw else DEFAULT_TYPE)),
            tuple(Override.parse(text) for text in self.tensor_type or ()),
            output=format_name(output) if output else None,
            embedding=format_name(embedding) if embedding else None,
            keep_output=self.keep_output,
            pure=self.pure,
            policy=policy,
            bits=self.bpw,
        )


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """How the codes are chosen, and from what."""

    gptq: Annotated[
        bool,
        Option("--gptq", help="Let later weights make good what rounding earlier ones costs."),
    ] = False
    awq: Annotated[
        bool,
        Option("--awq", help="Scale inputs first, so that what matters rounds better."),
    ] = False
    calib: Annotated[
        str | None,
        Option(
            "--calib",
            metavar="TEXT",
            help="Text that runs through the model to learn what matters: a file, builtin, or "
            "self for what the model writes. With --gptq and --awq [builtin]",
            show_default=False,
        ),
    ] = None
    calib_tokens: Annotated[
        int | None,
        Option(
            "--calib-tokens",
            min=1,
            metavar="N",
            help=f"Tokens of that text to use. [{DEFAULT_TOKENS}]",
        ),
    ] = None
    imatrix: Annotated[
        Path | None,
        Option(
            "--imatrix",
            metavar="FILE",
            help="Weight errors by this importance matrix, of quantcli imatrix or llama-imatrix.",
            show_default=False,
        ),
    ] = None

    @property
    def names(self) -> tuple[str, ...]:
        """The methods that were asked for, as the catalog spells them, in the order of work."""
        return ("awq",) * self.awq + ("gptq",) * self.gptq

    @property
    def n_tokens(self) -> int:
        """Tokens of calibration."""
        return self.calib_tokens or DEFAULT_TOKENS

    def check(self) -> None:
        """Raise UsageError for options that do not go together."""
        if self.calib_tokens is not None and self.text is None:
            raise UsageError("--calib-tokens is about calibration. Add --calib or --gptq.")

    @property
    def text(self) -> str | None:
        """What to calibrate on: a file, builtin or self; None if nothing is."""
        return self.calib or ("builtin" if self.names else None)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Integers in groups for other programs, in place of a GGUF file."""

    export: Annotated[
        str | None,
        Option(
            "--export",
            metavar="FORMAT",
            help="Write a Hugging Face folder for vLLM and transformers: gptq, awq or "
            "compressed-tensors. The source is such a folder, too.",
            show_default=False,
        ),
    ] = None
    bits: Annotated[
        int | None, Option("--bits", metavar="N", help="With --export: 4 or 8 bits. [4]")
    ] = None
    group_size: Annotated[
        int | None,
        Option(
            "--group-size",
            metavar="N",
            help="With --export: inputs that share a scale, 32, 64 or 128. [128]",
        ),
    ] = None
    asym: Annotated[
        bool,
        Option("--asym", help="With --export: give every group a zero of its own."),
    ] = False

    def scheme(self) -> "ExportScheme | None":
        """Return how linears are stored, None for a GGUF file.

        Raises UsageError or UnknownName for what no format has.
        """
        from quantcli.huggingface.scheme import ExportScheme

        if self.export is None:
            for name, value in (("bits", self.bits), ("group-size", self.group_size)):
                if value is not None:
                    raise UsageError(f"--{name} is about exporting. Add --export FORMAT.")
            if self.asym:
                raise UsageError("--asym is about exporting. Add --export FORMAT.")
            return None
        group = self.group_size or 128
        if group not in GROUPS:
            raise UsageError(f"--group-size {group} must be one of {', '.join(map(str, GROUPS))}.")
        return ExportScheme(self.export, bits=self.bits or 4, group=group, symmetric=not self.asym)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where the result goes, and how careful to be."""

    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write; by default MODEL-TYPE.gguf beside the source.",
            show_default=False,
        ),
    ] = None
    force: Annotated[
        bool, Option("--force", help="Replace a file that exists, and drop an interrupted run.")
    ] = False
    resume: Annotated[bool, Option("--resume", help="Go on with an interrupted run.")] = False
    dry_run: Annotated[
        bool,
        Option("--dry-run", help="Show sizes, formats, memory and time; write nothing."),
    ] = False
    allow_requantize: Annotated[
        bool,
        Option("--allow-requantize", help="Round a model that is quantized already once more."),
    ] = False
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="Write a page with charts.", show_default=False),
    ] = None
    verify: Annotated[
        bool,
        Option(
            "--verify/--no-verify",
            help="Afterwards open the file, measure it on held-out text and let it write a line.",
        ),
    ] = True
    threads: Threads = None
    backend: BackendName = None

    def chosen_backend(self) -> str:
        """Return what computes the verification. Raises UnknownName."""
        from quantcli.cli.options import BACKENDS
        from quantcli.errors import UnknownName

        name = self.backend or BACKENDS[0]
        if name not in BACKENDS:
            raise UnknownName("backend", name, BACKENDS)
        return name


@expand
def command(
    model: ModelArgument = None,
    *,
    named: ModelOptions,
    what: RecipeOptions,
    how: MethodOptions,
    other: ExportOptions,
    write: WriteOptions,
    said: OutputOptions,
    as_json: Json = False,
) -> None:
    """Make a model smaller.

    Ctrl-C keeps what is done; --resume goes on with it.
    """
    from quantcli.cli.render import StatusLine

    how.check()
    what.recipe()  # before anything slow begins
    status = StatusLine(verbose=said.verbose, quiet=said.quiet)
    with _session(named.choose(model), what, how, other, write, status) as session:
        if write.dry_run:
            session.show_plan(as_json=as_json)
            return
        session.run()
        session.show_result(as_json=as_json)


def _session(
    model: str,
    what: RecipeOptions,
    how: MethodOptions,
    other: ExportOptions,
    write: WriteOptions,
    status: "StatusLine",
) -> "Session":
    """Return what will write a GGUF file, or a folder."""
    scheme = other.scheme()
    if scheme is None:
        from quantcli.cli.quantize_run import Session

        return Session(model, what, how, write, status)
    from quantcli.cli.quantize_export import ExportSession

    if what != RecipeOptions():
        raise UsageError("--export has no GGUF formats. Leave --type and the like out.")
    if write.resume:
        raise UsageError("--export cannot be resumed. Leave --resume out.")
    return ExportSession(model, what, how, write, status, scheme)
