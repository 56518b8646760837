"""With a real model in bfloat16: greedy text is the target's own up to the first near tie of that format."""

from collections.abc import Iterator

import pytest

from orchestrator.policy.gates import Gate
from specgate_lab.gate_choice import GateChoice
from specgate_lab.proof.plan import Setting, greedy_request
from specgate_lab.proof.runs import record_all
from specgate_lab.proof.texts import by_margin, compare, near_tie_limit
from tests.real.pair import Services, prompts, serving

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

NUM_CHATS, MAX_TOKENS = 6, 32
ONE_BY_ONE = Setting(GateChoice(Gate.NONE, 4), 1)
CHOICES = GateChoice(Gate.NONE, 4), GateChoice(Gate.TARGET_CONFIDENCE, 4), GateChoice(Gate.AUTO, 8)
SETTINGS = (ONE_BY_ONE, *map(Setting, CHOICES))


@pytest.fixture(scope="module")
def coarse(folders: None) -> Iterator[Services]:
    with serving("--dtype", "bfloat16") as services:
        yield services


async def test_greedy_parts_at_near_ties_alone(coarse: Services) -> None:
    requests = [greedy_request(ids, MAX_TOKENS) for ids in prompts()[:NUM_CHATS]]
    async with coarse.connected() as orchestrator:
        assert orchestrator.target_info.dtype == "bfloat16"
        references = await record_all(orchestrator, requests, 1)
        runs = {
            str(one): await record_all(orchestrator, [one.choice.of(request) for request in requests], one.batch)
            for one in SETTINGS
        }
    seen = compare(references, runs, by_margin(near_tie_limit("bfloat16")))
    print(f"{seen.equal} of {seen.texts} texts equal, {seen.tokens} tokens, {seen.accepted} of {seen.drafted} accepted")
    assert seen.unexplained == []
    assert seen.equal > 0
    assert seen.accepted > 0
