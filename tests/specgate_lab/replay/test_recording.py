"""Traces of texts: what follows from the sources of the tokens of two runs."""

import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.errors import InvalidArgument
from specgate.types import Proposal, RoundPlan, RoundRecord, TokenLogprobs, Verdict, Verification
from specgate_lab.gates.traces import RECORDED_GAMMAS, record_text
from specgate_lab.replay.machine import SimulatedMachine
from specgate_lab.replay.trace import RoundTrace, TracedText, read_trace, write_trace

AGREES = (True,) * 10 + (False,) + (True,) * 9
CONFIDENCES = tuple(0.5 + index / 50 for index in range(len(AGREES)))
DRAFT_CONFIDENCES = tuple(0.9 - index / 50 for index in range(len(AGREES)))


class Running:
    """What a pair would answer whose draft agrees at the positions of AGREES."""

    def __init__(self, request: GenerationRequest) -> None:
        assert (request.gate, request.logprobs) == (Gate.DRAFT_CONFIDENCE, 0)
        self._gamma, self._stop_below = request.max_gamma, request.stop_below

    async def __aiter__(self) -> AsyncIterator[Delta]:
        position = 0
        while position < len(AGREES):
            gamma = min(self._gamma, len(AGREES) - position - 1)
            accepted = next((n for n in range(gamma) if not AGREES[position + n]), gamma)
            logprobs = tuple(TokenLogprobs(math.log(CONFIDENCES[position + n])) for n in range(accepted + 1))
            # After the rejected token a draft is as sure as it likes.
            sure = (*DRAFT_CONFIDENCES[position : position + accepted + 1], *(1.0,) * gamma)[:gamma]
            assert all(one >= self._stop_below > 0 for one in sure)
            plan, proposal = RoundPlan(gamma, self._stop_below), Proposal((7,) * gamma, draft_confidences=sure)
            record = RoundRecord(plan, proposal, Verdict(0, accepted, 7), accepted + 1)
            yield Delta((7,) * (accepted + 1), (), logprobs=logprobs, records=(record,))
            position += accepted + 1


REQUEST = GenerationRequest((1,), gamma=5, seed=3)
MACHINE = SimulatedMachine(1000, 90, 10, 100, 9, 5)


async def test_two_runs_know_what_one_does_not() -> None:
    text = await record_text(Running, REQUEST)
    assert text is not None
    # The last token is drafted in no run.
    assert text.agrees == (*AGREES[:-1], None)
    assert text.draft_confidences == (*DRAFT_CONFIDENCES[:-1], None)
    assert text.confidences == pytest.approx(CONFIDENCES)


async def test_a_text_that_is_another_one_in_the_second_run_is_no_trace() -> None:
    class Unsteady(Running):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            async for delta in super().__aiter__():
                yield replace(delta, token_ids=(self._gamma,) * len(delta.token_ids))

    assert await record_text(Unsteady, REQUEST) is None


async def test_the_confidences_are_those_of_the_first_run() -> None:
    class Rounded(Running):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            async for delta in super().__aiter__():
                scale = self._gamma / RECORDED_GAMMAS[0]
                yield replace(delta, logprobs=tuple(TokenLogprobs(one.logprob * scale) for one in delta.logprobs))

    text = await record_text(Rounded, REQUEST)
    assert text is not None
    assert text.confidences == pytest.approx(CONFIDENCES)


async def test_in_rejection_mode_a_trace_is_one_draw() -> None:
    text = await record_text(Running, replace(REQUEST, verification=Verification.REJECTION))
    assert text is not None
    # A bonus token is drafted in another run alone.
    for known in (text.agrees, text.draft_confidences):
        assert [position for position, one in enumerate(known) if one is None] == [RECORDED_GAMMAS[0], 19]


def test_survivors_are_the_run_of_agreements() -> None:
    text = TracedText((0.5,) * 6, (True, True, False, True, None, True))
    assert [text.survivors(position, 8) for position in range(6)] == [2, 1, 0, 1, 0, 1]
    assert text.survivors(0, 1) == 1


def test_a_draft_ends_with_its_first_unsure_token() -> None:
    text = TracedText((0.5,) * 5, (True,) * 5, (0.9, 0.3, None, 0.5, 0.8))
    assert [text.drafted(position, 8, 0.5) for position in range(5)] == [2, 1, 8, 8, 8]
    assert [text.drafted(0, gamma, 0.31) for gamma in (1, 2, 3)] == [1, 2, 2]
    assert [text.drafted(1, 3, stop_below) for stop_below in (0.0, 0.3, 0.6)] == [3, 3, 1]


async def test_who_tells_no_probability_leaves_them_unknown() -> None:
    class Untold(Running):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            async for delta in super().__aiter__():
                told = (replace(one, proposal=replace(one.proposal, draft_confidences=())) for one in delta.records)
                yield replace(delta, records=tuple(told))

    text = await record_text(Untold, REQUEST)
    assert text is not None
    assert text.agrees == (*AGREES[:-1], None)
    assert not RoundTrace(MACHINE, (text,)).knows_draft


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    texts = TracedText((0.5, 0.25), (True, None), (0.125, None)), TracedText((1.0,), (False,))
    trace = RoundTrace(MACHINE, texts)
    assert (trace.knows_draft, RoundTrace(MACHINE, texts[:1]).knows_draft) == (False, True)
    write_trace(tmp_path / "trace.jsonl", trace)
    assert read_trace(tmp_path / "trace.jsonl") == trace


def test_traces_without_the_drafts_probabilities_can_still_be_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MACHINE_LINE + '{"text": {"confidences": [0.5], "agrees": [true]}}', encoding="utf-8")
    assert read_trace(file).texts == (TracedText((0.5,), (True,)),)


NAMES = ("forward_us", "session_us", "row_us", "draft_us", "draft_session_us", "network_us")
MACHINE_LINE = json.dumps({"machine": dict.fromkeys(NAMES, 1)}) + "\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "line 1"),
        (MACHINE_LINE + '{"text": {"confidences": [1]}}', "line 2"),
        (MACHINE_LINE + '{"text": {"confidences": [1], "agrees": []}}', "agrees"),
        (MACHINE_LINE + '{"text": {"confidences": [1], "agrees": [true], "draft_confidences": [1, 1]}}', "draft_conf"),
        (MACHINE_LINE.replace(": 1,", ": 0,"), "forward_us"),
        (MACHINE_LINE + "[]", "line 2"),
        (MACHINE_LINE, "no text"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidArgument, match=problem):
        read_trace(file)
