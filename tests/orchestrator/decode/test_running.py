"""The loop with a running draft: the text is the target's own, and the drafter hears what it needs to know."""

from itertools import pairwise

import pytest

from specgate.types import TokenSource
from tests.orchestrator.decode.support import parties, within
from tests.support.decoding import PROMPT, emitted, make_spec, run, target_alone
from tests.support.running_policy import AlwaysRunning

GAMMA, AHEAD = 4, 32


@pytest.mark.parametrize("agreement", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("delay_s", [0.0, 0.004])
async def test_text_is_the_targets_own(agreement: float, delay_s: float) -> None:
    for gamma in (1, GAMMA, 64):
        spec = make_spec(100)
        session, drafter, verifier = parties(spec, agreement)
        drafter.delay_s, verifier.delay_s = delay_s, 0.001
        deltas = await run(session, drafter, verifier, within(AlwaysRunning(gamma, AHEAD)))
        expected = target_alone(spec, 0.0)
        assert emitted(deltas) == expected
        assert tuple(drafter.told) == (PROMPT + expected)[: len(drafter.told)]
        assert (session.stats.accepted > 0) == (agreement > 0)


async def test_the_drafter_hears_at_once_of_a_token_that_it_did_not_foresee_and_else_now_and_then() -> None:
    session, drafter, verifier = parties(make_spec(200), 0.9)
    verifier.delay_s = 0.001
    deltas = await run(session, drafter, verifier, within(AlwaysRunning(1, AHEAD, run_tokens=1000)))
    told = {request.position + len(request.token_ids) for request in drafter.requests}
    refused = [one.length for delta in deltas for one in delta.records if one.num_judged > one.num_accepted]
    assert refused
    assert set(refused[:-1]) <= told
    assert len(drafter.requests) < len(deltas) / 2
    assert max(after.position - one.position for one, after in pairwise(drafter.requests)) <= AHEAD // 2 + 2


async def test_sources_and_statistics_tell_what_was_taken_of_it() -> None:
    session, drafter, verifier = parties(make_spec(200), 0.9)
    drafter.delay_s, verifier.delay_s = 0.004, 0.001
    deltas = await run(session, drafter, verifier, within(AlwaysRunning(GAMMA, AHEAD, run_tokens=1000)))
    sources = [source for delta in deltas for source in delta.sources]
    stats = session.stats
    assert sources.count(TokenSource.ACCEPTED) == stats.accepted > 0
    assert sources.count(TokenSource.SOLO) == stats.solo_tokens > 0
    assert stats.target_forwards == len(deltas)
    # Nothing of it was guessed while a verdict was awaited.
    assert not any(stats.prepared)
