"""What a long prompt does to those who stream beside it: the longest gap between their tokens, without and with it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from orchestrator.decode.request import Delta, GenerationRequest
from specgate_lab.arrivals import all_of
from specgate_lab.bench.load.levels import Speculation
from specgate_lab.experiment import turns
from specgate_lab.timeline import Clock, RequestTimeline, Start, time_request

NEWCOMER_TOKENS = 16
WITHOUT, WITH = "without", "with"
_LEAD_SHARE = 4
"""The newcomer comes once every session has emitted one token in so many: all stream, and most is still to come."""


@dataclass(frozen=True, slots=True)
class Beside:
    """One run: the sessions that streamed, from when they were watched, and the newcomer, where there was one."""

    sessions: tuple[RequestTimeline, ...]
    watched_from_s: float
    newcomer: RequestTimeline | None = None

    @property
    def longest_gap_s(self) -> float:
        """The longest of all sessions' gaps that ended after the watch began, in seconds."""
        return max((gap for one in self.sessions for gap in self._gaps_s(one)), default=0.0)

    def _gaps_s(self, one: RequestTimeline) -> list[float]:
        ends = (arrival.at_s for arrival in one.arrivals[1:])
        return [gap for gap, end_s in zip(one.gaps_s, ends, strict=True) if end_s > self.watched_from_s]

    @property
    def num_still_streaming(self) -> int:
        """Sessions that went on after the newcomer's first token: where that is 0, not all of its prefill was seen."""
        if self.newcomer is None or not self.newcomer.arrivals:
            return 0
        first_s = self.newcomer.arrivals[0].at_s
        return sum(one.arrivals[-1].at_s > first_s for one in self.sessions)

    @property
    def num_survived(self) -> int:
        """Services that were lost and replaced."""
        requests = (*self.sessions, self.newcomer) if self.newcomer else self.sessions
        return sum(one.stats.failures_survived for one in requests)


@dataclass(frozen=True, slots=True)
class NeighbourRow:
    """One mode, with the names of the results file: medians over repeats, and the worst of them."""

    speculation: Speculation
    sessions: int
    prompt_tokens: int
    longest_gap_without_ms: float
    longest_gap_without_worst_ms: float
    longest_gap_with_ms: float
    longest_gap_with_worst_ms: float
    long_prompt_ttft_ms: float
    still_streaming: int
    failures_survived: int


def newcomer_of(requests: Sequence[GenerationRequest], prompt_tokens: int) -> GenerationRequest:
    """Return a request with a prompt of ``prompt_tokens`` tokens: those of all the prompts, again and again."""
    token_ids = [token_id for request in requests for token_id in request.prompt_token_ids]
    repeated = token_ids * -(-prompt_tokens // len(token_ids))
    max_tokens = min(NEWCOMER_TOKENS, requests[0].max_tokens)
    return replace(requests[0], prompt_token_ids=tuple(repeated[:prompt_tokens]), max_tokens=max_tokens)


async def measure_neighbours(
    start: Start,
    sessions: Sequence[GenerationRequest],
    newcomer: GenerationRequest,
    repeats: int,
    on_turn: Callable[[], None] = lambda: None,
) -> list[NeighbourRow]:
    """Stream all sessions at a time, without and with the newcomer among them, in both modes, in turns.

    Raises:
        SpecgateError: a session or the newcomer broke off.
    """
    modes = tuple(Speculation)
    runs: dict[tuple[Speculation, str], list[Beside]] = {(mode, name): [] for mode in modes for name in (WITHOUT, WITH)}
    for repeat in range(repeats):
        for case, name in turns((WITHOUT, WITH), len(modes), repeat):
            mode = modes[case]
            own = [mode.of(one) for one in sessions]
            run = await stream_beside(start, own, mode.of(newcomer) if name == WITH else None)
            runs[mode, name].append(run)
            on_turn()
    return [_row(mode, runs[mode, WITHOUT], runs[mode, WITH], len(newcomer.prompt_token_ids)) for mode in modes]


async def stream_beside(
    start: Start,
    sessions: Sequence[GenerationRequest],
    newcomer: GenerationRequest | None,
    clock: Clock = time.perf_counter,
) -> Beside:
    """Stream all sessions at a time, and the newcomer from when all of them are well under way. Raises as above."""
    under_way = asyncio.Event()
    waiting_for = set(range(len(sessions)))
    watched_from_s = 0.0

    async def session(index: int, request: GenerationRequest) -> RequestTimeline:
        num_tokens = 0

        def on_delta(delta: Delta, at_s: float) -> None:
            nonlocal num_tokens, watched_from_s
            num_tokens += len(delta.token_ids)
            if num_tokens * _LEAD_SHARE >= request.max_tokens and index in waiting_for:
                waiting_for.remove(index)
                watched_from_s = at_s
                if not waiting_for:
                    under_way.set()

        return (await time_request(start, request, clock(), clock, on_delta)).whole()

    async def late(request: GenerationRequest) -> RequestTimeline:
        await under_way.wait()
        return (await time_request(start, request, clock(), clock)).whole()

    work = [session(index, request) for index, request in enumerate(sessions)]
    timelines = await all_of([*work, late(newcomer)] if newcomer else work)
    return Beside(tuple(timelines[: len(sessions)]), watched_from_s, timelines[-1] if newcomer else None)


def _row(mode: Speculation, quiet: Sequence[Beside], beside: Sequence[Beside], prompt_tokens: int) -> NeighbourRow:
    without, with_it = ([run.longest_gap_s * 1e3 for run in runs] for runs in (quiet, beside))
    return NeighbourRow(
        speculation=mode,
        sessions=len(beside[0].sessions),
        prompt_tokens=prompt_tokens,
        longest_gap_without_ms=median(without),
        longest_gap_without_worst_ms=max(without),
        longest_gap_with_ms=median(with_it),
        longest_gap_with_worst_ms=max(with_it),
        long_prompt_ttft_ms=median((run.newcomer.ttft_s or 0.0) * 1e3 for run in beside if run.newcomer),
        still_streaming=min(run.num_still_streaming for run in beside),
        failures_survived=sum(run.num_survived for run in (*quiet, *beside)),
    )
