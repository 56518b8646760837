"""One request's state: what is committed, what may still come, and when it ends. Pure but for its clock."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import Delta, GenerationStats
from orchestrator.policy.auto.observation import Observation, Observer, PreviousRound
from orchestrator.policy.gates import RoundPlan
from specgate.types import (
    NO_PROPOSAL,
    DraftRequest,
    FinishReason,
    Proposal,
    SessionSpec,
    TokenSource,
    Verdict,
    VerifyRequest,
)


class Ending(NamedTuple):
    """How many of the new tokens are kept, what they read as, and whether they are the last ones."""

    num_tokens: int
    text: str
    finish_reason: FinishReason | None


class Judged(NamedTuple):
    """Draft tokens of a round: ``num_judged`` up to and including the first rejection, ``num_accepted`` that stand."""

    num_judged: int = 0
    num_accepted: int = 0


class LayThere(NamedTuple):
    """From when to when, in seconds, a proposal lay there, and whether the target was at work on it meanwhile."""

    ready_s: float = 0.0
    wanted_s: float = 0.0
    beside_target: bool = False

    def left_out_us(self, round_start_s: float, verify_us: int) -> int:
        """Return for how long nobody but the reader was at work, in a round whose target took ``verify_us``."""
        ready_s = max(self.ready_s, round_start_s + verify_us / 1e6) if self.beside_target else self.ready_s
        return int(max(0.0, self.wanted_s - ready_s) * 1e6)


class Session:
    """The truth about one request: services come and go, this stays.

    Args:
        spec: what services are opened with; its ``stop_token_ids`` hold the end-of-sequence ids too.
        output: turns tokens into text and looks for stop strings.
        clock: seconds, for the time of a round.
        observer: told of every verdict that is committed; of one that ends a round, once the next one is asked for.
    """

    def __init__(
        self,
        spec: SessionSpec,
        output: OutputText,
        clock: Callable[[], float] = time.perf_counter,
        observer: Observer | None = None,
    ) -> None:
        self.opening_spec = spec
        self._output = output
        self._clock = clock
        self._observer = observer
        self._unreported: list[Observation] = []
        self.committed = list(spec.committed_token_ids)
        self.num_prompt_tokens = len(spec.prompt_token_ids)
        self.confidence: float | None = None
        self.finish_reason: FinishReason | None = None
        self.stats = GenerationStats(seed=spec.seed, prompt_tokens=self.num_prompt_tokens)
        self.round = 0
        self._num_told = len(self.committed)
        self._round_start_s = 0.0
        self.plan = RoundPlan()
        self._catches_up = False
        """The drafter has a solo run to read before it drafts for this round."""
        self._lay_there = LayThere()
        self._left_out_us = 0
        self._num_failovers = 0
        self._previous_round: PreviousRound | None = None

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
    def fully_accepted(self) -> bool:
        """Whether the draft of the round just before stood as a whole. True where there was none."""
        return self._previous_round is None or self._previous_round.whole

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        return tuple(self.committed[self.num_prompt_tokens :])

    @property
    def spec(self) -> SessionSpec:
        """What a service is opened with at this moment: everything emitted so far is in it."""
        return replace(self.opening_spec, output_token_ids=self.output_token_ids)

    def draft_request(self, plan: RoundPlan) -> DraftRequest:
        """Begin a round: what the drafter is asked, and told of the tokens committed since it was last told."""
        self.round += 1
        self._catches_up = plan.gamma > 0 and not self.plan.keeps_warm
        self.plan = plan
        return self._tell(plan.gamma, plan.stop_below)

    @property
    def num_untold(self) -> int:
        """Committed tokens that the drafter was not told of yet."""
        return len(self.committed) - self._num_told

    def keep_warm(self) -> DraftRequest:
        """What the drafter is told while the target decodes alone: it carries the current round's number."""
        return self._tell()

    def _tell(self, gamma: int = 0, stop_below: float = 0.0) -> DraftRequest:
        plan = self.plan
        position, self._num_told = self._num_told, len(self.committed)
        return DraftRequest(self.round, position, tuple(self.committed[position:]), gamma, stop_below, plan.prepare)

    def restart_round_time(self) -> None:
        """Count the round's time from now: it is the first one, or the one before it broke off, who knows when."""
        self._round_start_s = self._clock()

    def leave_out(self, ready_s: float, wanted_s: float, *, beside_target: bool = False) -> None:
        """Leave out of the round's time that its proposal lay there, from ``ready_s`` until the reader ``wanted`` it.

        Args:
            beside_target: the target had begun with it at once: only what the reader took longer than that is left out.
        """
        self._lay_there = LayThere(ready_s, wanted_s, beside_target)

    def verify_request(self, proposal: Proposal, plan: RoundPlan) -> VerifyRequest:
        """What the verifier is asked in this round."""
        return VerifyRequest(self.round, len(self.committed), proposal, plan.solo_below, plan.max_solo_tokens)

    def commit(self, proposal: Proposal, verdict: Verdict) -> Delta:
        """Take over what ``verdict`` decided, cut at the first end inside it.

        A stop token is emitted and is the last token; so is the token that completes a stop string, whose text ends
        before it. Where a stop and the length limit meet in one token, the reason is the stop.
        """
        tokens = proposal.draft_token_ids[: verdict.num_accepted]
        if verdict.token_id is not None:
            tokens += (verdict.token_id,)
        ending = self._end(tokens)
        kept = tokens[: ending.num_tokens]
        before, self.confidence = self.confidence, verdict.confidence
        self.committed += kept
        self.finish_reason = ending.finish_reason
        self._count(proposal, verdict, len(kept), before)
        return Delta(
            token_ids=kept,
            sources=_sources(proposal, verdict)[: len(kept)],
            text=ending.text,
            logprobs=verdict.logprobs[: len(kept)],
            finish_reason=ending.finish_reason,
        )

    def leave(self) -> None:
        """Say that nothing more will be committed, so that an unfinished session is no load to anybody's counts."""
        try:
            self.report()
        finally:
            if self._observer is not None:
                self._observer.leave()

    def report(self) -> None:
        """Tell the observer of the rounds that it has not heard of.

        Not as they are committed: it takes a part of a millisecond, in which the next request is better on its way.
        """
        unreported, self._unreported = self._unreported, []
        for seen in unreported:
            if self._observer is not None:
                self._observer(seen)

    def _end(self, tokens: tuple[int, ...]) -> Ending:
        kept = tokens[: self.remaining]
        reason = FinishReason.LENGTH if len(kept) == self.remaining else None
        for index, token_id in enumerate(kept):
            if token_id in self.opening_spec.stop_token_ids:
                kept, reason = kept[: index + 1], FinishReason.STOP
                break
        text, num_tokens = self._output.push(kept)
        if reason is not None and not self._output.stopped:
            text += self._output.finish()
        return Ending(num_tokens, text, FinishReason.STOP if self._output.stopped else reason)

    def _count(self, proposal: Proposal, verdict: Verdict, num_kept: int, before: float | None) -> None:
        stats = self.stats
        stats.completion_tokens += num_kept
        stats.target_forwards += 1
        stats.near_ties += verdict.near_ties
        stats.followed += verdict.follow_up > 0
        if verdict.batch_sessions:
            stats.batch_widths[verdict.batch_sessions] += 1
        if verdict.num_emitted:
            rows = 1 if verdict.solo else len(proposal) + 1
            stats.forwards_us.append((rows, verdict.forward_us or verdict.verify_us))
        # From one verdict to the next: what is done between them is of the round, too.
        round_start_s, self._round_start_s = self._round_start_s, self._clock()
        round_us = 0
        if not verdict.solo:
            self._left_out_us = self._lay_there.left_out_us(round_start_s, verdict.verify_us)
            round_us = int((self._round_start_s - round_start_s) * 1e6) - self._left_out_us
        if verdict.solo or not len(proposal):
            stats.solo_tokens += num_kept
            self._close_round(NO_PROPOSAL, verdict, before, Judged(), round_us)
            stats.solo_us.append(verdict.verify_us)
            return
        accepted = min(verdict.num_accepted, num_kept)
        rejected = accepted < num_kept and accepted < len(proposal)
        stats.rounds += 1
        stats.accepted += accepted
        stats.drafted += accepted + rejected
        stats.outcomes[len(proposal), accepted] += 1
        stats.prepared.append(proposal.from_run_ahead)
        stats.draft_lengths.append(len(proposal))
        stats.draft_us.append(proposal.draft_us)
        stats.verify_us.append(verdict.verify_us)
        stats.round_us.append(round_us)
        self._close_round(proposal, verdict, before, Judged(accepted + rejected, accepted), round_us)

    def _close_round(
        self, proposal: Proposal, verdict: Verdict, before: float | None, judged: Judged, round_us: int
    ) -> None:
        """Remember it for the next one, and what its verdict tells the observer; an empty one says nothing."""
        if not verdict.num_emitted:
            return
        # What was waited for in vain is no measure of a round, and did not stand.
        lost = self.plan.gamma > 0 and not len(proposal) and not verdict.solo
        moved, self._num_failovers = self.stats.verifier_failovers > self._num_failovers, self.stats.verifier_failovers
        if self._observer is not None:
            usual = self.stats.target_forwards > 1 and not (lost or moved)
            settled = usual and (verdict.solo or not self._catches_up)
            seen = self._observation(proposal, verdict, before, judged, round_us, settled=settled)
            self._unreported.append(seen)
            if self.finished or not verdict.last:
                self.report()
        whole = judged.num_accepted == len(proposal) and not lost
        self._previous_round = (
            None if verdict.solo else PreviousRound(len(proposal), whole, self.plan.prepare or len(proposal))
        )

    def _observation(
        self,
        proposal: Proposal,
        verdict: Verdict,
        before: float | None,
        judged: Judged,
        round_us: int,
        *,
        settled: bool,
    ) -> Observation:
        # Of an announced proposal nobody has asked for any token.
        announced = proposal.from_run_ahead and not proposal.draft_us
        return Observation(
            before=before,
            after=verdict.confidence,
            proposed=len(proposal),
            judged=judged.num_judged,
            accepted=judged.num_accepted,
            accepted_confidences=verdict.accepted_confidences[: judged.num_accepted],
            ready=len(proposal) if announced else 0,
            prepared=len(proposal) if proposal.from_run_ahead else proposal.num_prepared,
            previous_round=self._previous_round,
            chosen=self.plan.chosen_alone if verdict.solo else self.plan.chosen,
            streamed=verdict.solo,
            warm=verdict.solo and self.plan.keeps_warm,
            settled=settled,
            finished=self.finished,
            draft_us=proposal.draft_us,
            verify_us=verdict.verify_us,
            round_us=round_us,
            read_us=0 if verdict.solo else self._left_out_us,
            batch_sessions=verdict.batch_sessions,
            batch_rows=verdict.batch_rows,
            forward_us=verdict.forward_us,
        )


def _sources(proposal: Proposal, verdict: Verdict) -> tuple[TokenSource, ...]:
    """Return one source a token: accepted ones, then the target's own."""
    if verdict.solo or not len(proposal):
        return (TokenSource.SOLO,)
    all_accepted = verdict.num_accepted == len(proposal)
    own = TokenSource.BONUS if all_accepted else TokenSource.RECOVERED
    return (TokenSource.ACCEPTED,) * verdict.num_accepted + (own,)
