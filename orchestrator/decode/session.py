"""One request's state: its committed tokens, its limits, and when it ends. Pure, except for its clock."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import Delta, GenerationStats
from specgate.types import (
    NO_PROPOSAL,
    DraftMethod,
    DraftRequest,
    FinishReason,
    Proposal,
    RecentAgreement,
    RoundPlan,
    RoundRecord,
    RoundTiming,
    SessionSpec,
    TokenSource,
    Verdict,
    VerifyRequest,
)

_log = logging.getLogger(__name__)
_ACCEPTED = {
    DraftMethod.MODEL: TokenSource.ACCEPTED,
    DraftMethod.LAYER_SKIP: TokenSource.ACCEPTED_LAYER_SKIP,
    DraftMethod.SUFFIX: TokenSource.ACCEPTED_SUFFIX,
}


class Ending(NamedTuple):
    """How many of the new tokens are kept, what they read as, and whether they are the last ones."""

    num_tokens: int
    text: str
    finish_reason: FinishReason | None


OnRecord = Callable[[RoundRecord], None]
"""Called with each committed verdict, before the next round; it must not take long."""
OnLoss = Callable[[str, BaseException | None], None]
"""Called with each service that a request lost and went on without: "drafter" or "verifier", and why."""


class ProposalWait(NamedTuple):
    """When a proposal was ready, when the reader wanted it, in seconds, and whether the target worked on it between."""

    ready_s: float = 0.0
    wanted_s: float = 0.0
    beside_target: bool = False

    def read_us(self, round_start_s: float, verify_us: int) -> int:
        """Return for how long only the reader was busy, in a round whose target took ``verify_us``."""
        ready_s = max(self.ready_s, round_start_s + verify_us / 1e6) if self.beside_target else self.ready_s
        return int(max(0.0, self.wanted_s - ready_s) * 1e6)


class Session:
    """The state of one request. Services come and go, the session stays.

    Args:
        spec: what services are opened with; its ``stop_token_ids`` hold the end-of-sequence ids too.
        output: turns tokens into text and looks for stop strings.
        clock: seconds, for the time of a round.
        on_record: subscribers of the committed verdicts.
        on_loss: subscriber of the lost services.
    """

    def __init__(
        self,
        spec: SessionSpec,
        output: OutputText,
        clock: Callable[[], float] = time.perf_counter,
        on_record: Iterable[OnRecord] = (),
        on_loss: OnLoss | None = None,
    ) -> None:
        self.opening_spec = spec
        self._output = output
        self._clock = clock
        self._on_record = list(on_record)
        self._on_loss = on_loss
        self.committed = list(spec.committed_token_ids)
        self.num_prompt_tokens = len(spec.prompt_token_ids)
        self.confidence: float | None = None
        self._agreement = RecentAgreement()
        self.finish_reason: FinishReason | None = None
        self.stats = GenerationStats(seed=spec.seed, prompt_tokens=self.num_prompt_tokens)
        self.round = 0
        self._num_sent = len(self.committed)
        self._round_start_s = 0.0
        self.plan = RoundPlan()
        self._catches_up = False
        """The drafter has a solo run to read before it drafts for this round."""
        self._proposal_wait = ProposalWait()
        self._num_failovers = 0

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def length(self) -> int:
        """Prompt plus emitted tokens."""
        return len(self.committed)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.opening_spec.max_length - len(self.committed)

    @property
    def agreement(self) -> float:
        """How often the draft agreed lately, in [0, 1]."""
        return self._agreement.value

    @property
    def num_unsent(self) -> int:
        """Committed tokens that the drafter was not sent yet."""
        return len(self.committed) - self._num_sent

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        return tuple(self.committed[self.num_prompt_tokens :])

    @property
    def spec(self) -> SessionSpec:
        """What a service is opened with now: it includes the tokens emitted so far."""
        return replace(self.opening_spec, output_token_ids=self.output_token_ids)

    def draft_request(self, plan: RoundPlan) -> DraftRequest | None:
        """Begin a round; return the drafter's request, with the tokens committed since the last one. None: the plan
        sends the drafter nothing.
        """
        self.round += 1
        self._catches_up = plan.gamma > 0 and not self.plan.keeps_warm
        self.plan = plan
        return self._report(plan.gamma, plan.stop_below) if plan.sends_to_drafter else None

    def lost(self, role: str, error: BaseException | None) -> None:
        """Count a service, "drafter" or "verifier", that this request goes on without or has replaced."""
        if role == "drafter":
            self.stats.drafter_failures += 1
        else:
            self.stats.verifier_failovers += 1
        if self._on_loss is not None:
            self._on_loss(role, error)

    def keep_warm(self) -> DraftRequest:
        """Return the request that sends the drafter the tokens of a solo run, within the current round."""
        return self._report()

    def _report(self, gamma: int = 0, stop_below: float = 0.0) -> DraftRequest:
        plan = self.plan
        position, self._num_sent = self._num_sent, len(self.committed)
        token_ids, running = tuple(self.committed[position:]), 0 if gamma else plan.ahead
        return DraftRequest(self.round, position, token_ids, gamma, stop_below, plan.prepare, running)

    def restart_round_time(self) -> None:
        """Start the round's time now: it is the first round, or the one before it broke off."""
        self._round_start_s = self._clock()

    def exclude_from_timing(self, ready_s: float, wanted_s: float, *, beside_target: bool = False) -> None:
        """Exclude from the round's time how long its proposal waited for the reader, from ``ready_s`` to ``wanted_s``.

        Args:
            beside_target: the target worked on it meanwhile: only the time after that is excluded.
        """
        self._proposal_wait = ProposalWait(ready_s, wanted_s, beside_target)

    def verify_request(self, proposal: Proposal, plan: RoundPlan) -> VerifyRequest:
        """Return this round's request to the verifier."""
        gate = plan.solo_below, plan.max_solo_tokens, plan.running_gamma
        return VerifyRequest(self.round, len(self.committed), proposal, *gate)

    def commit(self, proposal: Proposal, verdict: Verdict) -> Delta:
        """Commit the tokens of ``verdict``, up to the first one that ends the text.

        A stop token is emitted and is the last token; so is the token that completes a stop string, whose text ends
        before it. Where a stop and the length limit meet in one token, the reason is the stop.
        """
        tokens = proposal.draft_token_ids[: verdict.num_accepted]
        if verdict.token_id is not None:
            tokens += (verdict.token_id,)
        ending = self._end(tokens, verdict)
        kept = tokens[: ending.num_tokens]
        confidence, self.confidence = self.confidence, verdict.confidence
        # A later verifier has another cache; the prompt was read by then.
        cached_tokens = 0 if self.stats.target_forwards else verdict.cached_tokens
        self.stats.cached_tokens += cached_tokens
        self.committed += kept
        self.finish_reason = ending.finish_reason
        drafted, timing = NO_PROPOSAL if verdict.solo else proposal, self._time(proposal, verdict)
        known = confidence, timing, self.finished, len(self.committed), self.agreement
        record = RoundRecord(self.plan, drafted, verdict, len(kept), *known)
        self._agreement.add(record)
        self._emit(record)
        return Delta(
            token_ids=kept,
            sources=_sources(proposal, verdict)[: len(kept)],
            text=ending.text,
            logprobs=verdict.logprobs[: len(kept)],
            finish_reason=ending.finish_reason,
            prompt_logprobs=verdict.prompt_logprobs,
            records=(record,),
            cached_tokens=cached_tokens,
            committed_s=self._round_start_s,
            stats=self.stats if self.finished else None,
        )

    def _end(self, tokens: tuple[int, ...], verdict: Verdict) -> Ending:
        kept = tokens[: self.remaining]
        reason = FinishReason.LENGTH if len(kept) == self.remaining else None
        for index, token_id in enumerate(kept):
            if token_id in self.opening_spec.stop_token_ids:
                kept, reason = kept[: index + 1], FinishReason.STOP
                break
        if self.opening_spec.grammar is not None and verdict.finish_reason is FinishReason.STOP:
            # Only the verifier knows when a grammar is complete without a stop token.
            reason = FinishReason.STOP
        text, num_tokens = self._output.push(kept)
        if reason is not None and not self._output.stopped:
            text += self._output.finish()
        return Ending(num_tokens, text, FinishReason.STOP if self._output.stopped else reason)

    def _time(self, proposal: Proposal, verdict: Verdict) -> RoundTiming:
        # A round's time runs from one verdict to the next.
        round_start_s, self._round_start_s = self._round_start_s, self._clock()
        moved, self._num_failovers = self.stats.verifier_failovers > self._num_failovers, self.stats.verifier_failovers
        # The first verdict includes the prompt's time. One without the requested draft waited for nothing.
        typical = self.stats.target_forwards > 0 and not moved
        if verdict.solo or self.plan.running_gamma:
            # Nobody waited for a draft.
            return RoundTiming(verdict.verify_us * (not verdict.solo), typical=typical)
        typical &= not self._catches_up and bool(len(proposal) or not self.plan.gamma)
        read_us = self._proposal_wait.read_us(round_start_s, verdict.verify_us)
        return RoundTiming(int((self._round_start_s - round_start_s) * 1e6) - read_us, read_us, typical)

    def _emit(self, record: RoundRecord) -> None:
        self.stats.add(record)
        for on_record in tuple(self._on_record):
            try:
                on_record(record)
            except Exception:
                # A subscriber must never cost text.
                _log.exception("a subscriber of a request's records failed and gets no more of them")
                self._on_record.remove(on_record)


def _sources(proposal: Proposal, verdict: Verdict) -> tuple[TokenSource, ...]:
    """Return one source a token: accepted ones, then the target's own."""
    if verdict.solo or not len(proposal):
        return (TokenSource.SOLO,)
    all_accepted = verdict.num_accepted == len(proposal)
    own = TokenSource.BONUS if all_accepted else TokenSource.RECOVERED
    return (_ACCEPTED[proposal.method],) * verdict.num_accepted + (own,)
