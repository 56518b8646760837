"""Whether all ways to decode wrote the same text, where they must. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from orchestrator.decode.request import GenerationRequest
from specgate.types import SamplingParams
from specgate_lab.bench.row_names import HF_ASSISTED, PAIR_ROWS, SCHEDULED_ROWS, TARGET_HF, by_schedule
from specgate_lab.experiment import Sample, Samples


@dataclass(frozen=True, slots=True)
class TextAgreement:
    """For how many prompts all of ``names`` gave the same tokens."""

    names: tuple[str, ...]
    equal: int
    total: int

    @property
    def holds(self) -> bool:
        return self.equal == self.total


def promised_agreement(
    samples: Samples, requests: Sequence[GenerationRequest], ours: Sequence[str] = PAIR_ROWS
) -> TextAgreement | None:
    """Compare the texts that are promised to be equal; rejection above temperature 0 promises a law, no text.

    Args:
        ours: the rows that go through our services.
    """
    if any(one.rejects for one in requests):
        return None
    # HuggingFace draws in its own way, and its loops know nothing of penalties and biases.
    is_plain = all(one.sampling == SamplingParams(temperature=0.0) for one in requests)
    names = (TARGET_HF, HF_ASSISTED, *ours) if is_plain else tuple(ours)
    present = {name: own for name in names if (own := _samples_of(samples, name))}
    texts: defaultdict[int, set[tuple[int, ...]]] = defaultdict(set)
    for sample in chain.from_iterable(present.values()):
        texts[sample.case].add(sample.token_ids)
    return TextAgreement(tuple(present), sum(len(own) == 1 for own in texts.values()), len(texts))


def _samples_of(samples: Samples, name: str) -> Sequence[Sample]:
    """Return a row's samples, those of all schedules."""
    if name in SCHEDULED_ROWS:
        return [sample for own in by_schedule(samples, name).values() for sample in own]
    return samples.get(name, ())
