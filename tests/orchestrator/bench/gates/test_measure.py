"""Cases, choices and blocks; a comparison over fakes."""

from collections import Counter
from dataclasses import replace

import pytest

from orchestrator.bench.gates.cases import AUTO, Case, DraftKind, choices_of, in_turn, requests_of, turns
from orchestrator.bench.gates.measure import CaseResult, measure_case
from orchestrator.bench.gates.ratios import Block
from orchestrator.bench.gates.report import markdown
from orchestrator.bench.gates.tally import NUM_POSITIONS
from orchestrator.bench.load.trace import Arrival, RequestTimeline
from orchestrator.bench.replay.compare import ALONE
from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.auto.history import NUM_BUCKETS
from orchestrator.policy.auto.learner import Learner
from orchestrator.policy.gates import Gate
from specgate.errors import ServiceUnavailable
from tests.orchestrator.bench.load.support import FakeStart, Ticks, a_request

ONE, TWO = Case(DraftKind.GOOD, 0.0, 1), Case(DraftKind.SLOW, 0.7, 2)
PROMPTS = [a_request((prompt,), max_tokens=24) for prompt in (5, 6, 7)]
CHOICES = choices_of([2], [0.5])


class Starter(FakeStart):
    """Notes whom each request teaches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.taught: list[tuple[Gate, Learner]] = []

    def generate(self, request: GenerationRequest):
        self.taught.append((request.gate, self.learner))
        return super().generate(request)


def test_fixed_choices_and_auto() -> None:
    names = [choice.name for choice in choices_of([1, 8], [0.3, 0.7])]
    assert names == [ALONE, "none γ 1", "none γ 8", "0.3 γ 5", "0.7 γ 5", AUTO]
    alone, none, gated, auto = (choice.of(PROMPTS[0]) for choice in CHOICES)
    assert (alone.max_gamma, none.max_gamma, none.gate) == (0, 2, Gate.NONE)
    assert (gated.gate, gated.threshold, gated.max_gamma) == (Gate.TARGET_CONFIDENCE, 0.5, 5)
    assert (auto.gate, auto.max_gamma, auto.threshold) == (Gate.AUTO, 8, 0.0)


def test_everybody_is_first_equally_often() -> None:
    firsts = Counter(next(in_turn(CHOICES, block)).name for block in range(2 * len(CHOICES)))
    assert firsts == {choice.name: 2 for choice in CHOICES}
    assert sorted(in_turn(CHOICES, 3)) == sorted(CHOICES)


def test_auto_alone_has_all_of_the_warm_up() -> None:
    ran: dict[str, list[int]] = {choice.name: [] for choice in CHOICES}
    for number, choice in turns(CHOICES, 2, 3):
        ran[choice.name].append(number)
    assert ran.pop(AUTO) == [-3, -2, -1, 0, 1]
    assert list(ran.values()) == [[-1, 0, 1]] * (len(CHOICES) - 1)
    assert all(number >= 0 for number, _ in turns(CHOICES, 2, 0))


def test_blocks_take_the_prompts_in_turn_with_seeds_of_their_own() -> None:
    lone = [requests_of(ONE, PROMPTS, block) for block in range(4)]
    assert [request.prompt_token_ids for (request,) in lone] == [(5,), (6,), (7,), (5,)]
    blocks = [requests_of(TWO, PROMPTS, block) for block in range(3)]
    assert [len(block) for block in blocks] == [4, 4, 4]
    requests = [request for block in blocks for request in block]
    assert len({request.seed for request in requests}) == 12
    assert {request.sampling.temperature for request in requests} == {0.7}
    assert [request.prompt_token_ids[0] for request in requests[:5]] == [5, 6, 7, 5, 6]


@pytest.mark.parametrize("case", [ONE, TWO])
async def test_every_choice_gets_the_same_blocks_and_auto_learns_from_itself_alone(case: Case) -> None:
    starter, ticks = Starter(), list[None]()
    # The fakes are greedy.
    case = case._replace(temperature=0.0)
    outcome = await measure_case(starter, case, CHOICES, PROMPTS, 3, 2, lambda: ticks.append(None), Ticks())
    assert len(ticks) == len(CHOICES) * (3 + 1) + 1
    assert {name: len(blocks) for name, blocks in outcome.blocks.items()} == {choice.name: 3 for choice in CHOICES}
    num_requests = len(requests_of(case, PROMPTS, 0))
    at_least = 24 * (num_requests - case.concurrency + 1)
    assert all(at_least <= block.tokens <= 24 * num_requests for blocks in outcome.blocks.values() for block in blocks)
    assert all(block.seconds > 0 for blocks in outcome.blocks.values() for block in blocks)
    by_choice: dict[tuple[Gate, int], list[tuple[tuple[int, ...], int | None]]] = {}
    for one in starter.asked:
        by_choice.setdefault((one.gate, one.max_gamma), []).append((one.prompt_token_ids, one.seed))
    auto, *others = sorted(by_choice.values(), key=len, reverse=True)
    assert len(others) == len(CHOICES) - 1
    assert all(asked == auto[num_requests:] for asked in others)
    assert len({seed for _, seed in auto}) == 5 * num_requests
    by_gate = {gate: {id(learner) for one, learner in starter.taught if one is gate} for gate in Gate}
    (own,), (fixed,) = by_gate[Gate.AUTO], by_gate[Gate.NONE] | by_gate[Gate.TARGET_CONFIDENCE]
    assert own != fixed == id(outcome.tally)


async def test_what_stood_is_counted_by_confidence_and_position() -> None:
    outcome = await measure_case(Starter(), ONE, choices_of([2], []), PROMPTS, 2, 0, clock=Ticks())
    judged, accepted = outcome.tally.judged, outcome.tally.accepted
    assert (len(judged), len(judged[0])) == (NUM_BUCKETS, NUM_POSITIONS)
    first, second, third = (sum(row[index] for row in judged) for index in range(3))
    assert first >= second > third == 0
    assert 0 < sum(map(sum, accepted)) <= first + second


async def test_a_request_that_breaks_off_ends_it() -> None:
    with pytest.raises(ServiceUnavailable):
        await measure_case(Starter([ServiceUnavailable("none is there")]), ONE, CHOICES, PROMPTS, 1, 0)


def an_outcome() -> CaseResult:
    blocks = {ALONE: [Block(100, 2.0)] * 4, "none γ 2": [Block(100, 1.0)] * 4, AUTO: [Block(100, 1.25)] * 4}
    return CaseResult(ONE, blocks)


def test_auto_is_held_against_the_best() -> None:
    outcome = an_outcome()
    assert outcome.best_fixed == "none γ 2"
    assert outcome.auto_to(outcome.best_fixed) == pytest.approx((0.8, 0.8, 0.8))
    told = outcome.to_object()
    assert (told["auto_to_alone"]["low"], told["rates"][AUTO]) == pytest.approx((1.6, 80))
    ahead = replace(outcome, blocks={**outcome.blocks, AUTO: [Block(100, 0.5)] * 4})
    assert ahead.best_fixed == "none γ 2"


def test_the_table_has_a_row_a_case() -> None:
    *_, row = markdown([an_outcome()]).splitlines()
    cells = "good | 0 | 1 | 50 | 100 | none γ 2 | 80 | 0.800 (0.800 to 0.800) | 1.600 (1.600 to 1.600)"
    assert row == f"| {cells} |"


def a_trace(*arrivals: tuple[float, int]) -> RequestTimeline:
    return RequestTimeline(0.0, tuple(Arrival(*arrival) for arrival in arrivals))


@pytest.mark.parametrize(("case", "block"), [(ONE, Block(10, 8.0)), (TWO, Block(9, 5.0))])
def test_a_block_ends_when_a_client_has_nothing_left_to_ask_for(case: Case, block: Block) -> None:
    outcome = CaseResult(case, {ALONE: []})
    outcome.add(
        CHOICES[0], [a_trace((2.0, 1), (3.0, 4)), a_trace((4.0, 2), (6.0, 1)), a_trace((5.0, 1), (9.0, 1))], 1.0
    )
    assert outcome.blocks[ALONE] == [block]
