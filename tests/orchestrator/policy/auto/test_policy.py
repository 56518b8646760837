"""Plans of ``auto`` through its public seam: a learner makes policies, records go in, plans come out."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import mode

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.costs import LEAST_RUN, MeasuredCosts
from orchestrator.policy.auto.learner import MAX_CHOICE, Learner
from orchestrator.policy.auto.mode import at_once
from orchestrator.policy.auto.policy import PROBE_ROUNDS
from orchestrator.policy.gates import Gate, Policy, make_policy
from specgate.types import ALWAYS_SOLO, ForwardCost, RoundPlan, RoundRecord, SamplingParams, Verification, WhyAlone
from tests.orchestrator.policy.auto.support import (
    DRAFT_US,
    FORWARD_US,
    REQUEST,
    SURE,
    THERE,
    UNSURE,
    Drafter,
    Progress,
    a_round,
    an_observer,
    drive,
    measured,
    solo,
)


def all_stand(gamma: int) -> int:
    return gamma


def none_stands(gamma: int) -> int:
    return 0


def settled(learner: Learner, request: GenerationRequest = REQUEST) -> Policy:
    """Return a policy that has no probe to make: another one has just made it."""
    learner.policy(request, THERE).plan(Progress(UNSURE))
    return learner.policy(request, THERE)


def test_the_first_plan_follows_from_what_the_services_told() -> None:
    cheap, dear = (Learner(partial(measured, us)).policy(REQUEST, THERE) for us in (DRAFT_US, FORWARD_US))
    assert cheap.plan(Progress()).gamma >= 2
    assert dear.plan(Progress()) == RoundPlan(
        0, 0.0, ALWAYS_SOLO, LEAST_RUN, keeps_warm=False, why_alone=WhyAlone.NO_GAIN
    )


def test_without_told_costs_the_first_round_finds_them_out() -> None:
    learner = Learner()
    policy = learner.policy(REQUEST, THERE)
    assert policy.plan(Progress()) == RoundPlan(1)
    assert policy.plan_ahead(Progress()) is not None
    an_observer(learner)(a_round(1, 1))
    assert policy.plan(Progress()).gamma > 1


def test_a_drafter_that_comes_later_is_heard() -> None:
    costs = [measured()._replace(draft=())]
    learner = Learner(lambda: costs[0])
    assert learner.policy(REQUEST, THERE).plan(Progress()).gamma > 0
    costs[0] = measured(draft_us=2 * FORWARD_US)
    assert drive(learner, all_stand, 100, draft_us=2 * FORWARD_US)[-1] == 0


def test_a_good_draft_is_asked_for_as_much_as_is_allowed() -> None:
    for max_gamma, least, most in ((2, 2, 2), (8, 7, 8), (60, MAX_CHOICE - 2, MAX_CHOICE)):
        request = GenerationRequest((1,), gate=Gate.AUTO, gamma=max_gamma)
        gammas = drive(Learner(measured), all_stand, 800, request=request)
        assert least <= mode(gammas[-20:]) <= most


def test_a_useless_draft_is_soon_left_alone_and_seldom_tried_again() -> None:
    learner = Learner(measured)
    first, later = drive(learner, none_stands, 400), drive(learner, none_stands, 4000)
    assert sum(gamma > 0 for gamma in first) < 24
    num_probes = sum(gamma > 0 for gamma in later)
    assert 0 < num_probes < 0.05 * len(later)


def test_it_comes_back_once_the_draft_is_good_again() -> None:
    learner = Learner(measured)
    drive(learner, none_stands, 800)
    assert sum(drive(learner, all_stand, 4000)[-20:]) > 100


def test_what_lucky_probes_began_is_soon_looked_at_again() -> None:
    num_searches = 0

    def pace(steps: Iterator[None]) -> None:
        nonlocal num_searches
        num_searches += 1
        at_once(steps)

    learner = Learner(measured, pace)
    drive(learner, none_stands, 4000)
    while not all(drive(learner, all_stand, 40)[-4:]):
        pass
    before = num_searches
    drive(learner, none_stands, 60)
    assert num_searches >= before + 2


def test_a_draft_that_is_too_dear_even_if_it_always_agreed_is_never_tried() -> None:
    learner = Learner(lambda: measured(draft_us=FORWARD_US))
    assert not any(drive(learner, all_stand, 4000, draft_us=FORWARD_US))


def test_a_drafter_that_was_slow_for_a_while_is_tried_again() -> None:
    learner = Learner(measured)
    observer = an_observer(learner)
    for _ in range(200):
        observer(a_round(4, 4, draft_us=20 * DRAFT_US))
    observer.leave()
    gammas = drive(learner, all_stand, 12_000)
    assert not any(gammas[2:64])  # (After a probe.)
    assert sum(gammas[-20:]) > 100


def test_a_probe_waits_until_the_prompt_that_the_drafter_must_read_is_paid_for() -> None:
    """The longer the text, the dearer it is to ask a drafter that has read nothing of it."""
    tried = []
    for length in (1, 10_000):
        learner = Learner(measured)
        drive(learner, none_stands, 400)
        observer, policy = an_observer(learner), learner.policy(REQUEST, Drafter(num_unread=length))
        session, num_verdicts = Progress(SURE), 0
        while policy.plan(session).gamma == 0:
            observer(a_round(0, 0))
            num_verdicts += 1
        tried.append(num_verdicts)
    assert tried[1] > 5 * tried[0]


def test_a_probe_is_not_over_before_its_drafter_has_read_the_text() -> None:
    learner, drafter = Learner(measured), Drafter(available=False)
    drive(learner, none_stands, 400)
    observer, policy = an_observer(learner), learner.policy(REQUEST, drafter)
    while policy.plan(Progress(SURE)).gamma == 0:
        observer(a_round(0, 0))
    assert all(policy.plan(Progress(SURE)).gamma for _ in range(10))
    drafter.available = True
    assert [policy.plan(Progress(SURE)).gamma > 0 for _ in range(3)] == [True, True, False]


def test_a_long_text_without_a_draft_does_not_forget_why() -> None:
    learner = Learner(measured)
    drive(learner, none_stands, 400)
    observer, policy = an_observer(learner), settled(learner)
    for _ in range(1000):
        observer(a_round(0, 0))
    assert sum(policy.plan(Progress(SURE)).gamma > 0 for _ in range(20)) <= PROBE_ROUNDS


def test_unsure_places_are_left_to_the_verifier() -> None:
    learner = Learner(measured)
    observer = an_observer(learner)
    for _ in range(100):
        observer(a_round(4, 4, SURE))
        observer(a_round(4, 0, UNSURE))
    probing = learner.policy(REQUEST, THERE)
    assert probing.plan(Progress(UNSURE)).gamma > 0
    assert probing.plan_ahead(Progress(SURE)) is None
    policy = learner.policy(REQUEST, THERE)
    plan = policy.plan(Progress(SURE))
    assert plan.gamma > 3
    assert UNSURE < plan.solo_below < SURE
    assert plan.max_solo_tokens == LEAST_RUN
    assert policy.plan(Progress(SURE, remaining=5)).max_solo_tokens == 5


def test_a_text_on_which_the_draft_does_badly_is_left_alone_and_not_probed_and_another_is_not() -> None:
    learner = Learner(measured)
    good, poor = an_observer(learner), an_observer(learner)
    for _ in range(300):
        good(replace(a_round(4, 4, batch=2), agreement=0.9))
        for _ in range(5):
            poor(replace(a_round(4, 0, batch=2), agreement=0.1))
    policy = learner.policy(REQUEST, THERE)
    assert policy.plan(Progress(SURE, agreement=0.9)).gamma > 0
    plans = [policy.plan(Progress(SURE, agreement=0.1)) for _ in range(20)]
    assert {plan.gamma for plan in plans} == {0}
    assert {(plan.solo_below, plan.keeps_warm, plan.why_alone) for plan in plans} == {
        (ALWAYS_SOLO, False, WhyAlone.NO_GAIN)
    }
    assert policy.plan_ahead(Progress(SURE, agreement=0.1)) is None


def test_modes_are_learned_apart_and_what_rounds_cost_is_not() -> None:
    learner = Learner(measured)
    drive(learner, none_stands, 400)
    warm = GenerationRequest((1,), SamplingParams(temperature=1.0), gate=Gate.AUTO, gamma=8)
    rejection = GenerationRequest(
        (1,), SamplingParams(temperature=1.0), gate=Gate.AUTO, gamma=8, verification=Verification.REJECTION
    )
    greedy_too = GenerationRequest(
        (1,), SamplingParams(temperature=0.0), gate=Gate.AUTO, gamma=8, verification=Verification.REJECTION
    )
    cool = replace(warm, sampling=SamplingParams(temperature=0.5))
    asked = (warm, rejection, greedy_too, cool, REQUEST)
    # The request's own temperature is 1.
    assert [settled(learner, one).plan(Progress()).gamma > 0 for one in asked] == [False, True, True, True, False]


def test_a_gate_that_ends_drafts_teaches_nothing() -> None:
    both = GenerationRequest((1,), gate=Gate.TARGET_CONFIDENCE, draft_threshold=0.3)
    for request in (GenerationRequest((1,), gate=Gate.DRAFT_CONFIDENCE), both):
        assert Learner(measured).observer(request) is None
    assert Learner(measured).observer(GenerationRequest((1,), gate=Gate.NONE)) is not None


def test_a_draft_is_always_asked_how_sure_it_is_and_ends_where_that_pays() -> None:
    learner = Learner(partial(measured, 3 * DRAFT_US))
    assert 0 < settled(learner).plan(Progress(SURE)).stop_below < 1e-6
    observer = an_observer(learner)
    for _ in range(60):
        observer(a_round(4, 1, sure=(0.95, 0.1, 0.9, 0.9), draft_us=3 * DRAFT_US))
        observer(a_round(4, 4, sure=(0.95,) * 4, draft_us=3 * DRAFT_US))
    policy = settled(learner)
    plan, ahead = policy.plan(Progress(SURE)), policy.plan_ahead(Progress(SURE))
    assert 0.1 < plan.stop_below < 0.95
    assert plan.gamma >= 4
    assert ahead is not None
    assert ahead.plan == plan


def test_what_is_planned_ahead_is_what_is_planned() -> None:
    learner = Learner(measured)
    drive(learner, all_stand, 400)
    policy = settled(learner)
    ahead = policy.plan_ahead(Progress(SURE))
    assert ahead is not None
    assert ahead.plan == policy.plan(Progress(SURE))
    assert ahead.least_confidence <= SURE


def test_nothing_is_planned_ahead_of_a_target_alone_or_of_a_probe() -> None:
    learner = Learner(measured)
    drive(learner, none_stands, 400)
    alone, observe = settled(learner), an_observer(learner)
    assert alone.plan_ahead(Progress(SURE)) is None
    while alone.plan(Progress(SURE)).gamma == 0:
        observe(a_round(0, 0))
    assert alone.plan_ahead(Progress(SURE)) is None


def test_a_burst_finds_its_own_choice_before_any_of_it_has_a_verdict_and_one_alone_finds_its_own_again() -> None:
    """Up to six rows are free, and each further one is dear."""
    target = ForwardCost(1, 8000), ForwardCost(6, 8000), ForwardCost(17, 40_000)
    learner = Learner(lambda: MeasuredCosts(target, measured().draft))
    policy = learner.policy(REQUEST, THERE)
    one_alone = policy.plan(Progress(SURE)).gamma
    burst = [an_observer(learner) for _ in range(16)]
    for observer in burst:
        observer.enter()
    assert policy.plan(Progress(SURE)).gamma < one_alone
    for observer in burst:
        observer.leave()
    assert policy.plan(Progress(SURE)).gamma == one_alone


def test_many_sessions_make_drafting_dearer() -> None:
    """What a row costs is paid once a session, what a forward costs is shared: eight sessions draft less than one."""
    gammas = []
    for num_sessions in (1, 8):
        learner = Learner(lambda: MeasuredCosts(measured().target, measured(draft_us=2000).draft))
        observers = [an_observer(learner) for _ in range(num_sessions)]
        for number in range(400):
            accepted = 2 if number % 3 else 0
            observers[number % num_sessions](a_round(3, accepted, 0.6, batch=num_sessions, draft_us=2000))
        gammas.append(learner.policy(REQUEST, THERE).plan(Progress(0.6)).gamma)
        for observer in observers:
            observer.leave()
            observer.leave()
    assert gammas[1] <= gammas[0]


def test_searches_of_a_running_session_are_few_and_left_to_the_pace() -> None:
    queued: list[Iterator[None]] = []
    learner = Learner(measured, queued.append)
    policy, observer = learner.policy(REQUEST, THERE), an_observer(learner)
    first = policy.plan(Progress())
    assert first.gamma > 0
    assert not queued
    num_searches = 0
    for _ in range(1000):
        observer(a_round(first.gamma, first.gamma, plan=first))
        assert policy.plan(Progress(SURE)).gamma > 0
        num_searches += len(queued)
        while queued:
            at_once(queued.pop())
    assert 10 < num_searches < 20, "a search takes longer than a round"


def test_a_search_that_takes_long_is_the_only_one() -> None:
    queued: list[Iterator[None]] = []
    learner = Learner(measured, queued.append)
    policy, observer = learner.policy(REQUEST, THERE), an_observer(learner)
    for _ in range(2):
        for _ in range(100):
            plan = policy.plan(Progress(SURE))
            observer(a_round(4, plan=plan))
        assert len(queued) == 1
        at_once(queued.pop())


def far_learner() -> Learner:
    """Of services that are half a forward away."""
    costs = measured()._replace(round_trip_us=0.5 * FORWARD_US)
    return Learner(lambda: costs)


def run_of(accepted: int) -> RoundRecord:
    """A verdict that took four tokens of a running draft."""
    one = a_round(4, accepted, plan=RoundPlan(running_gamma=4, max_solo_tokens=64))
    return replace(one, verdict=replace(one.verdict, draft_token_ids=(3,) * 4))


def test_a_running_draft_goes_on_where_it_comes_in_time_and_not_where_it_is_later_than_expected() -> None:
    late = replace(solo(), plan=RoundPlan(running_gamma=4, max_solo_tokens=64))
    for record, goes_on in ((run_of(4), True), (late, False)):
        learner = far_learner()
        policy, observe = make_policy(REQUEST, THERE, learner), an_observer(learner)
        plans = [policy.plan(Progress(SURE))]
        for _ in range(600):
            observe(record)
            plans.append(policy.plan(Progress(SURE)))
        assert plans[0].running_gamma > 0
        assert plans[0].gamma == 0
        assert (plans[-1].running_gamma > 0) == goes_on
        assert not goes_on or policy.plan_ahead(Progress()) is None


def test_a_running_draft_that_is_never_right_is_tried_now_and_then() -> None:
    learner = far_learner()
    policy, observe = make_policy(REQUEST, THERE, learner), an_observer(learner)
    for _ in range(200):
        observe(run_of(0))
        policy.plan(Progress(SURE))
    plans = []
    for _ in range(2000):
        observe(solo())
        plans.append(policy.plan(Progress(SURE)))
    running = [plan for plan in plans if plan.running_gamma]
    assert 0 < len(running) < len(plans) / 20
    assert {plan.gamma for plan in plans} == {0}


def test_a_sampled_draft_is_asked_for() -> None:
    sampled = replace(REQUEST, verification=Verification.REJECTION, sampling=SamplingParams(temperature=1.0))
    for request, runs in ((REQUEST, True), (sampled, False)):
        plan = make_policy(request, THERE, far_learner()).plan(Progress(SURE))
        assert (plan.running_gamma > 0) == runs
        assert (plan.gamma > 0) != runs
