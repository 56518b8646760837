"""The chi-square distribution against tables and against torch."""

import math

import pytest
import torch

from specgate_lab.proof.chi_square import POWER, findable_shift, survival, survival_of_shifted


@pytest.mark.parametrize("degrees", [1, 2, 10, 400])
@pytest.mark.parametrize("share", [0.01, 0.99, 1.0, 1.01, 5.0])
def test_survival_is_the_incomplete_gamma_function(degrees: int, share: float) -> None:
    statistic = degrees * share
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    assert survival(statistic, degrees) == pytest.approx(float(torch.special.gammaincc(*half)), rel=1e-6, abs=1e-300)
    assert survival_of_shifted(statistic, degrees, 0.0) == pytest.approx(survival(statistic, degrees))


def test_the_ends_of_the_distribution() -> None:
    assert survival(7.0, 0) == survival(0.0, 4) == 1.0
    assert survival(1e6, 12) == 0.0


def test_the_findable_shift_is_that_of_the_power_tables() -> None:
    # Cohen's tables: 10.507 for one degree of freedom at 0.05 and a power of 0.9, 20.53 for ten.
    assert POWER == 0.9
    assert findable_shift(1, 0.05) == pytest.approx(10.507, abs=0.01)
    assert findable_shift(10, 0.05) == pytest.approx(20.53, abs=0.02)
    assert findable_shift(0, 0.05) == math.inf
