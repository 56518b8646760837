"""Metrics of the rounds of all requests. The four ``spec_decode`` counters have vLLM's meaning."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from specgate.types import DraftMethod, RoundRecord

CONFIDENCE_BOUNDS = tuple(tenth / 10 for tenth in range(1, 11))
SECONDS_BOUNDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
"""From a small model on a card to a large one on a slow link."""
PHASES = ("draft", "verify", "round", "solo")


class Buckets:
    """A histogram. To add a value costs one bisection."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return the number of values up to each bound, as Prometheus has it, and the sum of all values."""
        below, buckets = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        return buckets, self._sum


class RoundMetrics:
    """Counts the records of all sessions. The numbers become metrics when Prometheus asks.

    A record costs some microseconds, a hundredth of the shortest round. All calls come from one thread.

    Args:
        model_name: the label of all metrics.
    """

    def __init__(self, model_name: str) -> None:
        self._labels = [model_name]
        self._counts: Counter[str] = Counter()
        self._accepted_at = [0] * 64
        """Accepted draft tokens by their position in the proposal, from 0."""
        self._sources: Counter[str] = Counter()
        self._decisions: Counter[str] = Counter()
        self._lost: Counter[tuple[str, str]] = Counter()
        self._confidence = Buckets(CONFIDENCE_BOUNDS)
        self._seconds = {phase: Buckets(SECONDS_BOUNDS) for phase in PHASES}

    def on_record(self, record: RoundRecord) -> None:
        """Count a committed verdict."""
        verdict = record.verdict
        self._counts["near_ties"] += verdict.near_ties
        self._confidence.add(verdict.confidence)
        if record.undrafted:
            self._sources["solo"] += record.num_tokens
            self._seconds["solo"].add(verdict.verify_us / 1e6)
            self._decisions["solo" if verdict.solo or not record.plan.gamma else "no_draft"] += 1
        else:
            self._on_round(record)

    def _on_round(self, record: RoundRecord) -> None:
        proposal, accepted = record.proposal, record.num_accepted
        is_cut = any(one < record.plan.stop_below for one in proposal.draft_confidences)
        self._decisions["cut" if is_cut else "draft"] += 1
        self._counts["drafts"] += 1
        self._counts["draft_tokens"] += len(proposal)
        self._counts["accepted_tokens"] += accepted
        for position in range(accepted):
            self._accepted_at[position] += 1
        self._counts["run_ahead_hits"] += proposal.from_run_ahead
        self._counts["follow_ups"] += record.verdict.follow_up > 0
        self._sources[_ACCEPTED.get(proposal.method, "accepted")] += accepted
        own = "bonus" if record.verdict.num_accepted == len(proposal) else "recovered"
        self._sources[own] += record.num_tokens - accepted
        self._seconds["draft"].add(proposal.draft_us / 1e6)
        self._seconds["verify"].add(record.verdict.verify_us / 1e6)
        self._seconds["round"].add(record.timing.round_us / 1e6)

    def on_loss(self, role: str, error: BaseException | None) -> None:
        """Count a service that a request lost, and replaced or continued without."""
        self._lost[role, getattr(error, "reason", "INTERNAL")] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; see ``prometheus_client.registry.Collector``."""
        yield from map(self._counter, _COUNTERS)
        positions = {str(i): count for i, count in enumerate(self._accepted_at) if count}
        yield self._family("spec_decode_num_accepted_tokens_per_pos", "position", positions)
        yield self._family("tokens", "source", self._sources)
        yield self._family("gate_decisions", "decision", self._decisions)
        yield self._losses()
        yield self._histogram("target_confidence", {"": self._confidence})
        yield self._histogram("round_seconds", self._seconds)

    def _counter(self, name: str) -> Metric:
        key = name.removeprefix("spec_decode_num_")
        family = CounterMetricFamily(f"specgate_{name}", _HELP[name], labels=["model_name"])
        family.add_metric(self._labels, self._counts[key])
        return family

    def _family(self, name: str, label: str, counts: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(f"specgate_{name}", _HELP[name], labels=["model_name", label])
        for value, count in counts.items():
            family.add_metric([*self._labels, value], count)
        return family

    def _losses(self) -> Metric:
        labels = ["model_name", "service", "reason"]
        family = CounterMetricFamily("specgate_fallbacks", _HELP["fallbacks"], labels=labels)
        for of, count in self._lost.items():
            family.add_metric([*self._labels, *of], count)
        return family

    def _histogram(self, name: str, values: Mapping[str, Buckets]) -> Metric:
        labels = ["model_name", "phase"] if len(values) > 1 else ["model_name"]
        family = HistogramMetricFamily(f"specgate_{name}", _HELP[name], labels=labels)
        for phase, buckets in values.items():
            counts, total = buckets.cumulative()
            family.add_metric([*self._labels, phase][: len(labels)], buckets=counts, sum_value=total)
        return family


_ACCEPTED = {DraftMethod.LAYER_SKIP: "accepted_layer_skip", DraftMethod.SUFFIX: "accepted_suffix"}
_COUNTERS = (
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "run_ahead_hits",
    "follow_ups",
    "near_ties",
)
_HELP = {
    "spec_decode_num_drafts": "Rounds with a proposal.",
    "spec_decode_num_draft_tokens": "Draft tokens proposed.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted; bonus tokens are none.",
    "spec_decode_num_accepted_tokens_per_pos": "Draft tokens accepted, by their position in the proposal from 0.",
    "run_ahead_hits": "Rounds whose whole proposal was drafted before it was asked for.",
    "follow_ups": "Rounds that the target went on with by itself.",
    "near_ties": "Choices that rounding may decide: between two scores, or at the edge of a filter.",
    "tokens": "Tokens emitted, by who brought them.",
    "gate_decisions": "Verdicts by what the gate decided: draft, cut (a shorter draft), solo; no_draft: none came.",
    "fallbacks": "Services that requests lost and went on without or replaced, by which and why.",
    "target_confidence": "The target's probability of the last token of each verdict.",
    "round_seconds": "Time of each phase: draft, verify, the whole round; solo: a verdict without a draft.",
}
