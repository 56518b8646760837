"""Any policy over a trace, in simulated time: the same trace and policies give the same numbers, to the last digit.

A replayed session asks its policy for a plan, waits for the drafter and the verifier of the machine, commits as many
tokens as the trace says, and tells the observer what a real session would tell. What keeping the drafter warm costs in
a solo run is left out, as are prefills.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.policy.gates import Policy
from specgate.errors import InvalidArgument
from specgate.types import NO_PROPOSAL, Proposal, RoundPlan, RoundRecord, RoundTiming, Verdict
from specgate_lab.replay.machine import Clock, Device, Forward
from specgate_lab.replay.trace import RoundTrace, TracedText

Observe = Callable[[RoundRecord], None]
Gate = Callable[[], tuple[Policy, Observe]]
"""Makes the policy of one session, and says whom to tell of its verdicts."""


@dataclass(slots=True)
class Progressing:
    """What a policy sees of a replayed session."""

    text: TracedText
    length: int = 0

    @property
    def remaining(self) -> int:
        return len(self.text) - self.length

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
    num_drafted: int = 0
    num_rounds: int = 0

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


GOLDEN = 0.6180339887498949
"""Its multiples, less their whole parts, are spread evenly: jitter without a random number."""


class Replay:
    """One trace under one gate, with ``concurrency`` sessions at a time."""

    def __init__(self, trace: RoundTrace, concurrency: int, gate: Gate) -> None:
        self.clock = Clock()
        machine = trace.machine
        self.machine = machine
        self.drafter = Device(self.clock, machine.draft_us, machine.draft_session_us, 0.0)
        self.verifier = Device(self.clock, machine.forward_us, machine.session_us, machine.row_us)
        self.result = ReplayResult()
        self._waiting = deque(trace.texts)
        self._gate = gate
        self._concurrency = concurrency
        self._num_messages = 0

    def next_one_way_us(self) -> float:
        """Return what the next message takes: half a round trip, and up to a half more or less, as it comes."""
        self._num_messages += 1
        return self.machine.network_us * (0.25 + 0.5 * (self._num_messages * GOLDEN % 1))

    def run(self) -> ReplayResult:
        """Decode all texts, ``concurrency`` at a time."""
        if not 1 <= self._concurrency <= len(self._waiting):
            raise InvalidArgument("concurrency", f"{self._concurrency} is outside [1, {len(self._waiting)} texts]")
        for _ in range(self._concurrency):
            self.start_next()
        self.clock.run()
        return self.result

    def start_next(self) -> None:
        """Begin with the next text, if there is one."""
        if self._waiting:
            _Session(self, self._waiting.popleft(), *self._gate()).next_round()
        elif not self.result.num_full:
            self.result.num_full = len(self.result.emitted)

    def emitted(self, num_tokens: int) -> None:
        """Count tokens that were committed now."""
        self.result.emitted.append((self.clock.now_us, self.result.num_tokens + num_tokens))


class _Session:
    """One text on its way: each step hands the next one to the clock or to a device."""

    def __init__(self, replay: Replay, text: TracedText, policy: Policy, observe: Observe) -> None:
        self._replay = replay
        self._progress = Progressing(text)
        self._policy = policy
        self._observe = observe

    def next_round(self) -> None:
        if not self._progress.remaining:
            self._replay.start_next()
            return
        plan = self._policy.plan(self._progress)
        _Round(self, plan, min(plan.gamma, self._progress.remaining - 1)).draft()

    def commit(self, plan: RoundPlan, gamma: int, verdict: Verdict, timing: RoundTiming) -> None:
        progress = self._progress
        num_tokens = verdict.num_accepted + 1
        proposal = Proposal((0,) * gamma, draft_us=0) if gamma else NO_PROPOSAL
        confidence = progress.confidence
        progress.length += num_tokens
        self._replay.emitted(num_tokens)
        finished = not progress.remaining
        record = RoundRecord(plan, proposal, verdict, num_tokens, confidence, timing, finished)
        self._observe(record)

    @property
    def replay(self) -> Replay:
        return self._replay

    @property
    def progress(self) -> Progressing:
        return self._progress


class _Round:
    """One round: ``gamma`` draft steps, one forward, then solo forwards while the plan says so."""

    def __init__(self, session: _Session, plan: RoundPlan, gamma: int) -> None:
        self._session = session
        self._replay = session.replay
        self._clock = session.replay.clock
        self._plan = plan
        self._gamma = gamma
        self._start_us = self._lap_us = self._clock.now_us
        self._drafted_us = self._back_us = 0.0
        self._num_solo = 0

    def draft(self) -> None:
        self._replay.result.num_rounds += self._gamma > 0
        self._replay.result.num_drafted += self._gamma
        if self._gamma:
            self._clock.after(self._replay.next_one_way_us(), lambda: self._step(self._gamma))
        else:
            self._send()

    def _step(self, left: int) -> None:
        if left == self._gamma:
            self._lap_us = self._clock.now_us
        if left:
            self._replay.drafter.submit(1, lambda _: self._step(left - 1))
        else:
            self._drafted_us = self._clock.now_us - self._lap_us
            self._clock.after(self._replay.next_one_way_us(), self._send)

    def _send(self) -> None:
        self._clock.after(self._replay.next_one_way_us(), self._verify)

    def _verify(self) -> None:
        self._lap_us = self._clock.now_us
        self._replay.verifier.submit(self._gamma + 1, self._judged)

    def _judged(self, forward: Forward) -> None:
        # What is committed is known at the verifier at once; the way back counts before the next plan.
        back_us = self._back_us = self._replay.next_one_way_us()
        progress, gamma = self._session.progress, self._gamma
        accepted = progress.text.survivors(progress.length, gamma)
        timing = RoundTiming(round(self._clock.now_us + back_us - self._start_us))
        self._session.commit(self._plan, gamma, self._verdict(forward, accepted), timing)
        self._go_on()

    def _verdict(self, forward: Forward, accepted: int, *, solo: bool = False) -> Verdict:
        progress = self._session.progress
        confidences = progress.text.confidences[progress.length : progress.length + accepted + 1]
        return Verdict(
            0,
            num_accepted=accepted,
            token_id=0,
            confidence=confidences[-1],
            solo=solo,
            verify_us=round(self._clock.now_us - self._lap_us),
            batch_sessions=forward.sessions,
            batch_rows=forward.rows,
            forward_us=round(forward.us),
            accepted_confidences=confidences[:-1],
        )

    def _go_on(self) -> None:
        progress, plan = self._session.progress, self._plan
        confidence = progress.confidence
        closed = confidence is not None and confidence < plan.solo_below
        if not progress.remaining or not closed or self._num_solo >= plan.max_solo_tokens:
            self._clock.after(self._back_us, self._session.next_round)
            return
        self._num_solo += 1
        self._lap_us = self._clock.now_us
        self._replay.verifier.submit(1, self._commit_solo)

    def _commit_solo(self, forward: Forward) -> None:
        self._session.commit(self._plan, 0, self._verdict(forward, 0, solo=True), RoundTiming())
        self._go_on()
