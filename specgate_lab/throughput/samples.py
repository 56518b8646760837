"""What the benchmark measures: the names of its rows, its samples, and the rates that they make. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.decode.request import GenerationStats
from orchestrator.terminal.results import Result
from specgate_lab.peers.hf_assisted import SCHEDULES

DRAFT = "draft"
TARGET_HF = "target-hf"
TARGET_HF_ALL_CORES = "target-hf-all-cores"
HF_ASSISTED = "hf-assisted"
HF_ASSISTED_ALL_CORES = "hf-assisted-all-cores"
TARGET = "target"
SPEC = "spec"
SPEC_OBSERVED = "spec+observed"
SPEC_GATE = "spec+gate"
SPEC_AHEAD = "spec+run-ahead"
SPEC_AHEAD_AUTO = "spec+run-ahead+auto"
ROW_NAMES = (
    DRAFT,
    TARGET_HF,
    TARGET_HF_ALL_CORES,
    HF_ASSISTED,
    HF_ASSISTED_ALL_CORES,
    TARGET,
    SPEC,
    SPEC_OBSERVED,
    SPEC_GATE,
    SPEC_AHEAD,
    SPEC_AHEAD_AUTO,
)
PAIR_ROWS = (TARGET, SPEC, SPEC_OBSERVED, SPEC_GATE, SPEC_AHEAD, SPEC_AHEAD_AUTO)
"""What goes through our services."""
AHEAD_ROWS = (SPEC_AHEAD, SPEC_AHEAD_AUTO)
"""Where there are any, all other rows have a drafter that does not run ahead."""
RIVALS = {SPEC_OBSERVED: (SPEC,), **dict.fromkeys(AHEAD_ROWS, (SPEC, HF_ASSISTED, HF_ASSISTED_ALL_CORES))}
"""What a row is compared with, beside the target."""
SCHEDULED_ROWS = (HF_ASSISTED, HF_ASSISTED_ALL_CORES)
"""Measured once a schedule of ``hf_assisted``; the better one is the row."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt decoded once, in one way; prefill and the first delta are left out of the times.

    ``traffic_bytes`` went over both links after the openings, where that was counted.
    """

    prompt: int
    repeat: int
    token_ids: tuple[int, ...]
    decode_tokens: int
    decode_s: float
    stats: GenerationStats | None = None
    traffic_bytes: int | None = None

    @classmethod
    def of(cls, result: Result, prompt: int, repeat: int, traffic_bytes: int | None = None) -> "Sample":
        """Return the sample that a finished request makes."""
        seconds = result.last_s - result.first_s
        return cls(prompt, repeat, result.token_ids, result.decode_tokens, seconds, result.stats, traffic_bytes)


Samples = Mapping[str, Sequence[Sample]]
"""By the name of the row; those of ``SCHEDULED_ROWS`` by ``scheduled(name, schedule)``."""


def scheduled(name: str, schedule: str) -> str:
    """Return the name of one of the ways that a scheduled row is the better one of."""
    return f"{name} ({schedule})"


def by_schedule(samples: Samples, name: str) -> dict[str, Sequence[Sample]]:
    """Return the samples of a scheduled row, by schedule."""
    ways = {schedule: scheduled(name, schedule) for schedule in SCHEDULES}
    return {schedule: samples[way] for schedule, way in ways.items() if way in samples}


def rates_of(samples: Sequence[Sample]) -> list[float]:
    """Return the tokens a second of each repeat, over all its prompts."""
    rates = []
    for repeat in sorted({sample.repeat for sample in samples}):
        same = [sample for sample in samples if sample.repeat == repeat]
        seconds = sum(sample.decode_s for sample in same)
        rates.append(sum(sample.decode_tokens for sample in same) / seconds if seconds > 0 else 0.0)
    return rates
