"""Cases, choices and blocks; a comparison over fakes."""

from collections import Counter
from dataclasses import replace

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import ServiceUnavailable
from specgate_lab.gates.cases import AUTO, Case, DraftKind, choices_of, in_turn, requests_of, turns
from specgate_lab.gates.measure import CaseResult, measure_case
from specgate_lab.gates.ratios import Block
from specgate_lab.replay.compare import ALONE
from tests.specgate_lab.support import FakeStart, Ticks, a_request, a_timeline

ONE, TWO = Case(DraftKind.GOOD, 0.0, 1), Case(DraftKind.SLOW, 0.7, 2)
PROMPTS = [a_request((prompt,), max_tokens=24) for prompt in (5, 6, 7)]
CHOICES = choices_of([2], [0.5])


class Starter(FakeStart):
    """Notes which learner each gate teaches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taught: dict[Gate, set[int]] = {gate: set() for gate in Gate}

    def generate(self, request: GenerationRequest):
        self.taught[request.gate].add(id(self.learner))
        return super().generate(request)


def test_fixed_choices_and_auto() -> None:
    names = [choice.name for choice in choices_of([1, 8], [0.3, 0.7])]
    assert names == [ALONE, "none γ 1", "none γ 8", "0.3 γ 5", "0.7 γ 5", AUTO]
    alone, none, gated, auto = (choice.of(PROMPTS[0]) for choice in CHOICES)
    assert (alone.max_gamma, none.max_gamma, none.gate) == (0, 2, Gate.NONE)
    assert (gated.gate, gated.threshold, gated.max_gamma) == (Gate.TARGET_CONFIDENCE, 0.5, 5)
    assert (auto.gate, auto.max_gamma, auto.threshold) == (Gate.AUTO, 8, 0.0)


def test_everybody_is_first_equally_often_and_auto_alone_has_all_of_the_warm_up() -> None:
    firsts = Counter(next(in_turn(CHOICES, block)).name for block in range(2 * len(CHOICES)))
    assert firsts == {choice.name: 2 for choice in CHOICES}
    ran: dict[str, list[int]] = {choice.name: [] for choice in CHOICES}
    for number, choice in turns(CHOICES, 2, 3):
        ran[choice.name].append(number)
    assert ran.pop(AUTO) == [-3, -2, -1, 0, 1]
    assert list(ran.values()) == [[-1, 0, 1]] * (len(CHOICES) - 1)
    assert all(number >= 0 for number, _ in turns(CHOICES, 2, 0))


def test_blocks_take_the_prompts_in_turn_with_seeds_of_their_own() -> None:
    lone = [requests_of(ONE, PROMPTS, block) for block in range(4)]
    assert [request.prompt_token_ids for (request,) in lone] == [(5,), (6,), (7,), (5,)]
    requests = [request for block in range(3) for request in requests_of(TWO, PROMPTS, block)]
    assert [request.prompt_token_ids[0] for request in requests] == [5, 6, 7] * 4
    assert len({request.seed for request in requests}) == 12
    assert {request.sampling.temperature for request in requests} == {0.7}


@pytest.mark.parametrize("case", [ONE, TWO._replace(temperature=0.0)])
async def test_every_choice_gets_the_same_blocks_and_auto_learns_from_itself_alone(case: Case) -> None:
    starter, ticks = Starter(), list[None]()
    outcome = await measure_case(starter, case, CHOICES, PROMPTS, 3, 2, lambda: ticks.append(None), Ticks())
    assert len(ticks) == len(CHOICES) * (3 + 1) + 1
    assert {name: len(blocks) for name, blocks in outcome.blocks.items()} == {choice.name: 3 for choice in CHOICES}
    num_requests = len(requests_of(case, PROMPTS, 0))
    at_least = 24 * (num_requests - case.concurrency + 1)
    assert all(at_least <= block.tokens <= 24 * num_requests for blocks in outcome.blocks.values() for block in blocks)
    by_choice: dict[tuple[Gate, int], list[tuple[tuple[int, ...], int | None]]] = {}
    for one in starter.asked:
        by_choice.setdefault((one.gate, one.max_gamma), []).append((one.prompt_token_ids, one.seed))
    auto, *others = sorted(by_choice.values(), key=len, reverse=True)
    assert others == [auto[num_requests:]] * (len(CHOICES) - 1)
    assert len({seed for _, seed in auto}) == 5 * num_requests
    (own,), (fixed,) = starter.taught[Gate.AUTO], starter.taught[Gate.NONE] | starter.taught[Gate.TARGET_CONFIDENCE]
    assert own != fixed == id(outcome.tally)
    # What stood is counted by confidence and position.
    judged, accepted = (sum(map(sum, counts)) for counts in (outcome.tally.judged, outcome.tally.accepted))
    assert judged >= accepted > 0


async def test_a_request_that_breaks_off_ends_it() -> None:
    with pytest.raises(ServiceUnavailable):
        await measure_case(Starter([ServiceUnavailable("none is there")]), ONE, CHOICES, PROMPTS, 1, 0)


def test_auto_is_held_against_the_best() -> None:
    blocks = {ALONE: [Block(100, 2.0)] * 4, "none γ 2": [Block(100, 1.0)] * 4, AUTO: [Block(100, 1.25)] * 4}
    outcome = CaseResult(ONE, blocks)
    assert outcome.best_fixed == "none γ 2"
    assert outcome.auto_to(outcome.best_fixed) == pytest.approx((0.8, 0.8, 0.8))
    told = outcome.to_object()
    assert (told["auto_to_alone"]["low"], told["rates"][AUTO]) == pytest.approx((1.6, 80))
    ahead = replace(outcome, blocks={**blocks, AUTO: [Block(100, 0.5)] * 4})
    assert ahead.best_fixed == "none γ 2"


@pytest.mark.parametrize(("case", "block"), [(ONE, Block(10, 8.0)), (TWO, Block(9, 5.0))])
def test_a_block_ends_when_a_client_has_nothing_left_to_ask_for(case: Case, block: Block) -> None:
    outcome = CaseResult(case, {ALONE: []})
    arrivals = [((2.0, 1), (3.0, 4)), ((4.0, 2), (6.0, 1)), ((5.0, 1), (9.0, 1))]
    outcome.add(CHOICES[0], [a_timeline(0.0, *one) for one in arrivals], 1.0)
    assert outcome.blocks[ALONE] == [block]
