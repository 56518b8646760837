"""The fitted sharpness is that of the target, whatever the first guess."""

import math
import random

import pytest

from drafter_svc.run_ahead.outcomes import Candidate
from drafter_svc.run_ahead.sharpness import LEAST, MOST, Sharpness


def row_of(scores: list[float], beta: float) -> list[Candidate]:
    weights = [math.exp(beta * score) for score in scores]
    return [Candidate(token, weight / sum(weights)) for token, weight in enumerate(weights)]


@pytest.mark.parametrize("true_beta", [0.5, 1.0, 2.3])
def test_it_comes_to_what_the_target_does(true_beta: float) -> None:
    rng, sharpness = random.Random(0), Sharpness()
    for _ in range(2000):
        scores = sorted((rng.gauss(0, 2) for _ in range(8)), reverse=True)
        chances = [one.chance for one in row_of(scores, true_beta)]
        sharpness.learn(row_of(scores, sharpness.beta), rng.choices(range(8), chances)[0])
    assert sharpness.beta == pytest.approx(true_beta, rel=0.15)


def test_a_token_that_was_no_candidate_makes_it_less_sure_and_it_stays_within_bounds() -> None:
    blunt, sharp = Sharpness(), Sharpness()
    for _ in range(500):
        blunt.learn(row_of([3.0, 0.0, -1.0], blunt.beta), 99)
        sharp.learn(row_of([3.0, 0.0, -1.0], sharp.beta), 0)
    assert blunt.beta == LEAST
    assert 2 < sharp.beta <= MOST


def test_where_there_is_one_candidate_there_is_nothing_to_learn() -> None:
    sharpness = Sharpness()
    sharpness.learn([Candidate(1, 1.0)], 2)
    assert sharpness.beta == 1.0
