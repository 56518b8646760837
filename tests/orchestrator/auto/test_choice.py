"""The best table for given odds and prices."""

from itertools import product

import pytest

from orchestrator.auto.choice import LOOK, Chooser
from orchestrator.auto.costs import Prices
from orchestrator.auto.options import Ahead, Prospect

CHEAP = Prices(8000, 240, 240, 0, 0, 400, 0, 720, sessions=1, meeting=1.0)
DEAR = CHEAP._replace(token_us=2640)
VISITS = (1.0, 1.0, 2.0)


def odds(*acceptance: float, gamma: int = 8) -> list[list[float]]:
    """Per bucket the tokens of a round with γ 0 to ``gamma``, each token being accepted with one probability."""
    return [[sum(chance**index for index in range(count + 1)) for count in range(gamma + 1)] for chance in acceptance]


def test_no_other_table_is_faster_for_a_lone_session() -> None:
    for prices, acceptance in product((CHEAP, DEAR), ((0.2, 0.5, 0.9), (0.1, 0.1, 0.3), (0.6, 0.7, 0.8))):
        chooser = Chooser(odds(*acceptance, gamma=4), VISITS, prices)
        best = chooser.best((2, 2, 2))
        rates = {gammas: chooser.load(gammas).rate for gammas in product(range(5), repeat=3)}
        assert best.rate >= 0.995 * max(rates.values())


def test_a_surer_target_is_drafted_further_for() -> None:
    gammas = Chooser(odds(0.3, 0.6, 0.9), VISITS, CHEAP).best((3, 3, 3)).gammas
    assert gammas[0] < gammas[1] < gammas[2]


def test_a_dear_draft_goes_less_far() -> None:
    cheap = Chooser(odds(0.5, 0.7, 0.9), VISITS, CHEAP).best((3, 3, 3))
    dear = Chooser(odds(0.5, 0.7, 0.9), VISITS, DEAR).best((3, 3, 3))
    assert all(one < other for one, other in zip(dear.gammas, cheap.gammas, strict=True))
    assert dear.gammas[0] == 0


@pytest.mark.parametrize("sessions", [1, 8])
def test_a_draft_that_never_survives_is_not_asked(sessions: int) -> None:
    table = Chooser(odds(0.02, 0.02, 0.05), VISITS, CHEAP._replace(sessions=sessions)).best((3, 3, 3))
    assert table.gammas == (0, 0, 0)
    assert table.num_closed == 3
    assert all(loss > 0 for loss in table.losses_us)


def test_rows_cost_everybody_who_shares_the_forward() -> None:
    heavy = CHEAP._replace(row_us=1000)
    alone = Chooser(odds(0.6, 0.6, 0.6), VISITS, heavy).best((3, 3, 3))
    crowd = Chooser(odds(0.6, 0.6, 0.6), VISITS, heavy._replace(sessions=16)).best((3, 3, 3))
    assert alone.gammas[0] > 0
    assert crowd.gammas == (0, 0, 0)


def test_a_crowd_leaves_a_table_that_nobody_would_leave_alone() -> None:
    chooser = Chooser(odds(0.5, 0.5, 0.5), VISITS, DEAR._replace(sessions=8, row_us=300))
    best = chooser.best((5, 5, 5))
    even = max(chooser.load((gamma,) * 3).rate for gamma in range(9))
    assert best.rate >= 0.99 * even


CROWDED = DEAR._replace(sessions=8, session_us=800, wait=0.4)


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize(("acceptance", "token_us"), [((0.1, 0.5, 0.7), 3500), ((0.1, 0.6, 0.6), 1500)])
def test_a_crowd_finds_a_threshold_that_step_by_step_nobody_would(
    acceptance: tuple[float, ...], token_us: float, start: int
) -> None:
    chooser = Chooser(odds(*acceptance), VISITS, CROWDED._replace(token_us=token_us))
    best = chooser.best((start,) * 3)
    assert best.choices[0] == 0 < best.choices[2]
    gated = [(0,) * edge + (gamma,) * (3 - edge) for edge in (1, 2) for gamma in range(1, 9)]
    assert best.rate >= 0.98 * max(chooser.load(table).rate for table in gated)


def test_a_threshold_that_is_in_use_stays_where_it_is_about_as_good() -> None:
    chooser = Chooser(odds(0.25, 0.51, 0.68), VISITS, CROWDED._replace(token_us=3898))
    assert chooser.best((0, 0, 0)).choices == (0, 0, 0)
    assert chooser.best((0, 0, 2)).choices == (0, 0, 2)


def test_about_as_good_is_no_reason_to_change() -> None:
    chooser = Chooser(odds(0.7, 0.7, 0.7), VISITS, CHEAP)
    best = chooser.best((3, 3, 3)).gammas[0]
    near = [gamma for gamma in (best - 1, best + 1) if chooser.best((gamma,) * 3).gammas == (gamma,) * 3]
    assert chooser.best((best,) * 3).gammas == (best,) * 3
    assert all(chooser.load((gamma,) * 3).rate > 0.98 * chooser.load((best,) * 3).rate for gamma in near)


# Where proposals are prepared.

AHEAD_PRICES = DEAR._replace(there_us=300, bare_us=300, extend_us=200, extend_token_us=2640)


def ahead(chance: float, length: int, acceptance: float = 0.8) -> Ahead:
    return Ahead([chance] * 3, [Prospect(chance, length)] * 9, odds(*[acceptance] * 3))


def test_what_lies_ready_is_looked_for_where_asking_does_not_pay() -> None:
    never = Chooser(odds(0.2, 0.2, 0.2), VISITS, AHEAD_PRICES).best((3, 3, 3))
    often = Chooser(odds(0.2, 0.2, 0.2), VISITS, AHEAD_PRICES, ahead(0.7, 3)).best((3, 3, 3))
    assert never.choices == (0, 0, 0)
    assert often.choices == (LOOK, LOOK, LOOK)
    assert often.gammas == (0, 0, 0)
    assert often.num_closed == 0
    assert often.rate > 1.2 * never.rate


def test_what_is_never_there_is_not_looked_for() -> None:
    table = Chooser(odds(0.2, 0.2, 0.2), VISITS, AHEAD_PRICES, ahead(0.0, 3)).best((3, 3, 3))
    assert table.choices == (0, 0, 0)


def test_what_lies_ready_is_used_and_more_is_asked_for_where_that_pays() -> None:
    cheap = AHEAD_PRICES._replace(extend_token_us=300)
    dear, good = (
        Chooser(odds(0.3, 0.3, 0.3), VISITS, prices, ahead(0.7, 3, 0.95)).best((3, 3, 3))
        for prices in (AHEAD_PRICES, cheap)
    )
    assert dear.with_ready(0, 3) == 3
    assert good.with_ready(0, 3) > 3
    assert dear.with_ready(0, 8) > 3


def test_a_poor_draft_is_not_used_because_it_is_there() -> None:
    heavy = AHEAD_PRICES._replace(row_us=4000)
    table = Chooser(odds(0.05, 0.05, 0.05), VISITS, heavy, ahead(0.7, 3, 0.05)).best((3, 3, 3))
    assert table.with_ready(0, 3) == 0


@pytest.mark.parametrize("acceptance", [0.7, 0.9])
def test_a_round_that_gives_time_to_prepare_is_worth_more(acceptance: float) -> None:
    never_longer, longer_behind_long_ones = (
        [Prospect(0.8, 1 + growing * gamma // 2) for gamma in range(9)] for growing in (0, 1)
    )
    without, table = (
        Chooser(odds(0.7, 0.7, 0.7), VISITS, AHEAD_PRICES, Ahead([0.8] * 3, after, odds(*[acceptance] * 3))).best(
            (3, 3, 3)
        )
        for after in (never_longer, longer_behind_long_ones)
    )
    assert table.with_ready(0, 1) > without.with_ready(0, 1)
