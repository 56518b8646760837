"""One timed request: when it was due, and when each of its deltas came."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from specgate.errors import InvalidArgument, SpecgateError
from specgate.types import RoundRecord, TokenLogprobs
from specgate_lab.measured_stats import MeasuredStats

Clock = Callable[[], float]
OnDelta = Callable[[Delta, float], None]
"""Called with each delta that has tokens, and when it came."""


class TimedGeneration(Protocol):
    """One generation: iterated once for its deltas, closed in the end."""

    @property
    def stats(self) -> GenerationStats: ...

    def __aiter__(self) -> AsyncIterator[Delta]: ...

    async def aclose(self) -> None: ...


Start = Callable[[GenerationRequest], TimedGeneration]
"""Makes a generation; nothing is opened before its first delta is asked for."""


class Arrival(NamedTuple):
    """A delta: when it came, in seconds on the clock of the timeline, and how many tokens it had, at least 1."""

    at_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RequestTimeline:
    """What one request saw. Times are in seconds; a time that so few tokens do not have is None.

    ``due_s`` is when the request was to be sent, by the clock of the arrivals, not when this process came to send it:
    a client that falls behind adds its delay to what it measures. ``error`` is why the request broke off.
    ``logprobs`` is empty, or has one entry a token. ``near_ties`` are the positions, from the first emitted token, of
    verdicts in which the verifier counted a near tie.
    """

    due_s: float = 0.0
    arrivals: tuple[Arrival, ...] = ()
    stats: MeasuredStats = field(default_factory=MeasuredStats)
    error: SpecgateError | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    near_ties: frozenset[int] = frozenset()

    def whole(self) -> "RequestTimeline":
        """Return the timeline. Raises the error that broke the request off."""
        if self.error is not None:
            raise self.error
        return self

    @property
    def num_tokens(self) -> int:
        return sum(arrival.num_tokens for arrival in self.arrivals)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token: until the first delta, however many tokens it had."""
        return self.arrivals[0].at_s - self.due_s if self.arrivals else None

    @property
    def e2e_s(self) -> float | None:
        """End to end: until the last delta."""
        return self.arrivals[-1].at_s - self.due_s if self.arrivals else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token: (end to end - time to first token) / (tokens - 1), one number a request."""
        if self.num_tokens < 2:
            return None
        return (self.arrivals[-1].at_s - self.arrivals[0].at_s) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Inter-token latencies, as vLLM's benchmark takes them: the gaps between deltas that follow one another.

        A delta may carry several tokens, which a reader gets at once: it counts as one gap, with no zeros for the
        tokens that came along. So speculation makes gaps fewer, not shorter; TPOT is what shares them out over tokens.
        """
        return tuple(after.at_s - before.at_s for before, after in pairwise(self.arrivals))

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens over end to end: the rate that this request's reader saw, the wait for the first one counted in."""
        return self.num_tokens / self.e2e_s if self.e2e_s else None


async def time_request(
    start: Start,
    request: GenerationRequest,
    due_s: float,
    clock: Clock = time.perf_counter,
    on_delta: OnDelta | None = None,
) -> RequestTimeline:
    """Run one request to its end, or to where it breaks off.

    Raises:
        InvalidArgument: the request does not fit the services, and no other one like it will.
    """
    running = start(request)
    arrivals: list[Arrival] = []
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    near_ties: set[int] = set()
    num_tied = 0
    records: list[RoundRecord] = []
    error: SpecgateError | None = None
    try:
        async for delta in running:
            records += delta.records
            if delta.token_ids:
                arrivals.append(Arrival(clock(), len(delta.token_ids)))
                if running.stats.near_ties > num_tied:
                    near_ties.update(range(len(token_ids), len(token_ids) + len(delta.token_ids)))
                    num_tied = running.stats.near_ties
                token_ids += delta.token_ids
                logprobs += delta.logprobs
                if on_delta is not None:
                    on_delta(delta, arrivals[-1].at_s)
    except InvalidArgument:
        raise
    except SpecgateError as failure:
        error = failure
    finally:
        await running.aclose()
    stats = MeasuredStats.of(running.stats, records)
    return RequestTimeline(
        due_s, tuple(arrivals), stats, error, tuple(token_ids), tuple(logprobs), frozenset(near_ties)
    )
