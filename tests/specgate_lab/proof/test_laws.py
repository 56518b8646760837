"""Tests of a law: sound samples pass as often as they should, biased ones fail, and pooling loses nothing."""

import math
from collections import Counter
from random import Random

import pytest
import torch

from specgate_lab.proof.laws import (
    LEVEL,
    POWER,
    Law,
    LawTest,
    Text,
    corrected,
    findable_shift,
    first_token_test,
    pooled_by_prefix,
    rank_test,
    survival,
    survival_of_shifted,
    two_sample_test,
)

LAW: Law = tuple((token_id, 0.5 ** (token_id + 1)) for token_id in range(12))
"""Half, a quarter, and so on; what is left over is the rest of a vocabulary."""


def draw(random: Random, count: int, law: Law = LAW) -> list[int]:
    ids, weights = [token_id for token_id, _ in law], [probability for _, probability in law]
    rest = max(0.0, 1.0 - sum(weights))
    return random.choices([*ids, 99], [*weights, rest], k=count)


def biased(law: Law, moved: float) -> Law:
    """Move probability from the likeliest token to the next."""
    (first, p), (second, q), *others = law
    return ((first, p - moved), (second, q + moved), *others)


def varying(random: Random) -> Law:
    """Return another law for each position, as a model has."""
    weights = sorted((random.expovariate(1.0) ** 3 for _ in range(30)), reverse=True)
    return tuple((token_id, weight / sum(weights)) for token_id, weight in enumerate(weights[:20]))


def seen(seed: int, count: int, moved: float = 0.0) -> list[tuple[int, Law]]:
    random = Random(seed)
    laws = [varying(random) for _ in range(count)]
    return [(draw(random, 1, biased(law, min(moved, law[0][1])))[0], law) for law in laws]


def texts(seed: int, count: int, moved: float = 0.0) -> list[Text]:
    random = Random(seed)
    columns = [draw(random, count, biased(LAW, moved)) for _ in range(3)]
    return list(zip(*columns, strict=True))


def p_values(kind: str, moved: float = 0.0, runs: int = 100) -> list[float]:
    if kind == "first token":
        law = biased(LAW, moved)
        return [first_token_test("", Counter(draw(Random(seed), 400, law)), LAW).p for seed in range(runs)]
    if kind == "two samples":
        return [two_sample_test("", texts(seed, 400, moved), texts(1000 + seed, 400)).p for seed in range(runs)]
    return [rank_test("", seen(seed, 400, moved)).p for seed in range(runs)]


KINDS = ("first token", "two samples", "ranks")


@pytest.mark.parametrize("kind", KINDS)
def test_p_values_of_sound_samples_are_uniform(kind: str) -> None:
    values = sorted(p_values(kind))
    # Kolmogorov and Smirnov's distance; 0.195 is its bound at one in a thousand for a hundred values.
    distance = max(abs(value - (place + 0.5) / len(values)) for place, value in enumerate(values))
    assert distance < 0.195


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_fails(kind: str) -> None:
    assert max(p_values(kind, moved=0.25, runs=10)) < LEVEL


def test_the_statistic_of_a_known_law_is_pearsons() -> None:
    law: Law = ((0, 0.5), (1, 0.3))
    test = first_token_test("", {0: 60, 1: 25, 7: 15}, law)
    assert test.statistic == pytest.approx(100 / 50 + 25 / 30 + 25 / 20)
    assert (test.cells, test.degrees, test.samples) == (3, 2, 100)
    # A rest that is too small joins the last cell.
    joined = first_token_test("", {0: 60, 1: 40}, ((0, 0.6), (1, 0.39)))
    assert joined.cells == 2
    assert joined.statistic == pytest.approx(0.0)


def test_the_statistic_of_two_samples_is_pearsons() -> None:
    first, second = (0,), (1,)
    ours: list[Text] = [*[first] * 30, *[second] * 20]
    theirs: list[Text] = [*[first] * 60, *[second] * 90]
    # The table 30 20 / 60 90, by the formula for two by two.
    expected = 200 * (30 * 90 - 20 * 60) ** 2 / (50 * 150 * 90 * 110)
    test = two_sample_test("", ours, theirs)
    assert test.statistic == pytest.approx(expected)
    assert test.weight == pytest.approx(50 * 150 / 200)


def test_rare_texts_are_pooled_with_those_that_begin_as_they_do() -> None:
    counts = {(1, 1): 10, (1, 2): 3, (1, 3): 4, (2, 1): 9, (2, 2): 1, (3, 1): 1, (4, 4): 6}
    cells = pooled_by_prefix(counts, least=6)
    assert cells == {
        (1, 1): (1, 1),
        (1, 2): (1,),
        (1, 3): (1,),
        (4, 4): (4, 4),
        (2, 1): (2, 1),
        # Two texts are too few even together, and join the smallest cell.
        (2, 2): (4, 4),
        (3, 1): (4, 4),
    }


def test_two_laws_that_differ_in_what_follows_are_told_apart() -> None:
    ours, theirs = ([(1, 1), (2, 2)] * 50, [(1, 2), (2, 1)] * 50)
    assert two_sample_test("", [text[:1] for text in ours], [text[:1] for text in theirs]).p == 1.0
    assert two_sample_test("", ours, theirs).p < 1e-9


def test_ranks_of_one_law_are_pearsons_test() -> None:
    law: Law = ((4, 0.6), (9, 0.4))
    test = rank_test("", [(4, law)] * 50 + [(9, law)] * 50)
    assert test.statistic == pytest.approx(100 / 60 + 100 / 40)
    # A model that is always sure tests nothing.
    sure = rank_test("", [(5, ((5, 1.0), (6, 0.0)))] * 50)
    assert (sure.cells, sure.p) == (1, 1.0)


def test_holms_correction() -> None:
    tests = [LawTest(str(p), 100, 100.0, 2, 0.0, p) for p in (0.02, 0.01, 0.9, 0.015)]
    assert [test.corrected_p for test in corrected(tests)] == pytest.approx([0.045, 0.04, 0.9, 0.045])


def test_what_is_called_findable_is_found() -> None:
    (told,) = corrected([first_token_test("", Counter(draw(Random(0), 400)), LAW)])
    assert 0.05 < told.findable < 0.25
    found = [p < LEVEL for p in p_values("first token", moved=told.findable)]
    # It is nine in ten between two halves, and the first token is one half.
    assert sum(found) >= 80


def test_four_times_as_many_find_half_and_too_few_find_nothing() -> None:
    few, many = corrected([LawTest("few", 100, 100.0, 4, 0.0, 0.5), LawTest("many", 400, 400.0, 4, 0.0, 0.5)])
    assert many.findable == pytest.approx(few.findable / 2)
    (told,) = corrected([LawTest("too few", 3, 3.0, 4, 0.0, 0.5)])
    assert told.findable == math.inf
    assert told.to_object()["findable"] is None


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
