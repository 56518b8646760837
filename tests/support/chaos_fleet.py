"""A drafter and two verifiers as processes of their own, that faults are thrown at one after the other."""

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import grpc

from orchestrator.decode.text import TextTokenizer
from orchestrator.services.timeouts import Timeouts
from specgate.types import Gate
from specgate.v1 import types_pb2
from specgate_lab.soak.processes import rss_mb
from tests.support.chaos_streams import SEEDED, Faults, Seen, watch
from tests.support.chaos_table import ChaosRow
from tests.support.in_process import STUBS
from tests.support.orchestrating import connected
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running

NOTHING_LEFT = "0 sessions, 0 KV tokens"
SETTLES_WITHIN_S = 20.0
REQUEST = replace(SEEDED, prompt_token_ids=tuple(TextTokenizer.load(str(PAIR / "target")).encode(HELD_OUT_PROMPTS[0])))


def ask(endpoint: str, role: str) -> Any:
    """Return what a service says of itself. Blocks, so that a fault's thread may call it."""
    with grpc.insecure_channel(endpoint) as channel:
        return STUBS[role](channel).GetModelInfo(types_pb2.GetModelInfoRequest(), timeout=10, wait_for_ready=True)


def left_at(services: Sequence[tuple[str, str]]) -> str:
    """Return what (endpoint, role) hold once they hold nothing, or after ``SETTLES_WITHIN_S``."""
    give_up_at_s = time.monotonic() + SETTLES_WITHIN_S
    while True:
        infos = [ask(endpoint, role) for endpoint, role in services]
        kv_tokens = sum(info.kv_tokens - info.free_kv_tokens for info in infos)
        told = f"{sum(info.active_sessions for info in infos)} sessions, {kv_tokens} KV tokens"
        if told == NOTHING_LEFT or time.monotonic() > give_up_at_s:
            return told
        time.sleep(0.1)


class Fleet:
    """One drafter, two verifiers; each test leaves them as it finds them."""

    def __init__(self, drafter: Service, verifiers: tuple[Service, Service]) -> None:
        self.drafter, self.verifiers = drafter, verifiers
        self.text: list[int] = []

    def busy_verifier(self) -> Service:
        """Return the one that has a session."""
        return next(one for one in self.verifiers if ask(one.endpoint, "verifier").active_sessions)

    def mend(self) -> None:
        """Start again what was killed, and go on with what was stopped."""
        for service in (self.drafter, *self.verifiers):
            if service.pid:
                service.signal(signal.SIGCONT)
            else:
                service.start()

    def left(self) -> str:
        """See ``left_at``."""
        return left_at([(self.drafter.endpoint, "drafter"), *((one.endpoint, "verifier") for one in self.verifiers)])

    def memory_mb(self) -> dict[int, float]:
        """Return what each process holds, by its id."""
        return {one.pid: rss_mb(one.pid) for one in (self.drafter, *self.verifiers) if one.pid}

    async def disturbed(
        self,
        row: ChaosRow,
        faults: Faults,
        *,
        num_verifiers: int = 2,
        drafter: Any = None,
        verifier: Any = None,
        pace_s: float = 0.0,
        timeouts: Timeouts | None = None,
        policy: Any = None,
        **changes: Any,
    ) -> Seen:
        """Run the request under faults, and fill in its row; the text is as it should be, as far as it came.

        ``drafter`` and ``verifier``, anything with an ``endpoint``, take the places of the fleet's own. ``policy`` is
        what the gate ``auto`` is to do.
        """
        before = self.memory_mb()
        own, verifiers = drafter or self.drafter, [verifier] if verifier else self.verifiers[:num_verifiers]
        try:
            async with connected([own], verifiers, timeouts or Timeouts()) as orchestrator:
                if policy is not None:
                    orchestrator.learner, changes["gate"] = policy, Gate.AUTO
                generation = orchestrator.generate(replace(REQUEST, **changes))
                seen = await watch(aiter(generation), faults, pace_s)
        finally:
            # The next test finds all of them, whatever became of this one.
            await asyncio.to_thread(self.mend)
        after = self.memory_mb()
        row.seen, row.gap_s = seen.told, seen.gap_s
        # A proxy in this very loop has still to pass on that its client has left.
        row.left = await asyncio.to_thread(self.left)
        row.grown_mb = sum(after[pid] - before[pid] for pid in before if pid in after)
        row.compare(seen.token_ids, self.text)
        assert row.left == NOTHING_LEFT
        return seen


@contextmanager
def running_fleet() -> Iterator[Fleet]:
    """Start the three processes, and end them."""
    with ExitStack() as stack:
        drafter = stack.enter_context(running("drafter", PAIR / "draft"))
        first, second = (stack.enter_context(running("verifier", PAIR / "target")) for _ in range(2))
        yield Fleet(drafter, (first, second))
