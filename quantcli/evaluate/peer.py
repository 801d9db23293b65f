"""Another program's model behind the interface that measuring needs, to take turns with ours.

The program is no dependency: it is imported only when asked for, and said to be missing if it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from quantcli import formats
from quantcli.errors import QuantcliError, ResourceError, UnknownName, UsageError
from quantcli.evaluate.throughput import F32
from quantcli.runtime.model import Batch

PEERS = ("llama-cpp-python",)

# What of llama_cpp is used; versions before 0.3.16 lack some of it.
_FUNCTIONS = (
    "llama_model_load_from_file",
    "llama_init_from_model",
    "llama_get_memory",
    "llama_memory_seq_rm",
    "llama_batch_init",
    "llama_decode",
    "llama_synchronize",
    "llama_get_logits",
)


def load_library(name: str) -> ModuleType:
    """Return the peer's module.

    Raises UnknownName for a peer that is none, UsageError for one that is not installed, too old
    or broken.
    """
    if name not in PEERS:
        raise UnknownName("peer", name, PEERS)
    try:
        import llama_cpp
    except ImportError as error:
        raise UsageError(
            f"{name} is not installed in this environment ({error}). Install it with "
            f"'pip install {name}', or leave --peer out."
        ) from error
    except (OSError, RuntimeError, AttributeError) as error:
        raise UsageError(f"{name} cannot be loaded: {error}. Install it again.") from error
    missing = [function for function in _FUNCTIONS if not hasattr(llama_cpp, function)]
    if missing:
        version = getattr(llama_cpp, "__version__", "of unknown version")
        raise UsageError(f"{name} {version} has no {missing[0]}. Install 0.3.16 or newer.")
    module: ModuleType = llama_cpp
    return module


class _Sequences:
    """Its KV cache."""

    def __init__(self, library: Any, context: Any) -> None:
        self._library = library
        self._memory = library.llama_get_memory(context)

    def reserve(self, seq: int, n_tokens: int) -> None:
        """Do nothing: it finds slots itself."""

    def truncate(self, seq: int, n_tokens: int) -> None:
        """Keep the first n_tokens of a sequence."""
        if not self._library.llama_memory_seq_rm(self._memory, seq, n_tokens, -1):
            raise QuantcliError(f"the peer cannot drop a sequence's tokens from {n_tokens} on.")

    def free(self, seq: int) -> None:
        """Forget a sequence."""
        self._library.llama_memory_seq_rm(self._memory, seq, -1, -1)


class Peer:
    """A model that llama.cpp runs, through its Python binding."""

    def __init__(
        self,
        library: ModuleType,
        path: Path,
        *,
        context: int,
        n_threads: int,
        kv_type: str = "f16",
        n_sequences: int = 1,
        adapters: Sequence[tuple[Path, float]] = (),
    ) -> None:
        """Load a file with the settings that our own model has, and its own defaults elsewhere.

        adapters   GGUF files of LoRA adapters, and their scales

        Raises ResourceError if it cannot.
        """
        self._library: Any = library
        self._silence = library.llama_log_callback(lambda level, text, data: None)
        library.llama_log_set(self._silence, None)
        library.llama_backend_init()
        params = library.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ResourceError(f"llama.cpp cannot load {path.name}.")
        asked = self._context_params(context, n_threads, kv_type, n_sequences)
        self._context = library.llama_init_from_model(self._model, asked)
        if not self._context:
            library.llama_model_free(self._model)
            raise ResourceError(f"llama.cpp cannot make a context of {context} for {path.name}.")
        if adapters:
            self._wear(adapters)
        self.name = f"llama-cpp-python {library.__version__}"
        self.n_vocab = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model)))
        self.context = context
        self.max_rows = int(asked.n_ubatch)
        self.kv = _Sequences(library, self._context)
        self._batch = library.llama_batch_init(self.max_rows, 0, 1)
        shape = (self.max_rows,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        self._sequences: list[int] = []  # as last written into the batch

    def forward(self, batch: Batch) -> F32:
        """Return f32 (n_outputs, n_vocab), the logits of the rows that want them."""
        n, library = len(batch.tokens), self._library
        self._tokens[:n] = batch.tokens
        self._positions[:n] = batch.positions
        self._wanted[:n] = 0
        self._wanted[batch.outputs] = 1
        if batch.sequences != self._sequences:
            self._sequences = list(batch.sequences)
            for i, sequence in enumerate(self._sequences):
                self._batch.seq_id[i][0] = sequence
        self._batch.n_tokens = n
        code = library.llama_decode(self._context, self._batch)
        if code:
            raise ResourceError(f"llama.cpp could not compute a step of {n} rows: code {code}.")
        library.llama_synchronize(self._context)
        n_outputs = len(batch.outputs)
        if not n_outputs:
            return np.empty((0, self.n_vocab), np.float32)
        logits = library.llama_get_logits(self._context)
        pointer = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (n_outputs, self.n_vocab))

    def close(self) -> None:
        """Give its memory back."""
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _wear(self, adapters: Sequence[tuple[Path, float]]) -> None:
        """Apply adapters. Raises ResourceError if it cannot."""
        library, n = self._library, len(adapters)
        found = [
            library.llama_adapter_lora_init(self._model, str(path).encode()) for path, _ in adapters
        ]
        scales = (ctypes.c_float * n)(*(scale for _, scale in adapters))
        is_done = all(found) and hasattr(library, "llama_set_adapters_lora")
        if is_done:
            pointers = (type(found[0]) * n)(*found)
            is_done = library.llama_set_adapters_lora(self._context, pointers, n, scales) == 0
        if not is_done:
            library.llama_free(self._context)
            library.llama_model_free(self._model)
            names = ", ".join(path.name for path, _ in adapters)
            raise ResourceError(f"llama.cpp cannot apply {names}; leave --peer or --lora out.")

    def _context_params(self, context: int, n_threads: int, kv_type: str, n_sequences: int) -> Any:
        params = self._library.llama_context_default_params()
        params.n_ctx = context * n_sequences
        params.n_seq_max = n_sequences
        params.n_batch = params.n_ubatch = max(512, n_sequences)
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = formats.get(kv_type).ggml_id
        if kv_type != "f16" and hasattr(params, "flash_attn_type"):
            params.flash_attn_type = 1  # quantized values need it
        return params
