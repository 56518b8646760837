"""How many draft tokens a row is worth, and how long a draft is waited for."""

import pytest

from specgate_vllm.worth import FIRST_WAIT_S, WARM_UP, Acceptance, Planner, StepTimes, Turns


def learned(times: StepTimes, row_s: float, base_s: float = 0.01, num: int = 40) -> None:
    for number in range(WARM_UP + num):
        width = 1 + number % 5
        times.learn(width, base_s + row_s * width)


def planner(row_s: float, gamma: int = 4) -> Planner:
    made = Planner(gamma)
    learned(made.times, row_s)
    return made


def test_the_time_of_a_step_is_a_line() -> None:
    times = StepTimes()
    assert times.of(1) == 0.0
    learned(times, row_s=0.002)
    assert times.of(3) == pytest.approx(0.016, rel=0.01)
    assert times.of(20) == pytest.approx(0.05, rel=0.01)


def test_one_stall_changes_little() -> None:
    times = StepTimes()
    learned(times, row_s=0.0)
    times.learn(2, 10.0)
    assert times.of(2) < 0.012


def test_where_all_steps_are_alike_a_row_costs_nothing() -> None:
    times = StepTimes()
    for _ in range(20):
        times.learn(5, 0.01)
    assert times.of(50) == times.of(1) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("row_s", "rate", "gamma"),
    [(0.0, 0.1, 4), (0.01, 0.5, 1), (0.01, 0.98, 4), (0.002, 0.5, 2)],
)
def test_a_row_is_drafted_for_as_far_as_it_pays(row_s: float, rate: float, gamma: int) -> None:
    assert planner(row_s).plan([rate], 0) == [gamma]


def test_rows_compete() -> None:
    gammas = planner(0.004).plan([0.9, 0.2, 0.9], 1)
    assert gammas[0] == gammas[2] > gammas[1]


def test_where_no_draft_token_seems_to_pay_a_few_are_asked_for_as_long_as_the_clock_says_so() -> None:
    one = planner(1.0)
    assert one.plan([0.4], 0) == [2]
    one.turns(1).drafts = False
    assert one.plan([0.4], 0) == [0]
    # What the clock says of one request it does not say of eight.
    assert one.plan([0.4] * 7, 1) == [2] * 7


@pytest.mark.parametrize(("tokens", "drafted_s", "least", "most"), [(2, 0.01, 0.9, 1.0), (1, 0.015, 0.0, 0.1)])
def test_the_clock_says_whether_to_draft(tokens: int, drafted_s: float, least: float, most: float) -> None:
    """A batch is sometimes of one row and sometimes of eight, whose steps take twice as long."""
    turns, drafting = Turns(), []
    for number in range(1000):
        rows, factor = (8, 2) if number % 32 < 16 else (1, 1)
        drafting.append(turns.drafts)
        seconds = drafted_s if turns.drafts else 0.01
        turns.step((tokens if turns.drafts else 1) * rows, rows, seconds * factor, 0.01 * factor)
    assert least <= sum(drafting[200:]) / len(drafting[200:]) <= most
    assert len(set(drafting[-300:])) == 2


def test_a_draft_is_waited_for_as_long_as_it_is_worth() -> None:
    free = planner(0.0)
    # Alone, two more tokens are worth two steps; among eight rows, a quarter of one.
    assert free.wait_s(1, 1, 2, 4) == pytest.approx(0.02)
    assert free.wait_s(8, 8, 2, 4) == pytest.approx(0.0025)
    assert planner(0.05).wait_s(1, 1, 0.5, 4) < 0
    assert Planner(4).wait_s(1, 1, 2, 4) == FIRST_WAIT_S


def test_acceptance_begins_with_the_others_and_becomes_its_own() -> None:
    everybody = Acceptance()
    for _ in range(50):
        everybody.learn(4, 4)
    one = Acceptance(everybody)
    assert one.rate == everybody.rate > 0.9
    for _ in range(20):
        one.learn(4, 0)
    assert one.rate < 0.2
    for _ in range(100):
        one.learn(0, 0)
    assert one.rate == pytest.approx(everybody.rate, rel=0.05)


def test_expected_tokens() -> None:
    one = Acceptance()
    assert one.tokens(0) == 0
    assert one.tokens(2) == pytest.approx(one.rate + one.rate**2)
