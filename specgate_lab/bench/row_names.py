"""The names of the benchmark's rows, each a variant or the best of several. Pure."""

from collections.abc import Sequence

from specgate_lab.experiment import Sample, Samples
from specgate_lab.peers.hf_assisted import SCHEDULES

DRAFT = "draft"
TARGET_HF = "target-hf"
TARGET_HF_ALL_CORES = "target-hf-all-cores"
HF_ASSISTED = "hf-assisted"
HF_ASSISTED_ALL_CORES = "hf-assisted-all-cores"
LLAMA_CPP = "llama-cpp"
LLAMA_CPP_ALL_CORES = "llama-cpp-all-cores"
LLAMA_CPP_DRAFT = "llama-cpp-draft"
LLAMA_CPP_ROWS = (LLAMA_CPP, LLAMA_CPP_ALL_CORES, LLAMA_CPP_DRAFT)
"""Of a GGUF file: the target alone on one core and on all, and with its own speculation, on all."""
TARGET = "target"
SPEC = "spec"
SPEC_GATE = "spec+gate"
SPEC_AHEAD = "spec+run-ahead"
SPEC_AHEAD_AUTO = "spec+run-ahead+auto"
PAIR_ROWS = (TARGET, SPEC, SPEC_GATE, SPEC_AHEAD, SPEC_AHEAD_AUTO)
"""What goes through our services."""
ROW_NAMES = (DRAFT, TARGET_HF, TARGET_HF_ALL_CORES, HF_ASSISTED, HF_ASSISTED_ALL_CORES, *LLAMA_CPP_ROWS, *PAIR_ROWS)
AHEAD_ROWS = (SPEC_AHEAD, SPEC_AHEAD_AUTO)
"""Where there are any, all other rows have a drafter that does not run ahead."""
RIVALS = dict.fromkeys(AHEAD_ROWS, (SPEC, HF_ASSISTED, HF_ASSISTED_ALL_CORES, *LLAMA_CPP_ROWS))
"""What a row is compared with, beside the target."""
SCHEDULED_ROWS = (HF_ASSISTED, HF_ASSISTED_ALL_CORES)
"""Measured once a schedule of ``hf_assisted``; the better one is the row."""


def scheduled(name: str, schedule: str) -> str:
    """Return the name of one of the variants that a scheduled row is the better one of."""
    return f"{name} ({schedule})"


def by_schedule(samples: Samples, name: str) -> dict[str, Sequence[Sample]]:
    """Return the samples of a scheduled row, by schedule."""
    return {one: samples[own] for one in SCHEDULES if (own := scheduled(name, one)) in samples}
