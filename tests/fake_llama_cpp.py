"""The few functions of llama_cpp that measuring calls, in Python, on its own kind of structures."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np

N_VOCAB = 16


class Library:
    """Says token (t + 1) % N_VOCAB after token t, and writes down what it was asked."""

    __version__ = "9.9.9"

    def __init__(self, *, is_good_file: bool = True) -> None:
        self.is_good_file = is_good_file
        self.steps: list[dict[str, list[int]]] = []
        self.removed: list[tuple[int, int, int]] = []
        self.freed: list[str] = []
        self.params = SimpleNamespace(n_ctx=0, type_k=1, type_v=1, flash_attn_type=-1)
        self.can_remove = True
        self.code = 0

    def llama_log_callback(self, function: object) -> object:
        return function

    def llama_log_set(self, callback: object, data: object) -> None:
        self.log = callback

    def llama_backend_init(self) -> None:
        pass

    def llama_model_default_params(self) -> SimpleNamespace:
        return SimpleNamespace(n_gpu_layers=99)

    def llama_context_default_params(self) -> SimpleNamespace:
        return self.params

    def llama_model_load_from_file(self, path: bytes, params: SimpleNamespace) -> str | None:
        assert params.n_gpu_layers == 0
        return "model" if self.is_good_file else None

    def llama_init_from_model(self, model: str, params: SimpleNamespace) -> str | None:
        return "context" if params.n_ctx < 1 << 20 else None

    def llama_model_get_vocab(self, model: str) -> str:
        return "vocab"

    def llama_vocab_n_tokens(self, vocab: str) -> int:
        return N_VOCAB

    def llama_adapter_lora_init(self, model: str, path: bytes) -> object:
        return ctypes.pointer(ctypes.c_void_p(len(path))) if path.endswith(b".gguf") else None

    def llama_set_adapters_lora(
        self, context: str, pointers: ctypes.Array, n: int, scales: ctypes.Array
    ) -> int:
        self.worn = [(pointers[i].contents.value, scales[i]) for i in range(n)]
        return 0

    def llama_get_memory(self, context: str) -> str:
        return "memory"

    def llama_memory_seq_rm(self, memory: str, seq: int, start: int, stop: int) -> bool:
        self.removed.append((seq, start, stop))
        return self.can_remove

    def llama_batch_init(self, n_tokens: int, embd: int, n_seq_max: int) -> SimpleNamespace:
        ids = [(ctypes.c_int32 * n_seq_max)() for _ in range(n_tokens)]

        def pointer(kind: type) -> object:
            return ctypes.cast((kind * n_tokens)(), ctypes.POINTER(kind))

        return SimpleNamespace(
            n_tokens=0,
            token=pointer(ctypes.c_int32),
            pos=pointer(ctypes.c_int32),
            n_seq_id=pointer(ctypes.c_int32),
            seq_id=ids,
            logits=pointer(ctypes.c_int8),
        )

    def llama_decode(self, context: str, batch: SimpleNamespace) -> int:
        rows = range(batch.n_tokens)
        assert all(batch.n_seq_id[i] == 1 for i in rows)
        self.steps.append(
            {
                "tokens": [batch.token[i] for i in rows],
                "positions": [batch.pos[i] for i in rows],
                "sequences": [batch.seq_id[i][0] for i in rows],
                "outputs": [i for i in rows if batch.logits[i]],
            }
        )
        return self.code

    def llama_synchronize(self, context: str) -> None:
        pass

    def llama_get_logits(self, context: str) -> object:
        step = self.steps[-1]
        logits = np.zeros((len(step["outputs"]), N_VOCAB), np.float32)
        for row, output in enumerate(step["outputs"]):
            logits[row, (step["tokens"][output] + 1) % N_VOCAB] = 1
        self._logits = logits
        return logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def llama_batch_free(self, batch: SimpleNamespace) -> None:
        self.freed.append("batch")

    def llama_free(self, context: str) -> None:
        self.freed.append(context)

    def llama_model_free(self, model: str) -> None:
        self.freed.append(model)
