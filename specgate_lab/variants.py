"""Ways to decode one request through our services, and what their sessions send."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.decode.request import GenerationRequest
from orchestrator.generation.orchestrator import Orchestrator
from specgate_lab.experiment import Sample, Variant, measure
from specgate_lab.gate_choice import GateChoice
from specgate_lab.timeline import RequestTimeline, time_request

WARM_UP_TOKENS = 16

Decode = Variant[GenerationRequest]


@dataclass(slots=True)
class Traffic:
    """All messages of the sessions whose calls are ``counted``, and their bytes, serialised; on both links, both ways.

    The openings, which carry the prompt, are left out; so is what HTTP/2 adds, 14 bytes for a message sent by itself.
    """

    num_bytes: int = 0
    num_messages: int = 0

    def count(self, message: Any) -> None:
        """Count a message."""
        self.num_bytes += message.ByteSize()
        self.num_messages += 1

    def counted(self, call: Any) -> "CountedCall":
        """Return a call that counts here; see ``links.WrapCall``."""
        return CountedCall(call, self)


class CountedCall:
    """A session's call that counts all messages but the first of each direction, which open the session."""

    def __init__(self, call: Any, traffic: Traffic) -> None:
        self._call = call
        self._traffic = traffic
        self._has_opened = self._was_opened = False

    async def write(self, message: Any) -> None:
        """Write as the call does."""
        if self._has_opened:
            self._traffic.count(message)
        self._has_opened = True
        await self._call.write(message)

    async def read(self) -> Any:
        """Read as the call does; the end of a stream is no message."""
        message = await self._call.read()
        if self._was_opened and hasattr(message, "ByteSize"):
            self._traffic.count(message)
        self._was_opened = True
        return message

    def cancel(self) -> bool:
        """Cancel as the call does."""
        return bool(self._call.cancel())


def pair_variant(orchestrator: Orchestrator, choice: GateChoice, traffic: Traffic | None = None) -> Decode:
    """Return the way through our services under one gate.

    ``traffic`` counts what all calls of the orchestrator send and receive, so nothing else may run meanwhile.
    """

    async def decode(request: GenerationRequest) -> Sample:
        before = replace(traffic) if traffic else None
        timed = await time_request(orchestrator.generate, choice.of(request), time.perf_counter())
        sample = sample_of(timed.whole())
        if traffic is None or before is None:
            return sample
        crossed = traffic.num_bytes - before.num_bytes, traffic.num_messages - before.num_messages
        return replace(sample, traffic_bytes=crossed[0], traffic_messages=crossed[1])

    return decode


def sample_of(timed: RequestTimeline) -> Sample:
    """Return the sample of a single request."""
    if not timed.arrivals:
        return Sample(0, 0.0, requests=(timed,))
    first, last = timed.arrivals[0], timed.arrivals[-1]
    return Sample(timed.num_tokens - first.num_tokens, last.at_s - first.at_s, timed.token_ids, (timed,))


async def decode_in_turns(
    variants: Mapping[str, Decode],
    requests: Sequence[GenerationRequest],
    repeats: int,
    on_turn: Callable[[], None] = lambda: None,
    budget_s: float = math.inf,
) -> dict[str, list[Sample]]:
    """Measure variants one request at a time, see ``measure``. Each begins with a short run that is thrown away."""
    short = replace(requests[0], max_tokens=min(WARM_UP_TOKENS, requests[0].max_tokens))
    return await measure(variants, requests, repeats, on_turn, warm_up=[short], budget_s=budget_s)
