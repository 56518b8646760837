"""Plans of ``auto``: what they may look at, when it stops drafting, how it comes back."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import mode as mode_of

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto import plan_table
from orchestrator.policy.auto.agreement import BUCKET_EDGES, bucket_of
from orchestrator.policy.auto.ahead import PreparedDrafts
from orchestrator.policy.auto.calibration import MIN_VERDICTS, Calibration
from orchestrator.policy.auto.choice import Table
from orchestrator.policy.auto.learner import MAX_CHOICE, PROBE_BUDGET, PROBE_HORIZON, Learner
from orchestrator.policy.auto.mode_state import (
    LONE_TRIAL_AFTER,
    TRIAL_AFTER,
    TRIAL_LONGER,
    TRIALS_APART,
    InUse,
    ModeState,
)
from orchestrator.policy.auto.observation import Observation, PreviousRound
from orchestrator.policy.auto.options import PlanChoice, even
from orchestrator.policy.auto.plan_table import (
    LONE_TRIAL_REACH,
    LONE_TRIAL_VERDICTS,
    TRIAL_TOKENS,
    TRIAL_VERDICTS,
    VERDICTS_SKIPPED,
)
from orchestrator.policy.auto.policy import (
    ALONE_AFTER,
    ALONE_EVERY,
    FIRST_ROUNDS,
    PROBE_ROUNDS,
    VARIED_BY,
    VARY_EVERY,
    VARY_EVERY_AT_FIRST,
)
from orchestrator.policy.gates import Gate, RoundPlan
from specgate.types import ALWAYS_SOLO, SamplingParams
from tests.orchestrator.policy.auto.support import GAMMAS, MODE, REQUEST, Progress, a_round, solo, taught

SURE, UNSURE = 0.99, 0.1
LONE = GenerationRequest((1,), gate=Gate.AUTO, gamma=1)


def rounds(accepted: Callable[[int], int], times: int = 60, confidence: float = SURE) -> list[Observation]:
    return [a_round(gamma, accepted(gamma), before=confidence, after=confidence) for gamma in GAMMAS * times]


def useless(times: int = 60) -> Learner:
    learner = taught(*rounds(lambda gamma: 0, times))
    return taught(*rounds(lambda gamma: 0, times, UNSURE), learner=learner)


def plan_of(
    learner: Learner,
    request: GenerationRequest = REQUEST,
    session: Progress | None = None,
) -> RoundPlan:
    """Return the plan that comes once the probes that were saved up are spent."""
    policy = learner.policy(request)
    return [policy.plan(session or Progress(SURE)) for _ in range(8)][-1]


def test_without_knowledge_it_tries_several_gammas() -> None:
    policy = Learner().policy(REQUEST)
    assert len({policy.plan(Progress()).gamma for _ in range(6)}) == 6


def test_a_good_draft_is_asked_for_as_much_as_is_allowed() -> None:
    learner = taught(*rounds(lambda gamma: gamma))
    assert plan_of(learner).gamma >= 7
    few = GenerationRequest((1,), gate=Gate.AUTO, gamma=2)
    many = GenerationRequest((1,), gate=Gate.AUTO, gamma=60)
    assert plan_of(learner, few).gamma == 2
    assert MAX_CHOICE - 2 <= plan_of(learner, many).gamma <= MAX_CHOICE


def test_a_useless_draft_is_not_asked_and_the_target_streams() -> None:
    plan = plan_of(useless(), session=Progress(SURE, remaining=5))
    assert (plan.gamma, plan.solo_below, plan.max_solo_tokens) == (0, ALWAYS_SOLO, 5)


def test_unsure_places_are_left_to_the_verifier() -> None:
    learner = taught(*rounds(lambda gamma: gamma))
    learner = taught(*rounds(lambda gamma: 0, confidence=UNSURE), learner=learner)
    # No probe is due.
    learner.knowledge(MODE).credit_us = 0
    policy = learner.policy(REQUEST)
    plan = policy.plan(Progress(SURE))
    assert policy.plan(Progress(UNSURE)).gamma == 0
    assert plan.gamma > 3
    assert plan.solo_below in BUCKET_EDGES
    assert UNSURE < plan.solo_below < SURE
    assert plan.max_solo_tokens > 0


def test_modes_are_learned_apart() -> None:
    learner = useless()
    warm = GenerationRequest((1,), SamplingParams(temperature=1.0), gate=Gate.AUTO, gamma=8)
    cold = GenerationRequest((1,), SamplingParams(temperature=0.0), gate=Gate.AUTO, gamma=8)
    assert plan_of(learner, warm).gamma == 0
    assert plan_of(learner, cold).gamma > 0


def drive(learner: Learner, accepted: Callable[[int], int], num_tokens: int) -> tuple[list[int], float, float]:
    """Decode with ``auto``; return γ by round, and the simulated time of drafted rounds and of all, in µs."""
    policy, observer = learner.policy(REQUEST), learner.observer(REQUEST)
    assert observer is not None
    gammas, drafted_us, all_us, emitted, session = [], 0.0, 0.0, 0, Progress(SURE)
    while emitted < num_tokens:
        plan = policy.plan(session)
        gammas.append(plan.gamma)
        if plan.gamma:
            seen = a_round(plan.gamma, accepted(plan.gamma), before=SURE, after=SURE)
            drafted_us += seen.round_us
            all_us += seen.round_us
            observer(seen)
            emitted += accepted(plan.gamma) + 1
        session.fully_accepted = accepted(plan.gamma) == plan.gamma
        for _ in range(plan.max_solo_tokens if plan.solo_below > SURE else not plan.gamma):
            observer(solo(SURE, SURE))
            all_us += 8000
            emitted += 1
    return gammas, drafted_us, all_us


def test_probes_are_rare_while_nothing_is_to_be_gained() -> None:
    learner = useless()
    drive(learner, lambda gamma: 0, 1000)
    gammas, drafted_us, all_us = drive(learner, lambda gamma: 0, 20_000)
    assert any(gammas)
    # A probe emits a token too: what is lost is its time beyond that of a solo one.
    assert drafted_us - 8000 * sum(gamma > 0 for gamma in gammas) < 2 * PROBE_BUDGET * all_us


def test_a_probe_is_two_rounds_and_the_second_finds_something_prepared() -> None:
    learner = useless()
    policy = learner.policy(REQUEST)
    known = learner.knowledge(MODE)
    known.credit_us = 0
    assert policy.plan(Progress(SURE)).gamma == 0
    known.credit_us = 1e9
    plans = [policy.plan(Progress(SURE))]
    known.credit_us = 0
    plans += [policy.plan(Progress(SURE)) for _ in range(2)]
    assert [plan.gamma > 0 for plan in plans] == [True, True, False]
    # The target goes on alone behind the second one.
    assert [plan.max_solo_tokens > 0 for plan in plans] == [False, True, True]
    assert [plan.prepare for plan in plans] == [plans[0].gamma, 1, 1]
    assert [plan.chosen > 0 for plan in plans] == [False, False, True]


def test_what_a_drafter_has_to_read_first_is_booked_too() -> None:
    learner = useless()
    known = learner.knowledge(MODE)
    assert plan_of(learner).gamma == 0
    table = known.tables[8].table._replace(catch_up_us=5000.0)
    known.tables[8].table, known.credit_us = table, 1e9
    assert learner.policy(REQUEST).plan(Progress(SURE)).gamma > 0
    booked_us = PROBE_ROUNDS * table.probe_loss_us + 5000
    assert known.credit_us == pytest.approx((PROBE_HORIZON - 1) * booked_us)


def test_it_comes_back_when_drafts_survive_again() -> None:
    learner = useless()
    assert plan_of(learner).gamma == 0
    drive(learner, lambda gamma: gamma, 12_000)
    gammas, *_ = drive(learner, lambda gamma: gamma, 1000)
    assert sum(gamma >= 7 for gamma in gammas) > 0.9 * len(gammas)


def test_it_stops_when_drafts_survive_no_more() -> None:
    learner = taught(*rounds(lambda gamma: gamma))
    drive(learner, lambda gamma: 0, 2000)
    gammas, *_ = drive(learner, lambda gamma: 0, 5000)
    assert sum(gammas) < 0.1 * 5000


def test_draft_confidence_teaches_nothing() -> None:
    assert Learner().observer(GenerationRequest((1,), gate=Gate.DRAFT_CONFIDENCE)) is None


@pytest.mark.parametrize("gate", [Gate.NONE, Gate.TARGET_CONFIDENCE, Gate.AUTO])
def test_other_gates_teach_it(gate: Gate) -> None:
    learner = Learner()
    observer = learner.observer(GenerationRequest((1,), gate=gate))
    assert observer is not None
    for seen in rounds(lambda gamma: gamma):
        observer(seen)
    assert plan_of(learner).gamma >= 7


def test_a_bucket_is_open_before_the_first_token() -> None:
    assert bucket_of(None) == len(BUCKET_EDGES)
    assert plan_of(taught(*rounds(lambda gamma: gamma)), session=Progress(None)).gamma >= 7


# Prepared proposals.


def test_no_more_is_prepared_than_would_be_used() -> None:
    plan = plan_of(taught(*rounds(lambda gamma: gamma)))
    assert plan.prepare >= plan.gamma >= 7
    # Of three tokens one stands at the most.
    assert 1 <= plan_of(taught(*rounds(lambda gamma: min(gamma, 1)))).prepare <= 3


def test_where_the_target_decodes_alone_as_little_is_prepared_as_can_be_learned_from() -> None:
    plan = plan_of(useless())
    assert (plan.gamma, plan.solo_below, plan.prepare) == (0, ALWAYS_SOLO, 1)


def test_what_is_there_is_learned_by_whether_the_round_before_stood() -> None:
    seen = a_round(3, 1)
    told = [replace(seen, previous_round=PreviousRound(3, whole), prepared=3 * whole) for whole in (True, False)] * 40
    ahead = taught(*told).knowledge(MODE).readiness.ahead(8, 1.0)
    assert ahead.foreseen[3] > 0.9
    assert ahead.others[3] < 0.1


def test_what_is_there_counts_behind_rounds_alone() -> None:
    seen = replace(a_round(3, 1), prepared=3)
    nobody_knows = replace(a_round(0, 0), previous_round=PreviousRound(0, True))
    learner = taught(*[seen, replace(solo(), previous_round=PreviousRound(3, True)), nobody_knows] * 40)
    assert learner.knowledge(MODE).readiness.ahead(8, 1.0) == PreparedDrafts().ahead(8, 1.0)


@pytest.mark.parametrize(("num_before", "every"), [(0, VARY_EVERY_AT_FIRST), (FIRST_ROUNDS, VARY_EVERY)])
def test_what_is_near_is_tried_now_and_then(num_before: int, every: int) -> None:
    policy = taught(*rounds(lambda gamma: min(gamma, 2))).policy(REQUEST)
    for _ in range(num_before):
        policy.plan(Progress(SURE))
    plans = [policy.plan(Progress(SURE)) for _ in range(len(VARIED_BY) * every)]
    usual = mode_of(plan.gamma for plan in plans)
    varied = [plan.gamma - usual for plan in plans if not plan.max_solo_tokens and plan.gamma != usual]
    assert sorted(varied) == sorted(VARIED_BY * 2)
    # The second of two finds prepared what it asks for.
    firsts = [(one, after) for one, after in pairwise(plans) if one.prepare != usual]
    assert len(firsts) == len(VARIED_BY)
    assert all(one.gamma == one.prepare == after.gamma and after.prepare == usual for one, after in firsts)
    assert not any(plan.chosen for plan in plans if plan.gamma != usual)


def next_of_a_pair(choice: PlanChoice) -> RoundPlan:
    """Return what is planned behind the first of two rounds that try something, once another choice is in use."""
    learner = taught(*rounds(lambda gamma: min(gamma, 2)))
    policy = learner.policy(REQUEST)
    while policy.plan(Progress(SURE)).chosen:
        pass
    learner.knowledge(MODE).tables[8].table = learner.knowledge(MODE).tables[8].table._replace(choice=choice)
    learner.knowledge(MODE).credit_us = 0.0
    return policy.plan(Progress(SURE))


def test_what_was_tried_is_over_once_the_target_decodes_alone() -> None:
    plan = next_of_a_pair(even(3)._replace(closed=7))
    assert not plan.gamma
    assert plan.prepare == 1


def test_nothing_is_tried_that_is_far_from_the_choice() -> None:
    assert next_of_a_pair(even(1)).gamma == 1
    assert next_of_a_pair(even(8)).gamma == 8


def test_where_nothing_else_is_allowed_nothing_is_tried() -> None:
    policy = taught(*rounds(lambda gamma: gamma), request=LONE).policy(LONE)
    plans = [policy.plan(Progress(SURE)) for _ in range(ALONE_AFTER - 1)]
    assert all(plan.chosen for plan in plans)


# What choices kept of their promises.


def tally_of(learner: Learner) -> int:
    return learner.knowledge(MODE).tables[8].tally.num_verdicts


def test_only_what_auto_chose_is_held_against_its_choice() -> None:
    learner = taught(*rounds(lambda gamma: gamma))
    plan = learner.policy(REQUEST).plan(Progress(SURE))
    assert plan.chosen
    seen = a_round(plan.gamma, plan.gamma, before=SURE, after=SURE)
    for change in ({}, {"chosen": plan.chosen, "settled": False}, {"chosen": plan.chosen, "batch_rows": 0}):
        taught(replace(seen, **change), learner=learner)
    assert tally_of(learner) == 0
    taught(replace(seen, chosen=plan.chosen + 1), learner=learner)
    assert tally_of(learner) == 0
    taught(replace(seen, chosen=plan.chosen), learner=learner)
    assert tally_of(learner) == 1


def test_what_the_target_decodes_alone_behind_a_probe_is_held_against_its_promise() -> None:
    learner = useless()
    learner.knowledge(MODE).credit_us = 1e9
    policy = learner.policy(REQUEST)
    first, second = policy.plan(Progress(SURE)), policy.plan(Progress(SURE))
    # A probe, and the target alone behind it.
    assert all((first.gamma, second.gamma, second.max_solo_tokens))
    learner.knowledge(MODE).tables[8].counts_from = 0
    taught(a_round(1, 0), *[replace(solo(), chosen=second.chosen_alone)] * 5, learner=learner)
    assert tally_of(learner) == 5
    # What another gate left to the target alone is no promise of this one.
    taught(*[solo()] * 5, learner=learner)
    assert tally_of(learner) == 5


def in_a_crowd(num_rounds: int, learner: Learner, sessions: int = 8, **changes: int) -> None:
    """Rounds of ``sessions`` at a time."""
    observers = [learner.observer(REQUEST) for _ in range(sessions)]
    for _ in range(num_rounds):
        for observer in observers:
            assert observer is not None
            observer(replace(a_round(2, 2, before=SURE, after=SURE, batch=sessions), **changes))


def test_what_others_still_do_when_the_table_changes_is_held_against_nothing() -> None:
    learner = Learner()
    in_a_crowd(20, learner)
    plan = learner.policy(REQUEST).plan(Progress(SURE))
    assert plan.chosen
    in_a_crowd(VERDICTS_SKIPPED, learner, chosen=plan.chosen)
    assert tally_of(learner) < 8
    in_a_crowd(10, learner, chosen=plan.chosen)
    assert tally_of(learner) > 64


@pytest.mark.parametrize(("sessions", "kept"), [(8, 0.55), (7, 0.55), (2, 1.0), (20, 1.0)])
def test_what_happened_under_another_load_is_held_against_nothing(sessions: int, kept: float) -> None:
    in_use, calibration = InUse(Table(even(2), 1.0, 0.0), due_at=0, counts_from=0, sessions=8), Calibration()
    for _ in range(400):
        in_use.tally.add(1, 2)
    in_use.mark_stable(calibration, 1.0, sessions)
    assert calibration.kept(even(2), crowded=True) == pytest.approx(kept, abs=0.06)
    assert in_use.tally.num_verdicts == 0


def test_what_is_tried_is_not_called_chosen() -> None:
    policy = taught(*rounds(lambda gamma: min(gamma, 2))).policy(REQUEST)
    plans = [policy.plan(Progress(SURE)) for _ in range(ALONE_EVERY)]
    usual = mode_of(plan.gamma for plan in plans)
    assert all(plan.gamma == usual and not plan.max_solo_tokens for plan in plans if plan.chosen)
    assert sum(not plan.chosen for plan in plans) == 2 * ALONE_EVERY // VARY_EVERY_AT_FIRST + 1


def test_a_probe_that_waits_for_an_unsure_place_keeps_no_round_from_counting() -> None:
    learner = taught(*rounds(lambda gamma: gamma))
    taught(*rounds(lambda gamma: 0, 60, UNSURE), learner=learner)
    policy = learner.policy(REQUEST)
    policy.plan(Progress(SURE))
    learner.knowledge(MODE).tables[8].table = (
        learner.knowledge(MODE).tables[8].table._replace(choice=PlanChoice(2, 5, 5))
    )
    learner.knowledge(MODE).credit_us = 1e9
    plans = [policy.plan(Progress(SURE)) for _ in range(6)]
    assert not any(plan.max_solo_tokens for plan in plans), "there is no probe to come"
    assert all(plan.chosen for plan in plans)
    assert policy.plan(Progress(UNSURE)).gamma


# The target alone is tried in a crowd, and where one session's draft is worth little more.


def plans_of(learner: Learner, num_rounds: int, sessions: int, accepted: int) -> list[RoundPlan]:
    """Return what is planned before each of so many rounds of a crowd, in which so much of each draft stands."""
    policy, plans = learner.policy(REQUEST), list[RoundPlan]()
    observers = [learner.observer(REQUEST) for _ in range(sessions)]
    for _ in range(num_rounds):
        plans.append(policy.plan(Progress(SURE)))
        alone = [replace(solo(), batch_sessions=sessions, batch_rows=sessions, chosen=plans[-1].chosen)]
        gamma = plans[-1].gamma
        seen = [replace(a_round(gamma, min(accepted, gamma), batch=sessions), chosen=plans[-1].chosen)]
        for observer in observers:
            assert observer is not None
            for one in seen if plans[-1].gamma else alone:
                observer(one)
    return plans


def test_in_a_crowd_the_target_alone_is_tried_and_less_often_later(monkeypatch: pytest.MonkeyPatch) -> None:
    # Near enough to be tried again when it has been found out.
    monkeypatch.setattr(plan_table, "TRIAL_REACH", 3.0)
    learner = Learner()
    plans = plans_of(learner, 400, 8, accepted=1)
    tried = [index for index, plan in enumerate(plans) if plan.max_solo_tokens > 1]
    first, second = (after for before, after in pairwise([0, *tried]) if after - before > 2 * TRIAL_VERDICTS)
    assert TRIAL_AFTER <= first < second / (TRIAL_LONGER - 1)
    assert all(plans[index].max_solo_tokens <= TRIAL_TOKENS for index in tried)
    assert len(tried) < 4 * TRIAL_VERDICTS
    assert plans[-1].gamma


def test_a_lone_session_tries_it_for_long_enough_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_table, "LONE_TRIAL_REACH", 3.0)
    learner = Learner()
    plans = plans_of(learner, 400, 1, accepted=1)
    tried = [index for index, plan in enumerate(plans) if plan.max_solo_tokens > 1]
    assert LONE_TRIAL_AFTER <= tried[0] < TRIAL_AFTER
    # Nothing else is tried meanwhile.
    assert tried[:MIN_VERDICTS] == [*range(tried[0], tried[0] + MIN_VERDICTS)]
    assert not any(plans[index].max_solo_tokens > 1 for index in range(tried[0] + MIN_VERDICTS + 1, tried[0] + 100))
    assert learner.knowledge(MODE).doubt_of_alone(1) < 1
    assert plans[-1].gamma


def test_a_lone_session_tries_it_where_its_draft_brings_little(monkeypatch: pytest.MonkeyPatch) -> None:
    # It brings about a tenth.
    seen = [a_round(1, accepted, token_us=6000) for accepted in (1, 0, 1)] * 60
    for reach, is_tried in ((1.0, False), (LONE_TRIAL_REACH, True)):
        monkeypatch.setattr(plan_table, "LONE_TRIAL_REACH", reach)
        plan = taught(*seen, *[solo()] * 4, request=LONE).policy(LONE).plan(Progress(SURE))
        assert (plan.max_solo_tokens > 1) is is_tried


def in_trial(sessions: int = 1) -> tuple[Learner, InUse]:
    """Return a learner that tries the target alone."""
    learner = taught(*rounds(lambda gamma: 1))
    learner.policy(REQUEST).plan(Progress(SURE))
    known = learner.knowledge(MODE)
    drafting = known.tables[8]
    alone = drafting.table._replace(choice=PlanChoice(7, 3, 3), number=9, probes=False, most_solo=MIN_VERDICTS)
    known.put_off_trial(sessions)
    due_at = known.num_verdicts + LONE_TRIAL_VERDICTS
    known.tables[8] = InUse(alone, due_at, 0, sessions, resume=drafting.table.choice)
    return learner, known.tables[8]


def test_a_trial_ends_when_it_is_known_what_it_came_to_whoever_else_is_heard() -> None:
    learner, trial = in_trial()
    taught(*[solo()] * MIN_VERDICTS, learner=learner)
    assert learner.table(MODE, 8) == trial.table
    taught(*[replace(solo(), chosen=9)] * MIN_VERDICTS, learner=learner)
    assert learner.table(MODE, 8) != trial.table
    assert learner.knowledge(MODE).tables[8].resume is None


def test_a_trial_does_not_go_on_while_the_next_table_is_searched_for() -> None:
    learner, trial = in_trial()
    assert learner.policy(REQUEST).plan(Progress(SURE)).max_solo_tokens > 1
    learner.knowledge(MODE).searched.add(8)
    taught(*[replace(solo(), chosen=9)] * MIN_VERDICTS, learner=learner)
    assert learner.policy(REQUEST).plan(Progress(SURE)).max_solo_tokens == 1
    assert learner.knowledge(MODE).tables[8] is trial


def test_nothing_is_probed_within_a_trial() -> None:
    learner, trial = in_trial()
    learner.knowledge(MODE).credit_us = 1e9
    policy = learner.policy(REQUEST)
    assert policy.plan(Progress(SURE)).gamma == 0
    trial.table = trial.table._replace(probes=True)
    assert policy.plan(Progress(SURE)).gamma > 0
    trial.table = trial.table._replace(probes=False)
    assert policy.plan(Progress(SURE)).gamma == 0, "one that had begun is over"


def test_what_a_crowd_put_off_a_lone_session_does_not_wait_for() -> None:
    known = ModeState(num_verdicts=10_000)
    known.put_off_trial(8)
    assert known.trial_at > 10_000 + TRIALS_APART
    assert not known.take_trial(1)
    known.num_verdicts += TRIALS_APART
    assert known.take_trial(1)


def test_where_nothing_is_doubted_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_table, "TRIAL_REACH", 3.0)
    monkeypatch.setattr(ModeState, "doubt_of_alone", lambda *_: 0.0)
    assert not any(plan.max_solo_tokens > 1 for plan in plans_of(Learner(), 200, 8, accepted=1))


@pytest.mark.parametrize(("sessions", "accepted"), [(1, 1), (8, 8)])
def test_it_is_not_tried_where_nothing_can_be_learned_or_won(sessions: int, accepted: int) -> None:
    plans = plans_of(Learner(), 200, sessions, accepted)
    assert all(plan.gamma for plan in plans)
    # Once more than a few rounds are known nothing is left to the target, by a gate either.
    settled = plans[10:] if sessions > 1 else plans
    assert not any(plan.max_solo_tokens > 1 for plan in settled)
