"""What the server has done, for /metrics in Prometheus' text format 0.0.4."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from quantcli.engine.options import EngineStatus
from quantcli.engine.request import Event

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)

# Name: (type, field of EngineStatus, help).
_FROM_ENGINE = {
    "requests_running": ("gauge", "n_running", "Answers that are computed."),
    "requests_waiting": ("gauge", "n_waiting", "Answers that wait for room in the cache."),
    "requests_total": ("counter", "n_requests", "Requests that the engine took."),
    "steps_total": ("counter", "n_steps", "Forward passes."),
    "prompt_tokens_total": ("counter", "n_prompt", "Prompt tokens taken."),
    "generation_tokens_total": ("counter", "n_generated", "Tokens generated."),
    "prefix_cache_queries_total": ("counter", "n_prompt", "Tokens looked for in the prefix cache."),
    "prefix_cache_hits_total": ("counter", "n_reused", "Tokens found in the prefix cache."),
    "preemptions_total": ("counter", "n_preempted", "Times that an answer had to make room."),
    "spec_decode_num_draft_tokens_total": ("counter", "n_drafted", "Tokens drafted."),
    "spec_decode_num_accepted_tokens_total": ("counter", "n_accepted", "Drafted tokens accepted."),
    "step_seconds_total": ("counter", "step_s", "Seconds in forward passes."),
    "busy_seconds_total": ("counter", "busy_s", "Seconds that the engine worked."),
}


class Histogram:
    """Counts of values up to each of some bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start with nothing counted; bounds ascend."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples of a histogram."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts what passes: steps in the engine's thread, the rest in the loop's."""

    def __init__(self) -> None:
        """Start at zero."""
        self._first_token = Histogram(_LONG)
        self._between_tokens = Histogram(_SHORT)
        self._whole = Histogram(_LONG)
        self._queue = Histogram(_LONG)
        self._finished: Counter[str] = Counter()
        self._responses: Counter[int] = Counter()

    def take(self, event: Event) -> None:
        """Count what the last event of an answer tells."""
        if event.finish is None:
            return
        self._finished[str(event.finish)] += 1
        stats = event.stats
        if stats is not None:
            self._queue.add(stats.queue_s)
            self._whole.add(stats.queue_s + stats.prompt_s + stats.decode_s)
            if stats.first_token_s is not None:
                self._first_token.add(stats.first_token_s)

    def take_step(self, seconds: float, n_tokens: int) -> None:
        """Count the time from one step to the next, once for each token that came of it."""
        self._between_tokens.add(seconds, n_tokens)

    def take_response(self, status: int) -> None:
        """Count a response."""
        self._responses[status] += 1

    def text(self, status: EngineStatus | None) -> str:
        """Return everything in Prometheus' format."""
        lines: list[str] = []
        if status is not None:
            for name, (kind, source, about) in _FROM_ENGINE.items():
                lines += _head(name, kind, about)
                lines.append(f"quantcli_{name} {getattr(status, source)}")
            lines += _head("kv_cache_usage_ratio", "gauge", "Part of the cache that is held.")
            lines.append(
                f"quantcli_kv_cache_usage_ratio {status.n_slots_used / max(1, status.n_slots)}"
            )
        histograms = {
            "time_to_first_token_seconds": (self._first_token, "From submission to first token."),
            "inter_token_latency_seconds": (self._between_tokens, "Between two tokens."),
            "e2e_request_latency_seconds": (self._whole, "From submission to last token."),
            "request_queue_time_seconds": (self._queue, "Waiting for the engine."),
        }
        for name, (histogram, about) in histograms.items():
            lines += [*_head(name, "histogram", about), *histogram.lines(f"quantcli_{name}")]
        lines += _head("request_success_total", "counter", "Answers by why they ended.")
        for reason, n in sorted(self._finished.items()):
            lines.append(f'quantcli_request_success_total{{finish_reason="{reason}"}} {n}')
        lines += _head("http_responses_total", "counter", "Responses by status.")
        for code, n in sorted(self._responses.items()):
            lines.append(f'quantcli_http_responses_total{{code="{code}"}} {n}')
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, about: str) -> tuple[str, str]:
    return (f"# HELP quantcli_{name} {about}", f"# TYPE quantcli_{name} {kind}")
