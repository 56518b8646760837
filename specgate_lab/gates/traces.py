"""Traces of a comparison: recorded before anything is measured, kept in files, and replayed in simulated time."""

import math
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.policy.auto.history import STOPS
from orchestrator.policy.gates import Gate
from orchestrator.terminal.results import overhead_us
from specgate.types import RoundRecord, Verification
from specgate_lab.gate_choice import GateChoice
from specgate_lab.gates.cases import Case, DraftKind, requests_of
from specgate_lab.gates.measure import block_variant
from specgate_lab.measured_stats import MeasuredStats
from specgate_lab.progress import counting_bar
from specgate_lab.replay.compare import HEAD, compare
from specgate_lab.replay.machine import SimulatedMachine
from specgate_lab.replay.trace import RoundTrace, TracedText, write_trace
from specgate_lab.report import write_whole
from specgate_lab.timeline import Start

NARROW, WIDE = 2, 8
"""Draft tokens of the rounds that measure a row of the target's forward."""
CROWD = 8
"""Sessions of the forwards that measure a session."""
RECORDED_GAMMAS = (8, 7)
_UNKNOWN = None, None


async def record_traces(
    folder: Path,
    starts: Mapping[DraftKind, Start],
    cases: Sequence[Case],
    prompts: Sequence[GenerationRequest],
    num_texts: int,
    log: Console,
) -> dict[Case, RoundTrace]:
    """Record the answers to the first blocks of each case, which has one client.

    The drafters should not run ahead: the time of a prepared draft is not that of a draft. A text that is
    not the same in two runs, for a near tie, is left out; a case without texts is named and left out.

    Raises:
        SpecgateError: a request broke off, or a file cannot be written; the traces before it are in the folder.
    """
    traces: dict[Case, RoundTrace] = {}
    with counting_bar(log, "recording", len(cases)) as on_trace:
        for case in cases:
            start = starts[case.draft]
            requests = [requests_of(case, prompts, block)[0] for block in range(num_texts)]
            name = f"{_name(case)}, {Verification.REJECTION}" if requests[0].rejects else _name(case)
            machine = await measure_machine(start, requests)
            texts = [await record_text(start, request) for request in requests]
            if same := tuple(text for text in texts if text is not None):
                traces[case] = RoundTrace(machine, same)
                write_trace(folder / f"trace-{name.replace(', ', '-').replace(' ', '-')}.jsonl", traces[case])
            else:
                log.print(f"{name}: none of {num_texts} texts is the same in two runs", style="yellow", soft_wrap=True)
            on_trace()
    return traces


def _name(case: Case) -> str:
    return f"{case.draft} draft, temperature {case.temperature:g}"


async def measure_machine(start: Start, requests: Sequence[GenerationRequest]) -> SimulatedMachine:
    """Return the times of forwards, drafts and messages, as medians over rounds whose proposal was not prepared.

    The rest of a round is two messages and their answers, one pair to each service. The share of a further session in a
    draft step is not measured: it is taken to be that in the target's forward.

    Raises:
        SpecgateError: a request broke off.
    """
    alone, crowd = await _run(start, requests, 0, 1), await _run(start, requests, 0, CROWD)
    narrow, wide = await _run(start, requests, NARROW, 1), await _run(start, requests, WIDE, 1)
    forward_us, crowd_us = (_median([us for one in runs for us in one.solo_us]) for runs in (alone, crowd))
    narrow_us, wide_us = (_median([us for one in runs for us in one.verify_us]) for runs in (narrow, wide))
    on_demand = [
        (draft_us / length, rest_us)
        for one in (*narrow, *wide)
        for prepared, draft_us, length, rest_us in zip(
            one.prepared, one.draft_us, one.draft_lengths, overhead_us(one), strict=True
        )
        if not prepared
    ]
    session_us, draft_us = (crowd_us - forward_us) / (CROWD - 1), _median([draft_us for draft_us, _ in on_demand])
    return SimulatedMachine(
        forward_us=forward_us,
        session_us=max(session_us, 0.0),
        row_us=max((wide_us - narrow_us) / (WIDE - NARROW), 0.0),
        draft_us=draft_us,
        draft_session_us=max(draft_us * session_us / forward_us, 0.0),
        network_us=max(_median([rest_us for _, rest_us in on_demand]) / 2, 0.0),
    )


async def _run(
    start: Start, requests: Sequence[GenerationRequest], gamma: int, num_clients: int
) -> list[MeasuredStats]:
    """Run the requests with the gate ``none``, from the first one again where they are fewer than the clients."""
    few = [requests[index % len(requests)] for index in range(max(num_clients, 2))]
    run = block_variant(start, GateChoice(Gate.NONE, gamma), num_clients)
    return (await run(few)).stats


def _median(values: Sequence[float]) -> float:
    return float(median(values)) if values else 0.0


def replay_traces(
    folder: Path, traces: Mapping[Case, RoundTrace], clients: Sequence[int]
) -> tuple[str, dict[Case, list[GateChoice]]]:
    """Write ``replays.md``, with a row for each trace and number of clients.

    Returns its text, and the fixed choices of each case, best first. A trace of fewer texts than clients has no row
    for them.

    Raises:
        InvalidArgument: the file cannot be written.
    """
    rows, ranked = [], {}
    for one, trace in traces.items():
        for case in [one._replace(concurrency=num) for num in clients if num <= len(trace.texts)]:
            row, ranked[case] = compare(_name(case), trace, case.concurrency)
            rows.append(row)
    table = "\n".join([HEAD, *map(str, rows)]) + "\n"
    write_whole(folder / "replays.md", table, "out")
    return table, ranked


async def record_text(
    start: Callable[[GenerationRequest], AsyncIterable[Delta]], request: GenerationRequest
) -> TracedText | None:
    """Return the answer to ``request``, which needs a seed above temperature 0; None where two runs differ.

    A run drafts γ tokens in every round and has ``logprobs`` 0. The target's confidence at a position follows from its
    log-probability, and what is known of the draft from the judged tokens of each proposal: the draft agreed with an
    accepted token and did not with a rejected one. Of a bonus token it is unknown, since no draft was made for it.
    Where the draft is a function of the text before it (greedy, shared_noise), a round that starts in the middle of an
    accepted run drafts the same tokens. So the draft tokens that survive from a position on are the run of agreements
    there, for every γ, and a second run with another γ, whose bonus tokens are elsewhere, fills the gaps. In rejection
    mode a draft depends on its round: no two texts can be merged, and there is one run.

    Raises:
        SpecgateError: a run broke off.
    """
    runs = []
    for gamma in RECORDED_GAMMAS[:1] if request.rejects else RECORDED_GAMMAS:
        choice = GateChoice(Gate.DRAFT_CONFIDENCE, gamma, STOPS[0])
        runs.append([delta async for delta in start(replace(choice.of(request), logprobs=0))])
    if len({tuple(token_id for delta in run for token_id in delta.token_ids) for run in runs}) > 1:
        return None
    known = ([one for delta in run for record in delta.records for one in _judged(record)] for run in runs)
    merged = [next((one for one in votes if one != _UNKNOWN), _UNKNOWN) for votes in zip(*known, strict=True)]
    confidences = (math.exp(entry.logprob) for delta in runs[0] for entry in delta.logprobs)
    agrees, probabilities = (agrees for agrees, _ in merged), (probability for _, probability in merged)
    return TracedText(tuple(confidences), tuple(agrees), tuple(probabilities))


def _judged(record: RoundRecord) -> Iterator[tuple[bool | None, float | None]]:
    """Yield, for each token of a verdict, whether the draft agrees, and the draft's probability of what it drafted."""
    probabilities = record.proposal.draft_confidences
    for index in range(record.num_tokens):
        if index < record.num_judged:
            yield index < record.num_accepted, probabilities[index] if probabilities else None
        else:
            yield _UNKNOWN
