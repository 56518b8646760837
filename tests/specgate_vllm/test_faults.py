"""Whatever happens to a drafter costs drafts: the text goes on, nothing is waited for twice, and drafts come back."""

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from specgate.errors import InvalidArgument, SpecgateError, TokenizerMismatch, TooManySessions
from tests.specgate_vllm.conftest import Run, Serve
from tests.specgate_vllm.runner import Request, Runner, truth
from tests.support.fake_services import silent, unused_endpoint
from tests.support.fakes import VOCAB_SIZE, Fault
from tests.support.loop_thread import LoopThread

PROMPT = (5, 6, 7)
LONGEST_S = 0.1
"""More than a wait of the default limit's half, where a step takes 2 ms."""


def goes_on(runner: Runner, num_tokens: int = 60) -> Request:
    """Run a request, which must say what the target alone says."""
    one = Request(PROMPT)
    runner.run([one], num_tokens)
    assert one.text[:num_tokens] == truth(PROMPT, num_tokens)
    return one


def has_drafts(runner: Runner) -> bool:
    return goes_on(runner, 12).num_accepted > 0


def comes_back(runner: Runner, within_s: float = 20.0) -> None:
    give_up_at_s = time.monotonic() + within_s
    while not has_drafts(runner):
        assert time.monotonic() < give_up_at_s
        time.sleep(0.05)


def test_an_address_that_nobody_has_at_the_start(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "specgate_vllm"):
        runner = run(unused_endpoint())
        assert goes_on(runner).num_drafted == 0
        goes_on(runner)
    # It is told once.
    assert len([one for one in caplog.records if "no drafts from" in one.message]) == 1


def test_a_name_that_nobody_knows(run: Run) -> None:
    assert goes_on(run("nowhere.invalid:7002")).num_drafted == 0


def test_a_drafter_that_is_restarted(serve: Serve, run: Run, loop: LoopThread) -> None:
    service = serve(agreement=1.0)
    runner, one = run(service.endpoint, gate="none"), Request(PROMPT)
    runner.run([one], 12)
    loop.run(service.stop())
    runner.run([one], 60)
    assert one.text == truth(PROMPT, len(one.text))
    loop.run(service.restart())
    comes_back(runner)


def test_another_drafter_takes_over_in_mid_request(serve: Serve, run: Run, loop: LoopThread) -> None:
    services = [serve(agreement=1.0), serve(agreement=1.0)]
    runner, one = run(*(service.endpoint for service in services), gate="none"), Request(PROMPT)
    runner.run([one], 12)
    first, second = sorted(services, key=lambda service: not service.sessions)
    loop.run(first.stop())
    before = one.num_accepted
    runner.run([one], 100)
    assert one.text == truth(PROMPT, len(one.text))
    assert second.sessions
    assert one.num_accepted > before
    # And the first one is back in turn, beside a request that keeps the second one.
    loop.run(first.restart())
    num_before, give_up_at_s = len(first.sessions), time.monotonic() + 20
    while len(first.sessions) == num_before:
        assert time.monotonic() < give_up_at_s
        runner.run([Request(PROMPT), Request((1, 2))], 12)


def test_a_frozen_drafter_is_not_waited_for_again_and_again(run: Run) -> None:
    with silent() as endpoint:
        runner = run(endpoint)
        start_s = time.monotonic()
        goes_on(runner)
        took_s = time.monotonic() - start_s
    assert runner.longest_s < LONGEST_S
    assert took_s < 60 * 0.002 * 3 + LONGEST_S


def test_a_drafter_that_freezes_in_mid_request(serve: Serve, run: Run) -> None:
    runner = run(serve(agreement=1.0, faults={4: Fault.HANG}).endpoint)
    one = Request(PROMPT)
    runner.run([one], 100)
    assert one.text == truth(PROMPT, len(one.text))
    assert runner.longest_s < LONGEST_S


def test_a_slow_drafter_is_waited_for_as_long_as_it_pays(serve: Serve, run: Run) -> None:
    runner = run(serve(agreement=1.0, delay_s=0.05, prefill_s=0.05).endpoint)
    start_s = time.monotonic()
    one = Request(PROMPT)
    runner.run([one], 200)
    # A step of 2 ms is not worth a draft of 50 ms; the first ones are waited for before that is known.
    assert time.monotonic() - start_s < 200 * 0.002 * 2 + 0.3
    assert one.text == truth(PROMPT, len(one.text))


def too_high(response):
    response.proposal.draft_token_ids[:] = [VOCAB_SIZE]
    return response


def too_many(response):
    response.proposal.draft_token_ids[:] = [1] * 40
    return response


def not_asked(response):
    response.round += 100
    return response


@pytest.mark.parametrize("answer", [too_high, too_many, not_asked])
def test_nonsense_is_no_draft(answer: Callable[[Any], Any], serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    service.answer = answer
    runner = run(service.endpoint)
    assert goes_on(runner).num_drafted == 0
    service.answer = lambda response: response
    comes_back(runner)


@pytest.mark.parametrize("error", [TokenizerMismatch("another"), TooManySessions("full"), InvalidArgument("x", "long")])
def test_a_refusal(error: SpecgateError, serve: Serve, run: Run) -> None:
    service = serve(agreement=1.0)
    service.refusal = error
    runner = run(service.endpoint)
    assert goes_on(runner).num_drafted == 0
    service.refusal = None
    if not isinstance(error, TokenizerMismatch):
        comes_back(runner)
    else:
        time.sleep(1.0)
        assert not any(has_drafts(runner) for _ in range(3))


def test_a_failure_of_our_own_leaves_no_exception(serve: Serve, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    runner = run(serve(agreement=1.0).endpoint)
    one = Request(PROMPT)
    runner.run([one], 8)
    with caplog.at_level(logging.ERROR, "specgate_vllm"):
        assert runner.proposer.propose([[1], [2]], None, None) == [[], []]
    assert "specgate_vllm failed" in caplog.text
    one.draft = []
    runner.run([one], 40)
    assert one.text == truth(PROMPT, len(one.text))


def test_drafts_that_are_never_accepted_cease(serve: Serve, run: Run) -> None:
    """A step takes as long as its rows: no draft pays that is not accepted."""
    runner, one = run(serve(agreement=0.0).endpoint), Request(PROMPT)
    plain = runner.step
    while len(one.text) < 200:
        time.sleep(0.001 * len(one.draft))
        plain([one])
    assert one.num_drafted < 100
