"""Any policy over a trace, in simulated time: the same trace and policies give the same numbers, to the last digit.

A replayed session asks its policy for a plan, waits for the drafter and the verifier of the machine, commits as many
tokens as the trace says, and gives the observer the records of a real session. The cost of keeping the drafter warm in
a solo run is left out, as are prefills.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

from orchestrator.policy.gates import Policy
from specgate.errors import InvalidArgument
from specgate.types import NO_PROPOSAL, Proposal, RecentAgreement, RoundPlan, RoundRecord, RoundTiming, Verdict
from specgate_lab.replay.machine import Clock, Device, Forward
from specgate_lab.replay.trace import RoundTrace, TracedText

Observe = Callable[[RoundRecord], None]
Gate = Callable[[], tuple[Policy, Observe]]
"""Makes the policy of one session, and the observer of its verdicts."""
Steps = Generator["float | tuple[Device, int]", Forward, None]
"""A session: yields what it waits for, some microseconds or the forward of a device with its rows."""
GOLDEN = 0.6180339887498949
"""Its multiples, less their whole parts, are spread evenly: jitter without a random number."""


@dataclass(slots=True)
class Progressing:
    """What a policy sees of a replayed session."""

    text: TracedText
    length: int = 0
    recent: RecentAgreement = field(default_factory=RecentAgreement)

    @property
    def remaining(self) -> int:
        return len(self.text) - self.length

    @property
    def agreement(self) -> float:
        return self.recent.value

    @property
    def confidence(self) -> float | None:
        return self.text.confidences[self.length - 1] if self.length else None


@dataclass(slots=True)
class ReplayResult:
    """When how many tokens had been emitted, by all sessions together.

    The first ``num_full`` entries are from the time before a session found no further text.
    """

    emitted: list[tuple[float, int]] = field(default_factory=list)
    num_full: int = 0

    @property
    def num_tokens(self) -> int:
        return self.emitted[-1][1] if self.emitted else 0

    def tokens_per_s(self, after_tokens: int = 0) -> float:
        """Return the rate from the moment when ``after_tokens`` had been emitted, while all sessions were at work.

        Raises:
            InvalidArgument: by then the texts had run out for a session.
        """
        start_us, start = next(entry for entry in [(0.0, 0), *self.emitted] if entry[1] >= after_tokens)
        end_us, end = self.emitted[self.num_full - 1]
        if end <= start:
            raise InvalidArgument("after_tokens", f"{after_tokens}; all sessions were at work for {end} tokens")
        return (end - start) / (end_us - start_us) * 1e6


class Replay:
    """One trace under one gate, with ``concurrency`` sessions at a time."""

    def __init__(self, trace: RoundTrace, concurrency: int, gate: Gate) -> None:
        machine = trace.machine
        self._clock = Clock()
        self._network_us = machine.network_us
        self._drafter = Device(self._clock, machine.draft_us, machine.draft_session_us, 0.0)
        self._verifier = Device(self._clock, machine.forward_us, machine.session_us, machine.row_us)
        self._result = ReplayResult()
        self._waiting = deque(trace.texts)
        self._gate = gate
        self._concurrency = concurrency
        self._num_messages = 0

    def run(self) -> ReplayResult:
        """Decode all texts, ``concurrency`` at a time."""
        if not 1 <= self._concurrency <= len(self._waiting):
            raise InvalidArgument("concurrency", f"{self._concurrency} is outside [1, {len(self._waiting)} texts]")
        for _ in range(self._concurrency):
            self._start_next()
        self._clock.run()
        return self._result

    def _start_next(self) -> None:
        """Begin with the next text, if there is one."""
        if self._waiting:
            self._go_on(self._session(self._waiting.popleft(), *self._gate()))
        elif not self._result.num_full:
            self._result.num_full = len(self._result.emitted)

    def _go_on(self, session: Steps, forward: Forward | None = None) -> None:
        """Run a session to where it waits next; ``forward`` is the one that it waited for."""
        try:
            # ``send`` takes None for a session that has not begun or that waited for time.
            wait = session.send(forward)  # type: ignore[arg-type]
        except StopIteration:
            self._start_next()
            return
        if isinstance(wait, tuple):
            device, rows = wait
            device.submit(rows, partial(self._go_on, session))
        else:
            self._clock.after(wait, partial(self._go_on, session))

    def _session(self, text: TracedText, policy: Policy, observe: Observe) -> Steps:
        """Decode one text, round by round."""
        progress = Progressing(text)
        while progress.remaining:
            plan, start_us = policy.plan(progress), self._clock.now_us
            gamma = text.drafted(progress.length, min(plan.gamma, progress.remaining - 1), plan.stop_below)
            if gamma:
                yield self._next_one_way_us()
                for _ in range(gamma):
                    yield self._drafter, 1
                yield self._next_one_way_us()
            yield self._next_one_way_us()
            asked_us = self._clock.now_us
            forward = yield self._verifier, gamma + 1
            # The verifier commits at once; the way back counts before the next plan.
            back_us = self._next_one_way_us()
            timing = RoundTiming(round(self._clock.now_us + back_us - start_us))
            verdict = self._verdict(progress, gamma, forward, asked_us)
            observe(self._commit(progress, plan, gamma, verdict, timing))
            for _ in range(plan.max_solo_tokens):
                if not progress.remaining or (progress.confidence or 0.0) >= plan.solo_below:
                    break
                asked_us = self._clock.now_us
                forward = yield self._verifier, 1
                verdict = self._verdict(progress, 0, forward, asked_us, solo=True)
                observe(self._commit(progress, plan, 0, verdict, RoundTiming()))
            yield back_us

    def _next_one_way_us(self) -> float:
        """Return what the next message takes: half a round trip, and up to a half more or less, as it comes."""
        self._num_messages += 1
        return self._network_us * (0.25 + 0.5 * (self._num_messages * GOLDEN % 1))

    def _verdict(
        self, progress: Progressing, gamma: int, forward: Forward, asked_us: float, *, solo: bool = False
    ) -> Verdict:
        accepted = progress.text.survivors(progress.length, gamma)
        confidences = progress.text.confidences[progress.length : progress.length + accepted + 1]
        return Verdict(
            0,
            num_accepted=accepted,
            token_id=0,
            confidence=confidences[-1],
            solo=solo,
            verify_us=round(self._clock.now_us - asked_us),
            batch_sessions=forward.sessions,
            batch_rows=forward.rows,
            forward_us=round(forward.us),
            accepted_confidences=confidences[:-1],
        )

    def _commit(
        self, progress: Progressing, plan: RoundPlan, gamma: int, verdict: Verdict, timing: RoundTiming
    ) -> RoundRecord:
        num_tokens, confidence = verdict.num_accepted + 1, progress.confidence
        sure = progress.text.draft_confidences[progress.length : progress.length + gamma] if plan.stop_below else ()
        known = tuple(one for one in sure if one is not None)
        progress.length += num_tokens
        self._result.emitted.append((self._clock.now_us, self._result.num_tokens + num_tokens))
        confidences = known if len(known) == gamma else ()
        proposal = Proposal((0,) * gamma, draft_confidences=confidences) if gamma else NO_PROPOSAL
        before = confidence, timing, not progress.remaining, progress.length, progress.agreement
        record = RoundRecord(plan, proposal, verdict, num_tokens, *before)
        progress.recent.add(record)
        return record
