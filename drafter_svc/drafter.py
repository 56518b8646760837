"""One drafting session: follow the committed tokens, draft up to γ tokens after them."""

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch

from drafter_svc.run_ahead import guesses
from drafter_svc.run_ahead.branches import BranchContext, Guessing
from drafter_svc.run_ahead.learned import Learned
from drafter_svc.run_ahead.outcomes import Candidate
from drafter_svc.run_ahead.session import RunAhead
from drafter_svc.running import Running
from drafter_svc.sources.draft import Draft, DraftLimits, DraftToken
from drafter_svc.sources.source import LookAhead, RoundOrder
from specgate.errors import InvalidArgument
from specgate.runtime import noise, sampling
from specgate.runtime.grammar import GrammarState
from specgate.runtime.kv_pages import KVSequence, PagePool
from specgate.runtime.noise import Purpose
from specgate.runtime.sampling_step import Allowed, Barred, ForwardResult, Prefix, SamplingStep, adjusted, masked
from specgate.runtime.scheduler import ForwardRequest, forward
from specgate.types import (
    DraftMethod,
    DraftRequest,
    Proposal,
    SamplingParams,
    SessionSpec,
    SparseDistribution,
    common_prefix_length,
)

DRAFT_SUPPORT = 64
"""Tokens of the draft's distribution that rejection mode samples from, and sends."""

Work = Generator[ForwardRequest, ForwardResult, Proposal]


class DraftSession:
    """A session's tokens and pages on the draft model. Lives on the engine's thread.

    Args:
        spec: what the session was opened with.
        pool: where its pages come from.
        vocab_size, context_length: the draft model's own.
        learned: what sessions whose targets choose alike learn together of guessing ahead.
        method: what its drafts are called, ``MODEL`` or ``LAYER_SKIP``.
        grammar: what the answer may be; None: anything.

    Raises:
        InvalidArgument: the prompt does not fit into the draft model's context.
        KVCacheFull: no pages.
    """

    def __init__(
        self,
        spec: SessionSpec,
        pool: PagePool,
        vocab_size: int,
        context_length: int,
        learned: Learned | None = None,
        method: DraftMethod = DraftMethod.MODEL,
        grammar: GrammarState | None = None,
    ) -> None:
        self.spec = spec
        self._grammar = grammar
        self._first = spec.first_position
        self.capacity = min(spec.max_length - self._first, context_length)
        committed = spec.committed_token_ids
        if len(committed) > self.capacity:
            raise InvalidArgument(
                "prompt_token_ids", f"{len(committed)} tokens, the draft model takes {context_length}"
            )
        # The draft may only propose what the target knows.
        self.vocab_size = min(vocab_size, spec.vocab_size or vocab_size)
        self._sampling = _within(spec.sampling, self.vocab_size)
        self._order = RoundOrder(spec.position)
        self._num_rows = vocab_size
        self._pool = pool
        self.sequence = pool.open(self._readable(committed), self.capacity, spec.cache_salt)
        learned = learned or Learned()
        self._sharpness = learned.sharpness
        self._method = method
        context = BranchContext(spec, pool, self.capacity, self.extend, self._candidates, method)
        self.guesses = RunAhead(context, learned)
        self._running = Running(self.sequence, self._add, self.capacity, self._first, method)
        self.ahead: LookAhead = self.guesses

    def free(self) -> None:
        self.guesses.free()
        self._running.stop()
        self._pool.free(self.sequence)

    @property
    def num_committed(self) -> int:
        """Committed tokens that the session holds: the text may have more before them."""
        return self._order.num_committed - self._first

    @property
    def last_proposal(self) -> list[int]:
        """Draft tokens that are not committed yet."""
        return self.sequence.token_ids[self.num_committed :]

    def _readable(self, token_ids: Sequence[int]) -> list[int]:
        """Read an id that the draft model has no row for as id 0: a worse guess, never a wrong text."""
        return [token_id if token_id < self._num_rows else 0 for token_id in token_ids]

    def warm(self) -> Work:
        """Fill the KV up to the last committed token, which the next draft needs as its input."""
        if (length := min(len(self.sequence), self.capacity) - 1) > self.sequence.num_cached:
            yield ForwardRequest(self.sequence, 0, length)
        return Proposal()

    def commit(self, request: DraftRequest) -> None:
        """Follow the target: keep the KV of what was accepted, drop the rest. Raises OutOfSync, see ``RoundOrder``."""
        self._order.begin(request)
        if self._grammar is not None:
            self._grammar.commit(request.token_ids)
        committed, start = self._readable(request.token_ids), request.position - self._first
        if request.running:
            self._running.follow(request, start, committed)
        else:
            kept = common_prefix_length(self.sequence.token_ids[start:], committed)
            self.sequence.truncate(start + kept)
            self.sequence.append(committed[kept:])
        self.sequence.mark_stable(min(self.num_committed, self.capacity))

    def draft(self, request: DraftRequest) -> Work:
        """Commit, then draft up to γ tokens; fewer if a stop token is drafted, the draft is unsure or the context ends.

        The token that ends a draft stays in it: dropping it for its value would bias the text.
        """
        if request.running and self.spec.rejects:
            raise InvalidArgument("running", "a draft that was sampled holds for one round: rejection asks for each")
        if request.running:
            self.guesses.free()
            self.ahead = self._running
            self.commit(request)
            return Proposal()
        self._running.stop()
        self.ahead = self.guesses
        before = self.num_committed
        self.commit(request)
        draft = self.guesses.begin(self.sequence, request, tuple(self.sequence.token_ids[before:]))
        if request.gamma == 0:
            return (yield from self.warm())
        num_prepared = len(draft.tokens)
        yield from self.extend(draft)
        return draft.proposal(num_prepared, self._method)

    def extend(self, draft: Draft) -> Guessing:
        """Draft on until there are as many tokens as the draft's limits ask for, or one ends it."""
        while len(draft.tokens) < draft.limits.gamma and len(draft.sequence) < self.capacity and not draft.ended:
            yield from self._add(draft)

    def _add(self, draft: Draft) -> Guessing:
        """Run the last token and draft the one after it; several, if the engine can run them in a row."""
        sequence, start = draft.sequence, len(draft.sequence)
        step = self._sampling_step(sequence, start, stop_below=draft.limits.stop_below)
        most = min(draft.limits.gamma - len(draft.tokens), self.capacity - start) if self._chains(draft) else 1
        logits, sampled = yield from forward(sequence, 1, None if self.spec.rejects else step, most)
        if sampled is None:
            tokens = [self._sampled(logits, step, draft.limits)]
        else:
            probs = sampled.probs or [1.0] * len(sampled.token_ids)
            tokens = [DraftToken(*one) for one in zip(sampled.token_ids, probs, strict=True)]
        # Tokens that were run in a row are in the sequence already; those after a stop token are cut.
        ends = (i + 1 for i, one in enumerate(tokens) if self._ends(one, draft.limits))
        num_kept = next(ends, len(tokens))
        draft.ended = self._ends(tokens[num_kept - 1], draft.limits)
        sequence.truncate(start + num_kept)
        sequence.append([one.token_id for one in tokens[len(sequence) - start : num_kept]])
        draft.add(tokens[:num_kept], logits[:num_kept])

    def _ends(self, token: DraftToken, limits: DraftLimits) -> bool:
        return token.token_id in self.spec.stop_token_ids or token.prob < limits.stop_below

    def _chains(self, draft: Draft) -> bool:
        """Return whether a token can be run before the host has read it."""
        return not (self._grammar is not None or self.spec.rejects or self._sampling.has_penalties)

    def _sampled(self, logits: torch.Tensor, step: SamplingStep, limits: DraftLimits) -> DraftToken:
        logits = masked(logits, step)
        probs = sampling.log_probs(adjusted(logits, step), step.params)[0].exp()
        token_id, distribution = self._sample_support(probs, step.position, limits.round)
        if not step.with_probs:
            return DraftToken(token_id, distribution=distribution)
        raw = logits[0, : self.vocab_size].float().softmax(-1)
        return DraftToken(token_id, float(raw[token_id]), distribution)

    def _sampling_step(
        self, sequence: KVSequence, start: int, drafted: Sequence[int] = (), *, stop_below: float = 0.0
    ) -> SamplingStep:
        """Return how tokens are sampled at ``start``, and after each of the ``drafted`` tokens from there on."""
        position = self._first + start
        return SamplingStep(
            self._sampling,
            self.spec.seed,
            position,
            self.vocab_size,
            self._prefix(sequence.token_ids, start, drafted),
            stop_below > 0,
            Barred.at(position, self.spec, self.vocab_size),
            self._allowed(sequence.token_ids, start, drafted),
            stop_below,
        )

    def _allowed(self, token_ids: Sequence[int], start: int, drafted: Sequence[int]) -> Allowed | None:
        """Return what gives the tokens that the grammar allows at these positions, see ``SamplingStep``."""
        grammar = self._grammar
        if grammar is None:
            return None
        # It is called when a branch runs: the target may have committed some of its tokens by then.
        return lambda: grammar.allowed(drafted, token_ids[self.num_committed : start])

    def _prefix(self, token_ids: Sequence[int], start: int, drafted: Sequence[int]) -> Prefix | None:
        if not self._sampling.has_penalties:
            return None
        num_prompt = len(self.spec.prompt_token_ids)
        known = [i if i < self.vocab_size else 0 for i in token_ids[:start]]
        return Prefix(known[:num_prompt], known[num_prompt:], drafted)

    def _candidates(self, logits: torch.Tensor, draft: Draft) -> list[list[Candidate]]:
        """Return what the target may choose, from the draft's first token on; ``logits`` have a row a position."""
        step = self._sampling_step(draft.sequence, draft.start, draft.token_ids[: len(logits) - 1])
        logits = adjusted(masked(logits, step), step)
        return guesses.candidates(logits, step, rejects=self.spec.rejects, sharpness=self._sharpness.beta)

    def _sample_support(self, probs: torch.Tensor, position: int, round_index: int) -> tuple[int, SparseDistribution]:
        """Sample from the top of the distribution, by the float32 numbers that are sent."""
        top = probs.topk(min(DRAFT_SUPPORT, len(probs)))
        weights, ids = top.values.cpu(), top.indices.cpu()
        weights, ids = weights[weights > 0], ids[weights > 0]
        key = noise.row_key(self.spec.seed, position, Purpose.DRAFT, round_index)
        index = sampling.sample_weights(weights.double(), noise.uniform(key))
        distribution = SparseDistribution(tuple(ids.tolist()), tuple(weights.tolist()))
        return distribution.token_ids[index], distribution


def _within(sampling: SamplingParams, vocab_size: int) -> SamplingParams:
    """Return the parameters without biases on tokens that the draft does not have."""
    known = {token_id: bias for token_id, bias in sampling.logit_bias.items() if token_id < vocab_size}
    return replace(sampling, logit_bias=known)
