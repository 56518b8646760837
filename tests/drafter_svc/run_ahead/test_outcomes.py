"""Which outcomes are prepared: the likeliest, as many as there are rows, and none that is not worth one."""

from itertools import pairwise

import pytest

from drafter_svc.run_ahead.outcomes import WORTH_A_ROW, AcceptanceRate, Candidate, likeliest


def row(*chances: float) -> list[Candidate]:
    """Candidates 0, 1, 2, ... with these chances."""
    return [Candidate(token_id, chance) for token_id, chance in enumerate(chances)]


SURE, UNSURE = row(0.9, 0.06, 0.04), row(0.4, 0.35, 0.25)


@pytest.mark.parametrize(
    ("rows", "drafted", "most", "outcomes"),
    [
        pytest.param([SURE, SURE, SURE], [0, 0], 3, [(2, 0), (0, 1), (1, 1)], id="a sure draft is taken whole"),
        pytest.param([SURE, UNSURE, SURE], [0, 0], 3, [(2, 0), (1, 1), (1, 2)], id="rows go where it is unsure"),
        pytest.param([UNSURE], [], 2, [(0, 0), (0, 1)], id="where the target is alone, its next token"),
        pytest.param([UNSURE] * 3, [0, 0], 0, [], id="no rows"),
        pytest.param(
            [UNSURE] * 3, [1, 0], 100, [(0, 0), (0, 2), (1, 1), (1, 2), (2, 0)],
            id="never the token that was drafted",
        ),
        pytest.param(
            [UNSURE] * 2, [0, 0], 100, [(0, 1), (0, 2), (1, 1), (1, 2)],
            id="no row behind a draft that ended the text",
        ),
        pytest.param(
            [row(1 - 0.5 * WORTH_A_ROW, 0.5 * WORTH_A_ROW), row(0.7, 0.3)], [0], 100, [(1, 0), (1, 1)],
            id="what is not worth a row is left out",
        ),
    ],
)  # fmt: skip
def test_the_likeliest_are_prepared(
    rows: list[list[Candidate]], drafted: list[int], most: int, outcomes: list[tuple[int, int]]
) -> None:
    assert list(likeliest(rows, drafted, most)) == outcomes


def test_measured_acceptance_is_geometric_over_positions() -> None:
    """What a row says of its own drafted token counts for nothing there."""
    rows = [row(0.98, 0.02), row(0.5, 0.5), row(0.02, 0.98), row(1.0)]
    best = list(likeliest(rows, [0, 0, 0], 100, acceptance=0.5))
    assert set(best) == {(0, 1), (1, 1), (2, 1), (3, 0)}
    assert best[:2] == [(0, 1), (1, 1)]


def test_what_ends_the_text_takes_no_row_from_others() -> None:
    rows, drafted = [row(0.2, 0.6, 0.2)] * 3, [1, 1]
    others = [outcome for outcome in likeliest(rows, drafted, 100) if outcome.token_id != 0]
    assert list(likeliest(rows, drafted, 3, excluded={0})) == others[:3]
    assert len(others) > 3


def test_acceptance_is_measured_and_slowly_forgotten() -> None:
    acceptance = AcceptanceRate()
    rates = [acceptance.rate]
    for _ in range(200):
        acceptance.learn(4, 4)
        rates.append(acceptance.rate)
    assert all(later > earlier for earlier, later in pairwise(rates[:50]))
    assert rates[-1] > 0.98
    for _ in range(200):
        acceptance.learn(4, 0)
    assert acceptance.rate < 0.1


def test_nothing_behind_the_first_rejection_was_judged() -> None:
    one, other = AcceptanceRate(), AcceptanceRate()
    one.learn(2, 1)
    other.learn(60, 1)
    assert one.rate == other.rate
