"""Metrics of requests, from arrival to end: vLLM's names and meanings with our prefix."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from orchestrator.decode.request import Delta, GenerationStats
from specgate.errors import SpecgateError

FAST_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
SLOW_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""All three are vLLM's: its dashboards expect them."""
ABORTED, FAILED = "abort", "error"
"""vLLM's names for a request whose client left or asked for something impossible, and for one that we failed."""


class RequestMetrics:
    """Histograms of all requests of one gateway."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        def histogram(name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
            made = Histogram(f"specgate_{name}", meaning, ["model_name"], buckets=buckets, registry=registry)
            return made.labels(model_name)

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"specgate_{name}", meaning, ["model_name", *labels], registry=registry)

        self._model_name = model_name
        self.first_token_s = histogram("time_to_first_token_seconds", "From arrival to the first token.", FAST_S)
        self.inter_token_s = histogram("inter_token_latency_seconds", "Between two deltas, a token of them.", FAST_S)
        self.whole_s = histogram("e2e_request_latency_seconds", "From arrival to the end.", SLOW_S)
        self.queued_s = histogram("request_queue_time_seconds", "From arrival to the turn.", SLOW_S)
        self.decoding_s = histogram("request_decode_time_seconds", "From the first token to the last.", SLOW_S)
        self.num_prompt_tokens = histogram("request_prompt_tokens", "Tokens of each prompt.", TOKENS)
        self.num_tokens = histogram("request_generation_tokens", "Tokens of each answer.", TOKENS)
        self.prompt_tokens = counter("prompt_tokens", "Tokens of all prompts.").labels(model_name)
        self.prompt_tokens_cached = counter(
            "prompt_tokens_cached", "Tokens of all prompts that a verifier did not compute."
        ).labels(model_name)
        self.generation_tokens = counter("generation_tokens", "Tokens emitted.").labels(model_name)
        self._ended = counter("request_success", "Requests that ended, by how.", "finished_reason")
        self._rejected = counter("requests_rejected", "Requests that were not let in, by reason.", "reason")

    def begin(self, clock: Callable[[], float] = time.perf_counter) -> "RequestTimer":
        """Return the timer of a request that has arrived."""
        return RequestTimer(self, clock)

    def ended(self, finish_reason: str) -> None:
        """Count a request that has ended."""
        self._ended.labels(self._model_name, finish_reason).inc()

    def rejected(self, error: SpecgateError) -> None:
        """Count a request that was not admitted."""
        self._rejected.labels(self._model_name, error.reason).inc()


class RequestTimer:
    """The times of one request, in seconds of ``clock``."""

    def __init__(self, metrics: RequestMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self.came_s = clock()
        self._first_s: float | None = None
        self._last_s = self.came_s
        self._finish_reason = ABORTED

    def let_in(self) -> float:
        """Count that its turn has come; return when."""
        turn_s = self._clock()
        self._metrics.queued_s.observe(turn_s - self.came_s)
        return turn_s

    def on_delta(self, delta: Delta) -> None:
        """Tokens were committed."""
        now_s = delta.committed_s
        if not delta.token_ids and delta.finish_reason is None:
            return
        if self._first_s is None:
            self._first_s = now_s
            self._metrics.first_token_s.observe(now_s - self.came_s)
        elif delta.token_ids:
            self._metrics.inter_token_s.observe((now_s - self._last_s) / len(delta.token_ids))
        self._metrics.generation_tokens.inc(len(delta.token_ids))
        self._last_s = now_s
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason

    def on_failure(self) -> None:
        """No more tokens will come."""
        self._finish_reason = FAILED

    def end(self, stats: GenerationStats) -> None:
        """It has ended, or was given up after its turn had come."""
        metrics = self._metrics
        metrics.ended(self._finish_reason)
        metrics.whole_s.observe(self._clock() - self.came_s)
        metrics.num_prompt_tokens.observe(stats.prompt_tokens)
        metrics.prompt_tokens.inc(stats.prompt_tokens)
        metrics.prompt_tokens_cached.inc(stats.cached_tokens)
        metrics.num_tokens.observe(stats.completion_tokens)
        if self._first_s is not None:
            metrics.decoding_s.observe(self._last_s - self._first_s)
