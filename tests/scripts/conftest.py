"""The modules that scripts share, loaded as the scripts load them."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from source_tree import ROOT


@pytest.fixture(scope="session")
def scripts() -> dict[str, ModuleType]:
    """Return scripts/*.py that need nothing but what is installed for tests, by name."""
    loaded = {}
    for name in ("environment", "peers", "measured", "performance", "quality"):
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        loaded[name] = module
    return loaded
