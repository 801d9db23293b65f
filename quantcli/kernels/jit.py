"""The only place that configures Numba: instruction set, flags, disk cache, ops called by address.

`numba` must not be imported before this module has set the environment, so kernels import it
from here. Flags: no fast-math (bit-identity), no GIL, NumPy's error model (no exceptions).
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from quantcli import __version__
from quantcli.kernels.isa import Isa, select

ISA: Isa = select()


def _cache_root() -> Path:
    """Return the folder for compiled kernels: QUANTCLI_CACHE_DIR or the platform's cache folder."""
    if configured := os.environ.get("QUANTCLI_CACHE_DIR"):
        return Path(configured)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "quantcli" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "quantcli"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantcli"


_PACKAGE = Path(__file__).parent
_OFFLINE = _PACKAGE / "quantize"  # compiled loops that no forward pass runs


def _sources_digest() -> str:
    """Hash the kernel sources: Numba's own index does not notice edits in imported files."""
    sources = [*_PACKAGE.rglob("*.py"), _PACKAGE.parent / "runtime" / "executor.py"]
    return _digest(source for source in sources if _OFFLINE not in source.parents)


def _digest(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _offline_digest() -> str:
    """Hash the sources that only quantizing needs, so that they may change alone."""
    return _digest(_OFFLINE.rglob("*.py"))


def cache_dir() -> Path:
    """Return the folder of this version's compiled kernels for this instruction set."""
    return _cache_root() / "kernels" / f"{__version__}-{_sources_digest()}-{ISA.name}"


def _configure() -> None:
    # Not only by default: a folder without our key would serve kernels of older sources.
    os.environ["NUMBA_CACHE_DIR"] = str(cache_dir())
    if ISA.cpu_name:
        os.environ["NUMBA_CPU_NAME"] = ISA.cpu_name
    if ISA.cpu_name or ISA.cpu_features:
        os.environ["NUMBA_CPU_FEATURES"] = ISA.cpu_features
    if "numba" in sys.modules:  # imported by somebody else before us
        sys.modules["numba"].config.reload_config()


_configure()

import numba  # noqa: E402
from numba import cfunc, types  # noqa: E402
from numba.core.caching import FunctionCache  # noqa: E402

OP_SIGNATURE = types.void(types.int64, types.int64, types.int64)  # (args, thread, n_threads)


# What reading a damaged pickle raises, and LLVM for a damaged object file.
_DAMAGE = (
    UnpicklingError,
    EOFError,
    OSError,
    AttributeError,
    ImportError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RuntimeError,
)


def _forgive_cache() -> None:
    """Make what is wrong with the cache cost time and nothing else.

    A crash or a full disk leaves entries cut short, and Numba would fail on them for ever. Such an
    entry is compiled anew and replaced; a kernel that cannot be kept is used all the same.
    """
    load, save = FunctionCache.load_overload, FunctionCache.save_overload

    def load_overload(self, sig, target_context):
        try:
            return load(self, sig, target_context)
        except _DAMAGE:
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig, data):
        with suppress(*_DAMAGE):
            save(self, sig, data)

    FunctionCache.load_overload, FunctionCache.save_overload = load_overload, save_overload


_forgive_cache()


def njit(function):
    """Compile a kernel on first call, cached on disk."""
    compiled = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    is_offline = _OFFLINE in Path(function.__code__.co_filename).parents
    if is_offline and isinstance(compiled._cache, FunctionCache):
        # The folder's name does not tell of these sources, so the entries do.
        compiled._cache._cache_file._source_stamp = _offline_digest()
    return compiled


def inline(function):
    """Compile a piece of kernels; LLVM inlines it where it pays. Not cached by itself."""
    return numba.njit(nogil=True, error_model="numpy")(function)


class OpKernel:
    """A kernel called by address: void(args, thread, n_threads), compiled on first use."""

    def __init__(self, function) -> None:
        """Wrap a plain function; nothing is compiled yet."""
        self.function = function
        self.name = function.__name__
        self._compiled: Any = None

    @property
    def address(self) -> int:
        """Address of the compiled function; compiles, or loads from disk, the first time."""
        if self._compiled is None:
            self._compiled = cfunc(OP_SIGNATURE, nopython=True, error_model="numpy", cache=True)(
                self.function
            )
        return self._compiled.address

    @property
    def is_compiled(self) -> bool:
        """Whether `address` is ready."""
        return self._compiled is not None


def op(function) -> OpKernel:
    """Register a kernel of the executor. `cfunc` compiles when it decorates, so this defers it."""
    return OpKernel(function)
