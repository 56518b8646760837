"""Plans of ``auto``: what it comes to in one world or another, what it tries, what it foresees."""

from dataclasses import replace
from itertools import pairwise

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.choice import MAX_SOLO_TOKENS
from orchestrator.policy.auto.learner import MAX_CHOICE, MIN_SOLO_TOKENS, PROBE_BUDGET, Learner
from orchestrator.policy.auto.plan_table import TRIAL_TOKENS
from orchestrator.policy.gates import Gate, RoundPlan
from specgate.types import ALWAYS_SOLO, SamplingParams, Verification
from tests.orchestrator.policy.auto.support import (
    GAMMAS,
    REQUEST,
    SURE,
    UNSURE,
    Progress,
    Watched,
    World,
    a_round,
    drive,
    taught,
)

GOOD = [a_round(gamma, gamma, before=SURE, after=SURE) for gamma in GAMMAS * 60]
USELESS = [a_round(gamma, 0, before=SURE, after=SURE) for gamma in GAMMAS * 60]
NEVER = World(0.0)


def asking(gamma: int) -> GenerationRequest:
    return replace(REQUEST, gamma=gamma)


def plan_of(learner: Learner, request: GenerationRequest = REQUEST, session: Progress | None = None) -> RoundPlan:
    """Return the plan that comes once the probes that were saved up are spent."""
    policy = learner.policy(request)
    return [policy.plan(session or Progress(SURE)) for _ in range(8)][-1]


@pytest.mark.parametrize(
    ("world", "least", "most"),
    [
        (World(1.0), 7, 8),
        (World(1.0, sessions=8), 7, 8),
        (World(0.85, token_us=720), 6, 8),
        (World(0.85, token_us=2640), 2, 5),
        (World(0.6, row_us=1000), 1, 3),
        (World(0.6, row_us=1000, sessions=16), 0, 0),
        (World(0.5, token_us=6000), 0, 0),
        (World(0.5, token_us=6000, foreseen=3), 1, 3),
        (World(0.02), 0, 0),
        (World(0.02, sessions=8), 0, 0),
    ],
    ids=str,
)
def test_a_draft_is_asked_for_as_much_as_it_is_worth(world: World, least: int, most: int) -> None:
    driven = drive(world, 3000 // world.sessions + 500)
    assert least <= driven.usual() <= most
    # As little is prepared as is used, or as can be learned from.
    longest = max(driven.usual(), 1)
    assert all(plan.prepare == longest for _, plan in driven.plans[-200:] if plan.chosen and plan.gamma == longest)


def test_unsure_places_are_left_to_the_verifier() -> None:
    driven = drive(World(0.95, hard=0.05, token_us=2640), 3000)
    assert driven.usual() > 2
    assert driven.usual(UNSURE) == 0
    gates = [plan.solo_below for at, plan in driven.plans[-100:] if at == SURE and plan.max_solo_tokens]
    assert gates
    assert all(UNSURE < gate < SURE for gate in gates)


def test_a_request_is_not_asked_for_more_than_it_allows() -> None:
    learner = taught(*GOOD)
    assert plan_of(learner, asking(2)).gamma == 2
    assert MAX_CHOICE - 2 <= plan_of(learner, asking(60)).gamma <= MAX_CHOICE
    # Before the first token the text counts as easy.
    assert plan_of(learner, session=Progress(None)).gamma >= 7


def test_without_knowledge_it_tries_several_gammas_and_foresees_none() -> None:
    policy = Learner().policy(REQUEST)
    plans = [policy.plan(Progress()) for _ in range(6)]
    assert len({plan.gamma for plan in plans}) == 6
    assert not any(plan.chosen for plan in plans)
    assert policy.plan_ahead(Progress()) is None


def test_a_useless_draft_is_not_asked_and_the_target_streams() -> None:
    plan = plan_of(taught(*USELESS), session=Progress(SURE, remaining=5))
    assert (plan.gamma, plan.solo_below, plan.max_solo_tokens) == (0, ALWAYS_SOLO, 5)
    assert (plan.prepare, plan.keeps_warm) == (1, False)


def test_modes_are_learned_apart_and_sessions_of_one_mode_together() -> None:
    learner = taught(*USELESS)
    warm, cold, hot = (replace(REQUEST, sampling=SamplingParams(temperature=heat)) for heat in (1.0, 0.0, 9.0))
    rejecting = replace(warm, verification=Verification.REJECTION)
    assert plan_of(learner, warm).gamma == plan_of(learner, replace(warm, seed=5)).gamma == 0
    assert all(plan_of(learner, other).gamma > 0 for other in (cold, hot, rejecting))
    taught(*USELESS, learner=learner, request=cold)
    assert plan_of(learner, replace(cold, verification=Verification.REJECTION)).gamma == 0, "greedy is one mode"


@pytest.mark.parametrize("gate", Gate)
def test_requests_with_other_gates_teach_it_unless_their_drafts_end_where_they_are_unsure(gate: Gate) -> None:
    request, learner = replace(REQUEST, gate=gate), Learner()
    if gate is Gate.DRAFT_CONFIDENCE:
        assert learner.observer(request) is None
    else:
        assert plan_of(taught(*GOOD, request=request, learner=learner)).gamma >= 7


@pytest.mark.parametrize("sessions", [1, 8])
def test_it_stops_when_drafts_stand_no_more_and_comes_back_when_they_do(sessions: int) -> None:
    learner = Learner()
    good, useless = World(1.0, sessions=sessions), World(0.0, sessions=sessions)
    usual = [drive(world, 4000, learner).usual() for world in (useless, good, useless, good)]
    assert usual == [0, 8, 0, 8]


# Probes.


def lost_us(driven: Watched) -> float:
    """Return what rounds took beyond what the target alone takes for as many tokens."""
    drafted = [seen for seen in driven.seen if seen.proposed]
    return sum(seen.round_us - 8000 * (seen.accepted + 1) for seen in drafted)


@pytest.mark.parametrize("catch_up_us", [0, 8000])
def test_probes_are_rare_while_nothing_is_to_be_gained(catch_up_us: int) -> None:
    learner, world = Learner(), replace(NEVER, catch_up_us=catch_up_us)
    drive(world, 2000, learner)
    driven = drive(world, 20_000, learner)
    # With what the drafter has to read first.
    assert 0.5 * PROBE_BUDGET < lost_us(driven) / driven.took_us < 1.1 * PROBE_BUDGET


def test_a_probe_is_two_rounds_and_the_second_finds_something_prepared() -> None:
    learner = Learner()
    drive(NEVER, 2000, learner)
    plans = [plan for _, plan in drive(NEVER, 5000, learner).plans]
    begins = [index for index, (one, after) in enumerate(pairwise(plans), 1) if after.gamma and not one.gamma]
    assert len(begins) > 10
    for first, second, after in (plans[index : index + 3] for index in begins[:-1]):
        assert [plan.gamma > 0 for plan in (first, second, after)] == [True, True, False]
        # The target goes on alone behind the second one, and that is held against its promise.
        assert [plan.max_solo_tokens > 0 for plan in (first, second, after)] == [False, True, True]
        assert [plan.chosen_alone > 0 for plan in (first, second, after)] == [False, True, True]
        assert [plan.chosen > 0 for plan in (first, second, after)] == [False, False, True]
        assert second.prepare == 1


@pytest.mark.parametrize(("trip_us", "least", "most"), [(0, 16, 16), (3600, 20, 100), (1_000_000, 128, 128)])
def test_the_farther_the_drafter_the_longer_the_target_goes_on_alone(trip_us: int, least: int, most: int) -> None:
    assert Learner().solo_run() == MIN_SOLO_TOKENS == 16
    assert MAX_SOLO_TOKENS == 128
    learner = taught(*(replace(seen, round_us=seen.round_us + trip_us) for seen in USELESS * 4))
    assert least <= plan_of(learner).max_solo_tokens <= most


# What is near is tried.


def test_what_is_near_is_tried_now_and_then_twice_in_a_row() -> None:
    plans = [plan for _, plan in drive(World(0.6), 4000).plans][64:]
    tried = [plan for plan in plans if not plan.chosen and not plan.max_solo_tokens]
    usual = max(plans, key=plans.count).gamma
    assert 0.01 < len(tried) / len(plans) < 0.1
    assert len({plan.gamma for plan in tried}) > 2
    assert all(abs(plan.gamma - usual) <= 4 for plan in tried)
    # The second finds prepared what it asks for.
    pairs = [(one, after) for one, after in pairwise(plans) if not (one.chosen or after.chosen)]
    assert sum(one.gamma == one.prepare == after.gamma for one, after in pairs) > 0.8 * len(pairs) > 0


def test_what_the_target_takes_alone_is_tried_now_and_then() -> None:
    alone = [plan for _, plan in drive(World(1.0), 4000).plans if plan.max_solo_tokens]
    assert {(plan.solo_below, plan.max_solo_tokens, plan.chosen) for plan in alone} == {(ALWAYS_SOLO, 1, 0)}


def test_where_nothing_else_is_allowed_nothing_is_tried() -> None:
    policy = taught(*GOOD, request=asking(1)).policy(asking(1))
    assert all(policy.plan(Progress(SURE)).chosen for _ in range(60))


def is_trial(plan: RoundPlan) -> bool:
    return plan.solo_below == ALWAYS_SOLO and plan.max_solo_tokens > 1


@pytest.mark.parametrize(
    ("world", "num_tokens", "first_by"),
    [(World(0.65, token_us=3000), 6000, 64), (World(0.55, sessions=8, token_us=1500), 2500, 1000)],
    ids=["one", "crowd"],
)
def test_the_target_alone_is_tried_where_drafts_bring_little_for_a_short_time_and_less_often_later(
    world: World, num_tokens: int, first_by: int
) -> None:
    # Of the first few rounds of a crowd so little is known that the target alone may seem best.
    plans = [plan for _, plan in drive(world, num_tokens).plans][8 * (world.sessions - 1) :]
    tried = [index for index, plan in enumerate(plans) if is_trial(plan)]
    begins = [tried[0], *(after for before, after in pairwise(tried) if after - before > 64)]
    assert begins[0] < first_by
    assert all(after - before > 2 * before for before, after in pairwise(begins))
    assert 2 <= len(begins) <= 4
    assert len(tried) < 0.03 * len(plans)
    assert all(plans[index].max_solo_tokens <= TRIAL_TOKENS for index in tried)
    assert plans[-1].gamma


@pytest.mark.parametrize("sessions", [1, 8])
def test_the_target_alone_is_not_tried_where_drafts_bring_much(sessions: int) -> None:
    plans = [plan for _, plan in drive(World(1.0, sessions=sessions), 1000).plans]
    assert not any(map(is_trial, plans))


# What is foreseen.


@pytest.mark.parametrize(
    "world",
    [World(1.0), World(0.85, token_us=2640), World(0.8, sessions=8), World(0.97, hard=0.2, token_us=600)],
    ids=str,
)
def test_what_is_foreseen_of_a_round_is_what_is_planned_once_it_is_there(world: World) -> None:
    driven = drive(world, 3000 // world.sessions + 500)
    assert len(driven.foreseen) > 0.5 * len(driven.plans)
    assert sum(ahead == plan for ahead, plan in driven.foreseen) > 0.9 * len(driven.foreseen)
    # A new table may have come between them; by the same one as much is drafted.
    assert all(ahead.gamma == plan.gamma for ahead, plan in driven.foreseen if ahead.chosen == plan.chosen)
    # What is tried is not foreseen.
    assert sum(not plan.chosen for _, plan in driven.foreseen) <= 2


def test_where_the_target_is_left_alone_nothing_is_foreseen_and_foreseeing_counts_no_round() -> None:
    assert taught(*USELESS).policy(REQUEST).plan_ahead(Progress()) is None
    asked, unasked = (taught(*GOOD).policy(REQUEST) for _ in range(2))
    plans: list[RoundPlan] = []
    for _ in range(100):
        asked.plan_ahead(Progress())
        plans.append(asked.plan(Progress(SURE)))
    assert plans == [unasked.plan(Progress(SURE)) for _ in range(100)]
