"""lm-eval's local-completions against the server, and our own log-likelihoods: the same numbers.

Where lm-eval is installed: it is in the extra `clients`, which .ci/run installs.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from running_server import tokenizer
from tiny import write_tiny

from quantcli.checkpoint import open_checkpoint
from quantcli.engine.loop import Engine
from quantcli.evaluate.rows import predictions, sums, target_logits
from quantcli.runtime.model import Model
from quantcli.server.runner import Runner
from quantcli.server.served import Served
from quantcli.server.service import Service
from quantcli.server.serving import Server, address, bound
from quantcli.server.settings import Settings
from quantcli.text.chat import ChatTemplate

PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a cat in the rain"),
    ("One two three", " four"),
    ("é\U0001f600", " <|im_end|>"),
]


def own(model: Model, context: str, continuation: str) -> tuple[float, bool]:
    """Return the log-likelihood of a continuation, and whether it is the likeliest one."""
    tokens = tokenizer()
    ids = tokens.encode(context, add_special=False, parse_special=True)
    whole = tokens.encode(context + continuation, add_special=False, parse_special=True)
    assert whole[: len(ids)] == ids
    total, is_greedy = 0.0, True
    for row, logits in predictions(model, whole[:-1], first=len(ids) - 1):
        known = sums(model, logits)
        targets = whole[row + 1 : row + 1 + len(logits)]
        total += float((target_logits(logits, targets) - known.log_total).sum())
        is_greedy &= known.likeliest.tolist() == targets
    model.kv.free(0)
    return total, is_greedy


@pytest.mark.jit
@pytest.mark.filterwarnings("ignore")
def test_local_completions_gives_our_own_log_likelihoods(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="needs pip install .[clients]")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    path = write_tiny(tmp_path / "m.gguf", "llama", tokenizer="bpe")
    with open_checkpoint(path) as checkpoint:
        model = Model.load(checkpoint, n_threads=1, n_sequences=4, cache="paged")
        expected = [own(model, *pair) for pair in PAIRS]
        engine = Engine(model, tokenizer())
        served = Served("tiny", tokenizer(), ChatTemplate("x"), {}, model.context, model.context)
        service = Service(served, Runner(engine), Settings(port=0, grace_s=0.1), 4)
        listener = bound("127.0.0.1", 0)
        server = Server(service, listener)
        ready = threading.Event()
        serving = threading.Thread(target=server.run, args=(ready.set,))
        found: list[tuple[float, bool]] = []

        def ask() -> None:
            ready.wait()
            url = address(listener) + "/v1/completions"
            client = LocalCompletionsAPI(base_url=url, model="tiny", num_concurrent=1)
            requests = [Instance("loglikelihood", {}, pair, 0) for pair in PAIRS]
            found.extend(client.loglikelihood(requests, disable_tqdm=True))
            server.stop()

        asking = threading.Thread(target=ask)
        serving.start()
        asking.start()
        service.runner.run()  # in the thread that loaded the model
        asking.join()
        serving.join()
        model.close()
    for (log_likelihood, is_greedy), (own_value, own_greedy) in zip(found, expected, strict=True):
        assert log_likelihood == pytest.approx(own_value, abs=1e-4)
        assert is_greedy == own_greedy
