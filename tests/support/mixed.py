"""All kinds of requests, to run side by side: every setting that a text depends on, prompts that share prefixes."""

from collections.abc import Sequence

from specgate.types import ALWAYS_SOLO, SamplingParams
from tests.support.sessions import Plan

PLANS = {
    "one by one": Plan(),
    "gamma 1": Plan(1),
    "gamma 4": Plan(4),
    "gamma 8": Plan(8),
    "gamma 4, gate": Plan(4, solo_below=0.2),
    "gamma 8, gate, short solo runs": Plan(8, solo_below=0.3, max_solo_tokens=2),
    "gamma 8, draft confidence": Plan(8, stop_below=0.05),
    "gamma 4, overtaken at once": Plan(4, solo_below=ALWAYS_SOLO, max_solo_tokens=4, overtake=0),
    "gamma 4, overtaken by one": Plan(4, solo_below=0.4, max_solo_tokens=2, overtake=1),
    "gamma 8, overtaken by three": Plan(8, solo_below=ALWAYS_SOLO, max_solo_tokens=4, overtake=3),
}
SAMPLINGS = {
    "plain": SamplingParams(),
    "greedy": SamplingParams(temperature=0.0),
    "cool": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=1.2, top_k=6),
    "top-p": SamplingParams(top_p=0.8),
    "min-p": SamplingParams(temperature=0.8, min_p=0.1),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.3),
    "greedy with penalties": SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.5),
    "bias": SamplingParams(logit_bias={3: 2.0, 9: -100.0, 40: 1.0}),
    "all": SamplingParams(0.9, 20, 0.95, 0.02, 1.1, 0.2, -0.1, {3: 1.0}),
}


def sharing_prompts(stream: Sequence[int], lengths: Sequence[int], num_groups: int) -> list[tuple[int, ...]]:
    """Return prompts of these lengths: those of a group begin alike, and every other one goes on in its own way.

    Args:
        stream: where the tokens come from; ``num_groups`` times the longest length, or more of them.
    """
    longest, prompts = max(lengths), []
    for index, length in enumerate(lengths):
        first, num_own = index % num_groups * longest, index % 2 * length // 4
        own_first = index * (len(stream) - longest) // len(lengths)
        head = stream[first : first + length - num_own]
        prompts.append((*head, *stream[own_first : own_first + num_own]))
    return prompts
