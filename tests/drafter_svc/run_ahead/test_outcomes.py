"""Which outcomes are prepared: the likeliest, as many as there are rows, and none that is not worth one."""

from itertools import pairwise

import pytest

from drafter_svc.run_ahead.outcomes import WORTH_A_ROW, AcceptanceRate, Candidate, Outcome, likeliest


def row(*chances: float) -> list[Candidate]:
    """Candidates 0, 1, 2, ... with these chances."""
    return [Candidate(token_id, chance) for token_id, chance in enumerate(chances)]


SURE, UNSURE = row(0.9, 0.06, 0.04), row(0.4, 0.35, 0.25)


def test_a_sure_draft_is_taken_whole() -> None:
    best = list(likeliest([SURE, SURE, SURE], [0, 0], 3))
    assert best[0] == Outcome(2, 0)
    assert best == [(2, 0), (0, 1), (1, 1)]


def test_rows_go_where_the_draft_is_unsure() -> None:
    assert list(likeliest([SURE, UNSURE, SURE], [0, 0], 3)) == [(2, 0), (1, 1), (1, 2)]


def test_an_outcome_is_never_the_token_that_was_drafted() -> None:
    drafted = [1, 0]
    for outcome in likeliest([UNSURE, UNSURE, UNSURE], drafted, 100):
        assert outcome.num_accepted == 2 or outcome.token_id != drafted[outcome.num_accepted]


def test_a_draft_that_ended_the_text_has_no_row_behind_it() -> None:
    assert {outcome.num_accepted for outcome in likeliest([UNSURE, UNSURE], [0, 0], 100)} == {0, 1}


def test_measured_acceptance_is_geometric_over_positions() -> None:
    """What a row says of its own drafted token counts for nothing there."""
    rows = [row(0.98, 0.02), row(0.5, 0.5), row(0.02, 0.98), row(1.0)]
    best = list(likeliest(rows, [0, 0, 0], 100, acceptance=0.5))
    assert set(best) == {(0, 1), (1, 1), (2, 1), (3, 0)}
    assert best[0] == (0, 1)
    assert best[1] == (1, 1)


def test_what_is_not_worth_a_row_is_left_out() -> None:
    rows = [row(1 - 0.5 * WORTH_A_ROW, 0.5 * WORTH_A_ROW), row(0.7, 0.3)]
    assert list(likeliest(rows, [0], 100)) == [(1, 0), (1, 1)]


def test_what_ends_the_text_takes_no_row_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drafter_svc.run_ahead.outcomes.WORTH_A_ROW", 0.01)
    rows, drafted = [UNSURE, UNSURE, UNSURE], [1, 1]
    others = [outcome for outcome in likeliest(rows, drafted, 100) if outcome.token_id != 0]
    assert list(likeliest(rows, drafted, 3, excluded={0})) == others[:3]
    assert len(others) > 3


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_no_more_than_asked_for(most: int) -> None:
    assert len(likeliest([UNSURE, UNSURE, UNSURE], [0, 0], most)) == most


def test_while_the_target_is_alone_its_next_token_is_guessed() -> None:
    assert list(likeliest([UNSURE], [], 2)) == [(0, 0), (0, 1)]


def test_acceptance_is_measured_and_slowly_forgotten() -> None:
    acceptance = AcceptanceRate()
    first = acceptance.rate
    rates = [first]
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
