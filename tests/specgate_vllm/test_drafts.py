"""Drafts for a batch, from fake drafters over real gRPC: the right ones, for the right rows."""

import time

import pytest

from specgate.types import AnnouncedProposal, Announcement
from specgate_vllm.drafts import KnownDrafts
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


def test_equal_prompts_side_by_side_have_a_session_each(serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, requests = run(service.endpoint, gate="none"), [Request(PROMPT, in_prompt=True) for _ in range(3)]
    for number in (1, 2, 3):
        runner.step(requests[:number])
    for one in requests:
        one.in_prompt = False
    runner.run(requests, 24)
    # A draft that comes late in a step leaves its text behind the others.
    assert [one.text for one in requests] == [truth(PROMPT, len(one.text)) for one in requests]
    assert len(service.sessions) == 3
    assert all(one.num_accepted == one.num_drafted > 0 for one in requests)


def test_a_prompt_in_pieces_opens_its_session_at_the_first(serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, one = run(service.endpoint, gate="none"), Request(PROMPT, in_prompt=True)
    for _ in range(3):
        runner.step([one])
        assert one.draft == []
    wait_until(lambda: service.num_open == 1)
    one.in_prompt = False
    runner.run([one], 12)
    assert one.text[:12] == truth(PROMPT, 12)
    assert len(service.sessions) == 1


def test_a_request_that_was_preempted_goes_on_in_its_session_or_in_a_new_one(serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, one, other = run(service.endpoint, gate="none"), Request(PROMPT), Request((1, 2))
    runner.run([one, other], 8)
    runner.step([other])
    one.draft, one.in_prompt = [], True
    runner.step([other, one])
    one.in_prompt = False
    runner.step([other, one])
    assert len(service.sessions) == 2
    runner.step([other])
    wait_until(lambda: service.num_open == 1)
    one.draft = []
    runner.run([other, one], 40)
    assert len(service.sessions) == 3
    assert one.text[:40] == truth(PROMPT, 40)


def test_steps_that_the_proposer_was_not_told_of_cost_no_session(serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, one = run(service.endpoint, gate="none"), Request(PROMPT)
    runner.run([one], 8)
    one.tokens += truth(one.tokens, 5)
    one.draft = []
    runner.run([one], 40)
    assert one.text[:40] == truth(PROMPT, 40)
    assert len(service.sessions) == 1


def test_a_session_is_closed_after_the_step_that_misses_it(serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, one, other = run(service.endpoint), Request(PROMPT), Request((1, 2))
    runner.run([one, other], 8)
    runner.step([other])
    assert service.num_open == 2
    wait_until(lambda: service.num_open == 1)


def test_what_was_announced_is_not_waited_for(serve: Serve, run: Run) -> None:
    """Answers take far longer than a step; only announcements bring drafts."""
    service = serve(agreement=1.0, delay_s=0.1)
    ahead = 8

    def announce(drafter, last):
        text = truth(drafter.told, 4 * ahead)
        for number in range(1, ahead):
            yield Announcement(
                len(drafter.told), (AnnouncedProposal(text[: 4 * number], text[4 * number : 4 * number + 3]),), 3
            )

    service.announcements = announce
    runner, one = run(service.endpoint, gate="none", wait_ms=40), Request(PROMPT)
    runner.step([one])
    wait_until(lambda: runner.proposer.desk.report.counts["steps_miss"] and service.sessions)
    time.sleep(0.05)
    for _ in range(6):
        runner.step([one])
    assert one.text == truth(PROMPT, len(one.text))
    assert runner.proposer.desk.report.counts["steps_hit"] >= 3


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_output_rank_asks(rank: int, serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    runner, one = run(service.endpoint, rank=rank, size=2, gate="none"), Request(PROMPT)
    runner.run([one], 12)
    assert (len(service.sessions), one.num_accepted > 0) == ((1, True) if rank == 0 else (0, False))


def test_drafts_end_where_the_target_ends(serve: Serve, run: Run) -> None:
    runner, one = run(serve(agreement=1.0).endpoint, gate="none", gamma=8), Request(PROMPT)
    while len(one.tokens) < 255:
        runner.step([one])
        # Then the target adds one of its own.
        assert len(one.tokens) + len(one.draft) < 256 or not one.draft


def test_a_draft_that_is_contradicted_is_dropped() -> None:
    known = KnownDrafts(3)
    known.add(3, 0, (1, 2, 3, 4))
    known.commit((1, 9))
    assert known.next(4) == []
    known.add(3, 0, (1, 2, 3, 4))
    known.add(2, 0, (0, 1, 9, 5))
    assert known.next(4) == []
    # A late answer of the round before goes on to hold.
    known.add(4, 0, (9, 5, 6))
    known.add(5, 1, (5, 7))
    assert known.next(4) == [5, 6]
    known.commit((5,))
    assert known.next(1) == [7]
