"""What the target may choose: ranked as the target ranks, so that the first candidate is what the draft says itself."""

import pytest
import torch

from drafter_svc.run_ahead.guesses import MAX_CANDIDATES, candidates
from specgate.runtime.batch_sampler import Answer, SamplingStep, answers
from specgate.types import SamplingParams

VOCAB_SIZE = 300
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(),
    "filters": SamplingParams(temperature=0.7, top_k=5),
}


def logits(num_rows: int) -> torch.Tensor:
    return 4 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_first_candidate_is_what_the_draft_would_choose(sampling: str) -> None:
    rows, choosing = logits(40), SamplingStep(SAMPLINGS[sampling], 7, 20, VOCAB_SIZE)
    (answer,) = answers([rows], [choosing])
    assert isinstance(answer, Answer)
    best = [row[0].token_id for row in candidates(rows, choosing, rejects=False)]
    assert best == answer.sampled.token_ids
    other_noise = [row[0].token_id for row in candidates(rows, choosing._replace(seed=8), rejects=False)]
    assert (other_noise == best) == SAMPLINGS[sampling].greedy


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("rejects", [False, True])
def test_chances_fall_and_add_up_and_what_is_filtered_out_is_no_candidate(sampling: str, rejects: bool) -> None:
    for row in candidates(logits(9), SamplingStep(SAMPLINGS[sampling], 7, 20, VOCAB_SIZE), rejects=rejects):
        chances = [candidate.chance for candidate in row]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1.0)
        num_allowed = min(MAX_CANDIDATES, SAMPLINGS[sampling].top_k or VOCAB_SIZE)
        assert len({candidate.token_id for candidate in row}) == len(row) == num_allowed


def test_rejection_ranks_by_probability() -> None:
    rows = logits(5)
    ranked = candidates(rows, SamplingStep(SamplingParams(), 7, 20, VOCAB_SIZE), rejects=True)
    assert [[one.token_id for one in row] for row in ranked] == rows.topk(MAX_CANDIDATES).indices.tolist()
