"""What is asked of a pair: the requests of every check, and the settings under which they are repeated."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import MAX_LOGPROBS, Grammar, GrammarKind, SamplingParams, Verification
from specgate_lab.gate_choice import TARGET_ALONE, GateChoice

GAMMAS = (1, 4, 8)
GATES = (Gate.NONE, Gate.TARGET_CONFIDENCE, Gate.DRAFT_CONFIDENCE, Gate.AUTO)
BATCH = 8
"""Requests that run at once where they run together; the references run one by one."""
WORDS_AND_NUMBERS = Grammar(GrammarKind.REGEX, "([a-z]{1,8} [0-9]{1,4} )*")
"""It never ends, and every few tokens it forbids what a model would write."""
SEEDED = {
    "temperature 1": (SamplingParams(), None),
    "top-p 0.9": (SamplingParams(top_p=0.9), None),
    "a grammar": (SamplingParams(), WORDS_AND_NUMBERS),
}
REJECTION_GAMMA = 4
REJECTION_TOKENS = 4
"""Short texts: the first three tokens are judged in one round, the last one mostly ends another."""
JOINT_TOKENS = 3
REJECTION_PROMPTS = 3
REJECTION_BATCH = 16


class Setting(NamedTuple):
    """How a text is made. The text may not depend on any of it."""

    choice: GateChoice
    batch: int = BATCH

    def __str__(self) -> str:
        return f"γ {self.choice.gamma}, gate {self.choice.gate}, {self.batch} at once"


GREEDY_SETTINGS = tuple(Setting(GateChoice(gate, gamma)) for gamma in GAMMAS for gate in GATES)
ONE_BY_ONE = tuple(Setting(GateChoice(gate, gamma), 1) for gamma, gate in zip(cycle(GAMMAS), GATES, strict=False))
"""Every γ and every gate; all combinations one by one would take longer than the rest of a proof."""
SEEDED_SETTINGS = GREEDY_SETTINGS + ONE_BY_ONE


def greedy_request(prompt_token_ids: Sequence[int], max_tokens: int) -> GenerationRequest:
    """Return a request of the target alone, greedy, with the logprobs that margins and first tokens are read from."""
    alone = seeded_request(prompt_token_ids, SamplingParams(temperature=0.0), max_tokens, seed=0)
    return replace(alone, logprobs=MAX_LOGPROBS)


def seeded_request(
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
    max_tokens: int,
    seed: int,
    grammar: Grammar | None = None,
) -> GenerationRequest:
    """Return a request of the target alone with shared noise.

    It goes on past the end-of-sequence token, so that every text is equally long and none is compared by its end alone.
    """
    request = GenerationRequest(tuple(prompt_token_ids), sampling, max_tokens, seed, ignore_eos=True, grammar=grammar)
    return TARGET_ALONE.of(request)


def rejection_requests(
    prompt_token_ids: Sequence[int], samples: int
) -> tuple[list[GenerationRequest], list[GenerationRequest]]:
    """Return requests of the target alone, and of speculation with other seeds and the gates in turn."""
    first = seeded_request(prompt_token_ids, SamplingParams(), REJECTION_TOKENS, seed=0)
    requests = [replace(first, seed=seed, verification=Verification.REJECTION) for seed in range(2 * samples)]
    speculating = [
        replace(request, gamma=REJECTION_GAMMA, gate=gate, logprobs=MAX_LOGPROBS)
        for request, gate in zip(requests[samples:], cycle(GATES), strict=False)
    ]
    return requests[:samples], speculating
