"""Cases, choices and blocks; a comparison over fakes."""

from dataclasses import replace

import pytest

from orchestrator.policy.gates import Gate
from specgate.errors import ServiceUnavailable
from specgate_lab.experiment import Sample
from specgate_lab.gate_choice import ALONE, AUTO
from specgate_lab.gates.cases import Case, DraftKind, requests_of
from specgate_lab.gates.measure import CaseResult, block_sample, measure_case
from specgate_lab.gates.options import GateOptions
from tests.specgate_lab.support import FakeStart, Ticks, a_request, a_timeline

ONE, TWO = Case(DraftKind.GOOD, 0.0, 1), Case(DraftKind.RANDOM, 0.7, 2)
PROMPTS = [a_request((prompt,), max_tokens=24) for prompt in (5, 6, 7)]
CHOICES = GateOptions(gammas="2", thresholds="0.5", draft_thresholds="").choices


def test_fixed_choices_and_auto() -> None:
    options = GateOptions(gammas="1,8", thresholds="0.3,0.7", draft_thresholds="0.4", gated_gammas="3")
    names = [str(choice) for choice in options.choices]
    with_thresholds = ["target_confidence 0.3", "target_confidence 0.7", "draft_confidence 0.4"]
    with_thresholds += ["target_confidence 0.3 + draft 0.4", "target_confidence 0.7 + draft 0.4"]
    assert names == [ALONE, "none γ 1", "none γ 8", *(f"{name} γ 3" for name in with_thresholds), AUTO]
    both = options.choices[-2].of(PROMPTS[0])
    assert (both.gate, both.threshold, both.stop_below, both.max_gamma) == (Gate.TARGET_CONFIDENCE, 0.7, 0.4, 3)
    alone, none, gated, auto = (choice.of(PROMPTS[0]) for choice in CHOICES)
    assert (alone.max_gamma, none.max_gamma, none.gate) == (0, 2, Gate.NONE)
    assert (gated.gate, gated.threshold, gated.max_gamma) == (Gate.TARGET_CONFIDENCE, 0.5, 5)
    assert (auto.gate, auto.max_gamma, auto.threshold) == (Gate.AUTO, 8, 0.0)


def test_blocks_take_the_prompts_in_turn_with_seeds_of_their_own() -> None:
    lone = [requests_of(ONE, PROMPTS, block) for block in range(4)]
    assert [request.prompt_token_ids for (request,) in lone] == [(5,), (6,), (7,), (5,)]
    requests = [request for block in range(3) for request in requests_of(TWO, PROMPTS, block)]
    assert [request.prompt_token_ids[0] for request in requests] == [5, 6, 7] * 4
    assert len({request.seed for request in requests}) == 12
    assert {request.sampling.temperature for request in requests} == {0.7}


@pytest.mark.parametrize("case", [ONE, TWO._replace(temperature=0.0)])
async def test_every_choice_gets_the_same_blocks_and_auto_has_a_warm_up_and_rounds_of_its_own(case: Case) -> None:
    fixed, auto, ticks = FakeStart(), FakeStart(), list[None]()
    size = (3, 2, lambda: ticks.append(None), Ticks())
    result = await measure_case(fixed, auto, case, CHOICES, PROMPTS, *size)
    # auto alone runs the first block of the warm-up; the second one is not counted.
    assert len(ticks) == len(CHOICES) * 3 + 1
    num_requests = len(requests_of(case, PROMPTS, 0))
    at_least = 24 * (num_requests - case.concurrency + 1)
    assert {name: len(blocks) for name, blocks in result.samples.items()} == {str(choice): 3 for choice in CHOICES}
    assert all(at_least <= one.tokens <= 24 * num_requests for blocks in result.samples.values() for one in blocks)
    assert {one.gate for one in auto.asked} == {Gate.AUTO}
    by_choice: dict[tuple[Gate, int], set[tuple[tuple[int, ...], int | None]]] = {}
    for one in fixed.asked:
        by_choice.setdefault((one.gate, one.max_gamma), set()).add((one.prompt_token_ids, one.seed))
    every = {(one.prompt_token_ids, one.seed) for one in auto.asked}
    first_warm_up = {(one.prompt_token_ids, one.seed) for one in requests_of(case, PROMPTS, 3)}
    assert len(every) == 5 * num_requests
    assert list(by_choice.values()) == [every - first_warm_up] * (len(CHOICES) - 1)


async def test_a_request_that_breaks_off_ends_it() -> None:
    broken = FakeStart([ServiceUnavailable("none is there")])
    with pytest.raises(ServiceUnavailable):
        await measure_case(broken, broken, ONE, CHOICES, PROMPTS, 1, 0)


def test_auto_is_held_against_the_best_fixed_choice() -> None:
    def blocks(seconds: float) -> list[Sample]:
        return [Sample(100, seconds, case=case) for case in range(4)]

    result = CaseResult(ONE, {ALONE: blocks(2.0), "none γ 2": blocks(1.0), AUTO: blocks(1.25)})
    values = result.to_object()
    assert values["best_fixed"] == "none γ 2"
    assert values["auto_to_best"] == pytest.approx({"value": 0.8, "low": 0.8, "high": 0.8})
    auto = values["choices"][-1]
    assert auto["name"] == AUTO
    assert (auto["ratio_to_alone"]["low"], auto["tokens_per_s"]) == pytest.approx((1.6, 80))
    assert replace(result, samples={**result.samples, AUTO: blocks(0.5)}).best_fixed == "none γ 2"


@pytest.mark.parametrize(("num_clients", "tokens", "seconds"), [(1, 10, 8.0), (2, 9, 5.0)])
def test_a_block_ends_when_a_client_has_nothing_left_to_ask_for(num_clients: int, tokens: int, seconds: float) -> None:
    arrivals = [((2.0, 1), (3.0, 4)), ((4.0, 2), (6.0, 1)), ((5.0, 1), (9.0, 1))]
    block = block_sample([a_timeline(0.0, *one) for one in arrivals], 1.0, num_clients)
    assert (block.tokens, block.seconds) == (tokens, seconds)
