"""One verifying session: judge proposals, decode alone under the gate, stop where the request stops."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial

from specgate.errors import InvalidArgument, OutOfSync
from specgate.runtime.grammar import GrammarState
from specgate.runtime.kv_pages import PagePool
from specgate.runtime.sampling_step import Barred, ForwardResult, Prefix, SamplingStep, masked
from specgate.runtime.scheduler import ForwardRequest, forward
from specgate.types import (
    NO_PROPOSAL,
    FinishReason,
    FollowUps,
    Proposal,
    RunningDraft,
    SessionSpec,
    TokenLogprobs,
    Verdict,
    VerifyRequest,
    check_range,
)
from verifier_svc.acceptance import decide
from verifier_svc.logprobs import confidences_of, logprobs_of

Verifying = Generator[ForwardRequest, ForwardResult, None]
Emit = Callable[[Verdict], None]
EmitPrompt = Callable[[tuple[TokenLogprobs, ...]], None]
PROMPT_ROWS = 64
"""Rows of one forward over a prompt whose log-probabilities are wanted: logits take memory, and other sessions wait."""


class VerifySession:
    """A session's tokens and pages on the target model. Lives on the engine's thread, but for ``interrupt``,
    ``expect`` and ``run_on``.

    Args:
        grammar: what the answer may be, in its state after the emitted tokens; None: anything.

    Raises:
        InvalidArgument: prompt plus max_tokens pass the target's context length.
        KVCacheFull: no pages.
    """

    def __init__(
        self,
        spec: SessionSpec,
        pool: PagePool,
        vocab_size: int,
        context_length: int,
        grammar: GrammarState | None = None,
    ) -> None:
        if spec.first_position:
            raise InvalidArgument("first_position", f"is {spec.first_position}; a verifier reads the whole text: 0")
        if spec.max_length > context_length:
            raise InvalidArgument(
                "max_tokens",
                f"{len(spec.prompt_token_ids)} prompt tokens plus {spec.max_tokens} pass the context length "
                f"of {context_length}",
            )
        self.spec = spec
        self.vocab_size = vocab_size
        self._pool = pool
        self._grammar = grammar
        self.sequence = pool.open(spec.committed_token_ids, spec.max_length, spec.cache_salt)
        self._interrupted = False
        self._expected: FollowUps | None = None
        self._running: RunningDraft | None = None
        self._confidence = 1.0
        """In the last token; the gate is open before the first one."""
        self._solo_start = len(self.sequence)
        self._cached_tokens = 0
        self._last_round = -1
        self._finished = False

    def free(self) -> None:
        self._pool.free(self.sequence)

    def interrupt(self) -> None:
        """End a solo run at its next forward, with an empty verdict. Called from any thread: it only sets a flag."""
        self._interrupted = True

    def resume(self) -> None:
        """Let the next round run. Called before it is given to the engine, so that no interrupt is lost."""
        self._interrupted = False

    def expect(self, follow_ups: FollowUps) -> None:
        """Start one of these rounds by itself if a verdict is its outcome. Called from any thread.

        Of several for one round and position the first are kept: the session may have started one of them.
        """
        if self._expected is None or self._expected[:2] != follow_ups[:2]:
            self._expected = follow_ups

    def run_on(self, draft: RunningDraft) -> None:
        """Use this draft from now on, in rounds with ``running_gamma``. Called from any thread."""
        self._running = draft

    @property
    def num_remaining(self) -> int:
        return self.spec.max_length - len(self.sequence)

    def prefill(self, emit: EmitPrompt | None = None) -> Verifying:
        """Fill the KV up to the last committed token, which the first round needs as its input.

        Args:
            emit: receives the log-probabilities of the prompt's tokens in parts, if the session asked for them.
        """
        if emit is not None and self.spec.num_prompt_logprobs:
            yield from self._read_prompt(emit)
        if (length := len(self.sequence) - 1) > self.sequence.num_cached:
            yield ForwardRequest(self.sequence, 0, length)
        not_computed = max(0, length - self.sequence.num_computed)
        self._cached_tokens = min(not_computed, len(self.spec.prompt_token_ids))

    def _read_prompt(self, emit: EmitPrompt) -> Verifying:
        """Run all rows of the prompt but the last, also rows that are cached: logits are not cached."""
        prompt, end = self.spec.prompt_token_ids, self.spec.num_prompt_logprobs
        for first in range(0, end, PROMPT_ROWS):
            length = min(first + PROMPT_ROWS, end)
            answer = yield ForwardRequest(self.sequence, length - first, length, is_prompt=True)
            emit(logprobs_of(answer.logits, prompt[first + 1 : length + 1], self.spec.prompt_logprobs))

    def verify(self, request: VerifyRequest, emit: Emit) -> Verifying:
        """Judge the proposal and, while the gate is closed, decode alone; one verdict a forward, emitted at once.

        If the last verdict is the outcome of a follow-up, that round runs next.

        Raises:
            OutOfSync: the round starts from another length than the session's.
            InvalidArgument: more draft tokens than may still be emitted, or the session has ended.
        """
        following: VerifyRequest | None = request
        while following is not None:
            following = yield from self._verify_one(following, emit)

    def _verify_one(
        self, request: VerifyRequest, emit: Emit
    ) -> Generator[ForwardRequest, ForwardResult, VerifyRequest | None]:
        """Run one round; return the one that follows it at once."""
        proposal = self._rest_of(request)
        if proposal is None:
            emit(Verdict(request.round))
            return None
        end, is_first = self.spec.max_length if request.max_solo_tokens else 0, True
        while True:
            start, running = len(self.sequence), NO_PROPOSAL if len(proposal) else self._next_of_running(request, end)
            solo = not (is_first or len(running))
            verdict = yield from self._judge(running if len(running) else proposal, request, solo, end)
            if is_first:
                self._solo_start = len(self.sequence)
                end = self._solo_start + request.max_solo_tokens
            number, following = self._following(verdict, start)
            verdict = replace(verdict, draft_token_ids=running.draft_token_ids)
            emit(replace(verdict, last=True, follow_up=number) if number else verdict)
            if number or verdict.last:
                return following
            if self._interrupted:
                emit(Verdict(request.round))
                return None
            proposal, is_first = NO_PROPOSAL, False

    def _next_of_running(self, request: VerifyRequest, end: int) -> Proposal:
        """Return what comes next of the running draft; nothing behind an unsure token, or if the two do not agree."""
        if self._running is None or not request.running_gamma or self._confidence < request.solo_below:
            return NO_PROPOSAL
        most = max(min(request.running_gamma, min(end, self.spec.max_length) - len(self.sequence) - 1), 0)
        proposal = Proposal(self._running.after(self.sequence.token_ids, most))
        return proposal.as_certain() if self.spec.rejects else proposal

    def _following(self, verdict: Verdict, start: int) -> tuple[int, VerifyRequest | None]:
        """Return the number of the follow-up whose outcome is ``verdict``, and its round; 0 and None if there is none.

        Args:
            start: position of the verdict's first token.
        """
        expected = self._expected
        if expected is None or self._finished or self._interrupted:
            return 0, None
        number, following = expected.following(verdict, start, len(self.sequence))
        if following is not None and self.spec.rejects:
            # Exact for any draft: a token is accepted with the target's probability of it; else another one is drawn
            # from the rest of the distribution.
            following = replace(following, proposal=following.proposal.as_certain())
        return number, following

    def _rest_of(self, request: VerifyRequest) -> Proposal | None:
        """Return what is left of the proposal after the solo tokens that its sender has not seen; None: they differ."""
        length, proposal = len(self.sequence), request.proposal
        if request.round <= self._last_round or not self._solo_start <= request.position <= length:
            raise OutOfSync(
                f"round {request.round} starts at {request.position}, the session is at {length} "
                f"after round {self._last_round}"
            )
        self._last_round = request.round
        if self._finished:
            raise InvalidArgument("round", "the session has ended")
        unseen = tuple(self.sequence.token_ids[request.position :])
        if unseen and proposal.draft_token_ids[: len(unseen)] != unseen:
            return None
        rest = Proposal(proposal.draft_token_ids[len(unseen) :], proposal.draft_probs[len(unseen) :])
        check_range("proposal.draft_token_ids (length)", len(rest), 0, self.num_remaining - 1)
        if self.spec.rejects and len(rest.draft_probs) != len(rest):
            raise InvalidArgument(
                "proposal.draft_probs (length)",
                f"{len(rest.draft_probs)}; rejection needs one a draft token: {len(rest)}",
            )
        return rest

    def _judge(
        self, proposal: Proposal, request: VerifyRequest, solo: bool, end: int
    ) -> Generator[ForwardRequest, ForwardResult, Verdict]:
        """Run the proposal through the target in one forward, commit what stands, return the verdict."""
        start, draft = len(self.sequence), proposal.draft_token_ids
        step = self._sampling_step(draft)
        self.sequence.append(draft)
        answer = yield from forward(self.sequence, len(draft) + 1, None if self.spec.rejects else step)
        if self.spec.rejects:
            answer = ForwardResult(masked(answer.logits, step))
        (num_accepted, token_id), near_ties = decide(answer, proposal, step)
        self._check_grammar(start, num_accepted)
        room = self.spec.max_length - start
        emitted, finish_reason = self._trim([*draft[:num_accepted], token_id], room)
        self.sequence.truncate(start + num_accepted)
        self.sequence.append([token_id])
        self.sequence.mark_stable(len(self.sequence))
        self._finished = finish_reason is not None
        confidences = confidences_of(answer, emitted)
        confidence = self._confidence = confidences[-1]
        goes_on = not self._finished and len(self.sequence) < end
        goes_on &= confidence < request.solo_below or request.running_gamma > 0
        return Verdict(
            round=request.round,
            num_accepted=min(num_accepted, len(emitted)),
            token_id=token_id if len(emitted) > num_accepted else None,
            confidence=confidence,
            solo=solo,
            last=not goes_on,
            finish_reason=finish_reason,
            near_ties=near_ties,
            logprobs=logprobs_of(answer.logits, emitted, self.spec.logprobs),
            accepted_confidences=confidences[:num_accepted],
            cached_tokens=self._cached_tokens,
        )

    def _sampling_step(self, draft: Sequence[int]) -> SamplingStep:
        """Return how the tokens after the committed ones are sampled, each after the draft tokens before it."""
        params, committed, num_prompt = self.spec.sampling, self.sequence.token_ids, len(self.spec.prompt_token_ids)
        prefix = Prefix(self.spec.prompt_token_ids, committed[num_prompt:], draft) if params.has_penalties else None
        barred = Barred.at(len(committed), self.spec, self.vocab_size)
        allowed = partial(self._grammar.allowed, draft) if self._grammar is not None else None
        return SamplingStep(params, self.spec.seed, len(committed), self.vocab_size, prefix, True, barred, allowed)

    def _check_grammar(self, length: int, num_accepted: int) -> None:
        """Raise InvalidArgument if the grammar has no state after the accepted tokens."""
        grammar = self._grammar
        if grammar is not None and num_accepted >= grammar.num_known:
            num_tokens = length + num_accepted - len(self.spec.prompt_token_ids)
            raise InvalidArgument("grammar", f"leads nowhere after {num_tokens} tokens: {grammar.error}")

    def _trim(self, emitted: list[int], room: int) -> tuple[list[int], FinishReason | None]:
        """Cut the tokens after the first stop token, where the grammar is complete without one, or after ``room``."""
        emitted, reason = emitted[:room], FinishReason.LENGTH if len(emitted) >= room else None
        for index, token_id in enumerate(emitted):
            if token_id in self.spec.stop_token_ids:
                emitted, reason = emitted[: index + 1], FinishReason.STOP
                break
        completed = self._grammar.commit(emitted) if self._grammar is not None else None
        return (emitted, reason) if completed is None else (emitted[:completed], FinishReason.STOP)
