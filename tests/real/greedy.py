"""Greedy texts of all chats under one setting, against transformers' ``generate``."""

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams
from tests.real.pair import MAX_TOKENS, Services, generated, prompts
from tests.support import equal_texts
from tests.support.orchestrating import run_all

GREEDY = SamplingParams(temperature=0.0)
SETTINGS = {
    "the target alone": (0, Gate.NONE),
    "no gate": (4, Gate.NONE),
    "target confidence": (4, Gate.TARGET_CONFIDENCE),
    "draft confidence": (4, Gate.DRAFT_CONFIDENCE),
    "auto": (8, Gate.AUTO),
}
"""γ and gate."""


async def expect_generated(services: Services, setting: str, at_once: int) -> None:
    """Expect ``generate``'s texts; at a near tie, which is reported, one of them may part."""
    gamma, gate = SETTINGS[setting]
    requests = [GenerationRequest(ids, GREEDY, MAX_TOKENS, gamma=gamma, gate=gate) for ids in prompts()]
    async with services.connected() as orchestrator:
        generations = await run_all(orchestrator, requests, at_once)
    texts, near_ties = [one.token_ids for one in generations], [one.stats.near_ties for one in generations]
    expected = [generated(ids) for ids in prompts()]
    equal_texts.expect_equal(f"{setting}, {at_once} at once", texts, expected, near_ties, most_excused=1)
    accepted, drafted = (sum(getattr(one.stats, name) for one in generations) for name in ("accepted", "drafted"))
    print(f"accepted {accepted} of {drafted} drafts")
    # Where drafting does not pay, auto may well leave it.
    assert gate is Gate.AUTO or (accepted > 0) == (gamma > 0)
    assert all(one.stats.drafter_failures == 0 for one in generations)
