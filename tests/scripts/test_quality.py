"""docs/quality.md is made from what commands printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from source_tree import ROOT

MODELS = (Path("/some/where/a.gguf"), Path("/some/where/b-bf16.gguf"))


def test_every_section_of_the_page_has_its_parts(scripts: dict[str, ModuleType]) -> None:
    quality = scripts["quality"]
    setup = quality.Setup(MODELS, 2, Path("/x/bin"), Path("/x/python"))
    parts = quality.parts(setup)
    template = (ROOT / "scripts" / "quality.md").read_text(encoding="utf-8")
    sections = re.findall(r"<!-- parts: (\w+) -->", template)
    assert sections == list(dict.fromkeys(part.section for part in parts))
    assert len({part.name for part in parts}) == len(parts)
    assert not any("/some" in part.shown or "/x/" in part.shown for part in parts)


def test_commands_take_their_options(scripts: dict[str, ModuleType]) -> None:
    quality = scripts["quality"]
    reference = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for part in quality.parts(quality.Setup(MODELS, 2, Path("/x/bin"), Path("/x/python"))):
        program = part.command[0]
        is_ours = program == "quantcli"
        text = reference if is_ours else (ROOT / program).read_text(encoding="utf-8")
        for option in (word for word in part.command if re.match(r"-+[a-z]", word)):
            assert option in text, (part.name, option)
