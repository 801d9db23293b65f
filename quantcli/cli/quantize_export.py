"""`quantcli quantize --export`: a Hugging Face folder of integers in place of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from quantcli.checkpoint import Checkpoint, open_checkpoint
from quantcli.checkpoint.drafts import check_target
from quantcli.cli.quantize_run import Session, default_output
from quantcli.cli.render import JsonValue, emit_json, pairs
from quantcli.errors import CheckpointError
from quantcli.evaluate.output_file import check_free
from quantcli.huggingface.scheme import ExportScheme
from quantcli.quantize.export import ExportJob, export, prepare_export
from quantcli.quantize.job import Settings
from quantcli.quantize.results import TensorResult
from quantcli.runtime.memory import size

if TYPE_CHECKING:
    from quantcli.cli.quantize import MethodOptions, RecipeOptions, WriteOptions
    from quantcli.cli.render import StatusLine


class ExportSession(Session):
    """One export, from its options to what is printed."""

    def __init__(
        self,
        model: str,
        what: RecipeOptions,
        how: MethodOptions,
        write: WriteOptions,
        status: StatusLine,
        scheme: ExportScheme,
    ) -> None:
        """Remember what is asked for."""
        super().__init__(model, what, how, write, status)
        self._scheme = scheme
        self._export: ExportJob

    @property
    def _label(self) -> str:
        return f"{self._scheme.format}-int{self._scheme.bits}-g{self._scheme.group}"

    def show_plan(self, *, as_json: bool) -> None:
        """Print what would be done."""
        job = self._export
        bits = 8 * job.nbytes / max(1, job.n_weights)
        if as_json:
            document: JsonValue = {
                "model": job.source.folder.name,
                "output": str(self._path),
                "type": self._label,
                "method": job.settings.method,
                "nbytes": job.nbytes,
                "source_nbytes": job.source.nbytes,
                "bits_per_weight": bits,
                "linears": {name: list(shape) for name, shape in job.linears.items()},
                "remarks": list(job.problems),
            }
            emit_json(document)
            return
        facts = {
            "model": f"{job.source.folder.name}, {size(job.source.nbytes)}",
            "output": f"{self._path}, {size(job.nbytes)}, {bits:.3f} bits per weight",
            "linears": f"{len(job.linears)} as {job.label}",
            "method": job.settings.method,
        }
        print(pairs(facts.items(), indent=""))
        for line in job.problems:
            print(line)

    def run(self) -> None:
        """Quantize, write the folder, then verify it."""
        job = self._export
        for line in job.problems:
            self._status.warn(line)
        results, seconds, nbytes = self._timed(self._exported)
        with open_checkpoint(self._path) as written:
            if set(written.tensors) != set(job.source.tensors):
                raise CheckpointError(f"{self._path}: verification found other tensors.")
        self._finish(job.source, job.settings, results, seconds, nbytes)

    def _default_output(self, checkpoint: Checkpoint) -> Path:
        path = default_output(self._model, checkpoint, self._label)
        return path.with_name(path.name.removesuffix(".gguf"))

    def _check_paths(self, checkpoint: Checkpoint) -> None:
        check_target(self._path, force=self._write.force, folder=True)
        if self._write.html is not None:
            check_free(self._write.html, "--html", force=self._write.force)

    def _check_source(self, checkpoint: Checkpoint) -> None:
        prepare_export(checkpoint, Settings(self._recipe), self._scheme)

    def _set_up(self, checkpoint: Checkpoint, settings: Settings) -> int:
        self._export = prepare_export(checkpoint, settings, self._scheme)
        return self._export.nbytes

    def _exported(self) -> list[TensorResult]:
        write = self._write
        return self._call(
            lambda progress: export(self._export, self._path, force=write.force, progress=progress)
        )
