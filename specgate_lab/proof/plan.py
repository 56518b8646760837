"""What is asked of a pair: the requests of every check, and the settings under which they are repeated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import MAX_LOGPROBS, Grammar, GrammarKind, SamplingParams, Verification

GAMMAS = (1, 4, 8)
GATES = (Gate.NONE, Gate.TARGET_CONFIDENCE, Gate.DRAFT_CONFIDENCE, Gate.AUTO)
BATCH = 8
"""How many requests run at once where they run together; the references run one by one."""
WORDS_AND_NUMBERS = Grammar(GrammarKind.REGEX, "([a-z]{1,8} [0-9]{1,4} )*")
"""It goes on for ever, and every few tokens it forbids what a model would write, by what came before."""
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


@dataclass(frozen=True, slots=True)
class Setting:
    """How a text is made; it may not depend on any of this."""

    gamma: int
    gate: Gate
    batch: int = BATCH

    def __str__(self) -> str:
        return f"γ {self.gamma}, gate {self.gate}, {self.batch} at once"

    def of(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request, made this way."""
        return replace(request, gamma=self.gamma, gate=self.gate, logprobs=None)


GREEDY_SETTINGS = tuple(Setting(gamma, gate) for gamma in GAMMAS for gate in GATES)
ONE_BY_ONE = tuple(Setting(gamma, gate, 1) for gamma, gate in zip(cycle(GAMMAS), GATES, strict=False))
"""Every γ and every gate; to run all of them alone takes longer than all the rest of a proof."""
SEEDED_SETTINGS = GREEDY_SETTINGS + ONE_BY_ONE


def greedy_request(prompt_token_ids: Sequence[int], max_tokens: int) -> GenerationRequest:
    """Return the target alone, greedy, with what its margins and its first token's law are read from."""
    sampling = SamplingParams(temperature=0.0)
    return replace(_alone(prompt_token_ids, sampling, max_tokens, seed=0), logprobs=MAX_LOGPROBS)


def seeded_request(
    prompt_token_ids: Sequence[int],
    sampling: SamplingParams,
    max_tokens: int,
    seed: int,
    grammar: Grammar | None = None,
) -> GenerationRequest:
    """Return the target alone with shared noise."""
    return replace(_alone(prompt_token_ids, sampling, max_tokens, seed), grammar=grammar)


def rejection_requests(
    prompt_token_ids: Sequence[int], samples: int
) -> tuple[list[GenerationRequest], list[GenerationRequest]]:
    """Return the target alone, and speculation with other seeds and the gates in turn."""
    alone = [_sampled(prompt_token_ids, seed) for seed in range(samples)]
    speculating = [
        replace(_sampled(prompt_token_ids, samples + seed), gamma=REJECTION_GAMMA, gate=gate, logprobs=MAX_LOGPROBS)
        for seed, gate in zip(range(samples), cycle(GATES), strict=False)
    ]
    return alone, speculating


def _sampled(prompt_token_ids: Sequence[int], seed: int) -> GenerationRequest:
    request = _alone(prompt_token_ids, SamplingParams(), REJECTION_TOKENS, seed)
    return replace(request, verification=Verification.REJECTION)


def _alone(prompt_token_ids: Sequence[int], sampling: SamplingParams, max_tokens: int, seed: int) -> GenerationRequest:
    # Past the end-of-sequence token, so that every text is equally long and none is compared by its ending alone.
    return GenerationRequest(
        tuple(prompt_token_ids), sampling, max_tokens, seed, ignore_eos=True, gamma=0, gate=Gate.NONE
    )
