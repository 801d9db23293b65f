"""quantcli's own folder: where it is, and that only whole models count."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from quantcli.checkpoint import home
from quantcli.errors import ResourceError

SHA = "a" * 64
MODEL = home.StoredModel("tiny", "Tiny.gguf", 4, SHA, "MIT", "a test")


def stored(model: home.StoredModel = MODEL, data: bytes = b"GGUF") -> home.StoredModel:
    draft = home.staging(model.sha256) / "draft"
    draft.parent.mkdir(parents=True, exist_ok=True)
    draft.write_bytes(data)
    home.publish(model, draft)
    return model


def test_the_environment_says_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUANTCLI_HOME", str(tmp_path))
    assert home.home() == tmp_path
    monkeypatch.setenv("QUANTCLI_HOME", "~/q")
    assert home.home() == Path.home() / "q"


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of other systems is another")
def test_else_it_is_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QUANTCLI_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert home.home() == tmp_path / "quantcli"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert home.home() == Path.home() / ".local" / "share" / "quantcli"


def test_what_is_published_is_found() -> None:
    model = stored()
    assert home.stored() == [model]
    assert home.stored_model(SHA) == model
    assert home.stored_model("b" * 64) is None
    assert model.path.read_bytes() == b"GGUF"


def test_publishing_again_replaces() -> None:
    stored()
    stored(data=b"gguf")
    assert MODEL.path.read_bytes() == b"gguf"


@pytest.mark.parametrize("description", [b"", b"{", b"[]", b'{"name": 1}', b"\xff", b"null"])
def test_a_model_with_a_damaged_description_does_not_count(description: bytes) -> None:
    model = stored()
    (model.folder / "model.json").write_bytes(description)
    assert home.stored() == []


def test_a_file_of_another_size_does_not_count() -> None:
    model = stored()
    model.path.write_bytes(b"GGU")
    assert home.stored() == []


def test_a_description_cannot_lead_out_of_its_folder() -> None:
    model = stored()
    text = (model.folder / "model.json").read_text(encoding="utf-8")
    outside = home.home() / "models" / "outside"
    outside.write_bytes(b"GGUF")
    (model.folder / "model.json").write_text(text.replace("Tiny.gguf", "../outside"), "utf-8")
    assert home.stored() == []


def test_deleting_frees_the_bytes_and_leaves_other_models() -> None:
    other = stored(home.StoredModel("other", "O.gguf", 4, "b" * 64, "MIT", "a test"))
    assert home.delete(stored()) == 4
    assert home.stored() == [other]
    assert not MODEL.folder.exists()


def test_using_a_model_is_remembered() -> None:
    model = stored()
    os.utime(model.folder / "model.json", (0, 0))
    assert home.last_used(model) == 0
    home.mark_used(model)
    assert home.last_used(model) > 0


def test_space_is_required_of_the_disk_that_will_hold_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet" / "there"
    home.require_space(folder, 1, "tiny")
    with pytest.raises(ResourceError, match=r"not enough disk space for tiny: it needs 1000\.0 TB"):
        home.require_space(folder, 10**15, "tiny")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("number", "message", "is_kept"),
    [
        (errno.ENOSPC, "the disk of .* is full", False),
        (errno.EACCES, "cannot write .*: Permission denied", True),
        (errno.EROFS, "cannot write .*: Read-only file system", True),
        (errno.EFBIG, "cannot write .*: File too large", True),
        (errno.EIO, "cannot write .*: Input/output error", True),
    ],
)
def test_a_refused_write_is_one_sentence(
    tmp_path: Path, number: int, message: str, is_kept: bool
) -> None:
    partial = tmp_path / "partial"
    partial.write_bytes(b"x")
    with pytest.raises(ResourceError, match=message), home.write_errors(tmp_path, partial):
        raise OSError(number, os.strerror(number))
    assert partial.exists() == is_kept


def test_a_lock_is_waited_for_and_the_user_is_told(tmp_path: Path, said: list[str]) -> None:
    import subprocess

    path = tmp_path / "locks" / "x.lock"
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from quantcli.checkpoint.home import locked\n"
        f"with locked(Path({str(path)!r}), print):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"

        def release(line: str) -> None:
            said.append(line)
            assert holder.stdin is not None
            holder.stdin.write("\n")
            holder.stdin.flush()

        with home.locked(path, release):
            assert said == ["Another process is downloading this model; waiting for it."]
