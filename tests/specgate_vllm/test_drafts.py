"""Drafts for a batch, from fake drafters over real gRPC: the right ones, for the right rows."""

import time

import pytest

from specgate.types import AnnouncedProposal, Announcement
from tests.specgate_vllm.conftest import Run, Serve
from tests.specgate_vllm.runner import Request, truth
from tests.support.patience import wait_until

PROMPT = (5, 6, 7)


def test_a_sure_draft_is_accepted_whole(serve: Serve, run: Run) -> None:
    runner, one = run(serve(agreement=1.0).endpoint, gate="none"), Request(PROMPT)
    runner.run([one], 40)
    assert one.text[:40] == truth(PROMPT, 40)
    # One step for the prompt, then four tokens a step.
    assert one.num_steps <= 12
    assert one.num_accepted == one.num_drafted


def test_rows_that_move_keep_their_sessions(serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, requests = run(service.endpoint, gate="none"), [Request((i, 8, 9)) for i in range(1, 5)]
    runner.run(requests[:1], 12)
    for _ in range(3):
        runner.step(requests)
    runner.step([requests[2], requests[0], requests[3]])
    runner.run([requests[3], requests[2], requests[0]], 24)
    for one in requests:
        assert one.text == truth(one.prompt, len(one.text))
        assert one.num_accepted == one.num_drafted > 0
    assert len(service.sessions) == 4
