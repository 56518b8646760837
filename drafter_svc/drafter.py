"""One drafting session: follow the committed tokens, draft up to gamma tokens after them."""

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch

from drafter_svc.rounds import RoundOrder
from drafter_svc.run_ahead import guesses
from drafter_svc.run_ahead.branches import Drafting
from drafter_svc.run_ahead.outcomes import Candidate
from drafter_svc.run_ahead.session import RunAhead
from drafter_svc.run_ahead.sharpness import Sharpness
from drafter_svc.sources.model import Draft, DraftToken, Terms
from drafter_svc.sources.suffix import SURER_MATCH, SuffixText, until_stop
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
"""Tokens of the draft's distribution that rejection mode samples from, and ships."""

Work = Generator[ForwardRequest, ForwardResult, Proposal]


class DraftSession:
    """A session's tokens and pages on the draft model. Lives on the engine's thread.

    Args:
        spec: what the session was opened with.
        pool: where its pages come from.
        vocab_size, context_length: the draft model's own.
        sharpness: of the guesses, shared by sessions whose targets choose alike.
        method: what its drafts are called; ``SUFFIX_AND_MODEL`` copies where the text repeats itself, and drafts else.
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
        sharpness: Sharpness | None = None,
        method: DraftMethod = DraftMethod.MODEL,
        grammar: GrammarState | None = None,
    ) -> None:
        self.spec = spec
        self._grammar = grammar
        self.capacity = min(spec.max_length, context_length)
        committed = spec.committed_token_ids
        if len(committed) > self.capacity:
            raise InvalidArgument(
                "prompt_token_ids", f"{len(committed)} tokens, the draft model takes {context_length}"
            )
        # The draft may only propose what the target knows.
        self.vocab_size = min(vocab_size, spec.vocab_size or vocab_size)
        self._sampling = _within(spec.sampling, self.vocab_size)
        self._order = RoundOrder(len(committed))
        self._num_rows = vocab_size
        self._pool = pool
        self.sequence = pool.open(self._readable(committed), self.capacity, spec.cache_salt)
        self.sharpness = sharpness or Sharpness()
        has_text = method is DraftMethod.SUFFIX_AND_MODEL
        self._text = SuffixText(committed) if has_text else None
        self._method = DraftMethod.MODEL if has_text else method
        tools = Drafting(self.extend, self._candidates, self._next_copied)
        self.ahead = RunAhead(spec, pool, self.capacity, tools, self.sharpness)

    def free(self) -> None:
        self.ahead.free()
        self._pool.free(self.sequence)

    @property
    def num_committed(self) -> int:
        return self._order.num_committed

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
        if self._text is not None:
            self._text.extend(request.token_ids)
        if self._grammar is not None:
            self._grammar.commit(request.token_ids)
        committed, start = self._readable(request.token_ids), request.position
        kept = common_prefix_length(self.sequence.token_ids[start:], committed)
        self.sequence.truncate(start + kept)
        self.sequence.append(committed[kept:])
        self.sequence.mark_stable(min(self.num_committed, self.capacity))

    def draft(self, request: DraftRequest) -> Work:
        """Commit, then draft 1 to gamma tokens; fewer where a stop token was drafted, the draft is unsure or the
        context ends. The token that ends a draft stays in it: dropping it for its value would bias the text.
        """
        before = self.num_committed
        self.commit(request)
        draft = self.ahead.begin(self.sequence, request, tuple(self.sequence.token_ids[before:]))
        if request.gamma == 0:
            return (yield from self.warm())
        num_prepared = len(draft.tokens)
        yield from self.extend(draft)
        return draft.proposal(num_prepared)

    def extend(self, draft: Draft) -> Generator[ForwardRequest, ForwardResult, None]:
        """Draft on until there are as many tokens as the draft's terms ask for, or one ends it."""
        if not draft.tokens:
            self._copy(draft)
        while len(draft.tokens) < draft.terms.gamma and len(draft.sequence) < self.capacity and not draft.ended:
            yield from self._add(draft)

    def _copy(self, draft: Draft) -> None:
        """Let the draft be what followed the end of the text earlier in it, as far as there is evidence: no forward."""
        draft.method = self._method
        copied = self._copied(draft, min(draft.terms.gamma, self.capacity - len(draft.sequence)))
        if copied:
            draft.method, draft.ended = DraftMethod.SUFFIX, True
            draft.sequence.append(copied)
            certain = SparseDistribution.certain if self.spec.rejects else lambda token_id: None
            draft.tokens = [DraftToken(token_id, 1.0, certain(token_id)) for token_id in copied]

    def _copied(self, draft: Draft, most: int) -> list[int]:
        """Return up to ``most`` tokens that followed the end of the draft's sequence: to a stop token, and to one that
        the draft model has no row for.
        """
        if self._text is None or most <= 0:
            return []
        behind = draft.sequence.token_ids[self.num_committed :]
        copied = self._text.draft(most, behind, least=SURER_MATCH)
        if self._grammar is not None:
            copied = copied[: self._grammar.num_following(copied, behind)]
        known = next((index for index, one in enumerate(copied) if one >= self._num_rows), len(copied))
        return list(until_stop(copied[:known], self.spec.stop_token_ids))

    def _next_copied(self, draft: Draft) -> int | None:
        """Return the token that a copy goes on with, if the draft is one that does."""
        copied = self._copied(draft, 1) if draft.method is DraftMethod.SUFFIX else []
        return copied[0] if copied else None

    def _add(self, draft: Draft) -> Generator[ForwardRequest, ForwardResult, None]:
        """Run the last token and draft the one behind it; several, where the engine can run them in a row."""
        sequence, start = draft.sequence, len(draft.sequence)
        choosing = self._choosing(sequence, start, with_probs=draft.terms.stop_below > 0)
        most = min(draft.terms.gamma - len(draft.tokens), self.capacity - start) if self._chains(draft) else 1
        logits, chosen = yield from forward(sequence, 1, None if self.spec.rejects else choosing, most)
        if chosen is None:
            tokens = [self._sampled(logits, choosing, draft.terms)]
        else:
            probs = chosen.probs or [1.0] * len(chosen.token_ids)
            tokens = [DraftToken(*one) for one in zip(chosen.token_ids, probs, strict=True)]
        # Those that were run in a row are the sequence's already: behind a stop token they are not wanted.
        ends = (i + 1 for i, one in enumerate(tokens) if self._ends(one, draft.terms))
        num_kept = next(ends, len(tokens))
        draft.ended = self._ends(tokens[num_kept - 1], draft.terms)
        sequence.truncate(start + num_kept)
        sequence.append([one.token_id for one in tokens[len(sequence) - start : num_kept]])
        draft.add(tokens[:num_kept], logits[:num_kept])

    def _ends(self, token: DraftToken, terms: Terms) -> bool:
        return token.token_id in self.spec.stop_token_ids or token.prob < terms.stop_below

    def _chains(self, draft: Draft) -> bool:
        """Return whether a token can be run before anybody has looked at it."""
        masked_or_rejected = self._grammar is not None or self.spec.rejects
        return not (masked_or_rejected or self._sampling.has_penalties or draft.terms.stop_below > 0)

    def _sampled(self, logits: torch.Tensor, choosing: SamplingStep, terms: Terms) -> DraftToken:
        logits = masked(logits, choosing)
        probs = sampling.log_probs(adjusted(logits, choosing), choosing.params)[0].exp()
        token_id, distribution = self._sample_support(probs, choosing.position, terms.round)
        raw = logits[0, : self.vocab_size].float().softmax(-1)
        return DraftToken(token_id, float(raw[token_id]) if choosing.with_probs else 1.0, distribution)

    def _choosing(
        self, sequence: KVSequence, start: int, drafted: Sequence[int] = (), *, with_probs: bool = False
    ) -> SamplingStep:
        """Say how the tokens of a sequence are chosen: at ``start``, and behind each of these that stand from there."""
        return SamplingStep(
            self._sampling,
            self.spec.seed,
            start,
            self.vocab_size,
            self._prefix(sequence.token_ids, start, drafted),
            with_probs,
            Barred.at(start, self.spec, self.vocab_size),
            self._allowed(sequence.token_ids, start, drafted),
        )

    def _allowed(self, token_ids: Sequence[int], start: int, drafted: Sequence[int]) -> Allowed | None:
        """Return what tells the tokens that the grammar allows at these positions, see ``SamplingStep``."""
        grammar = self._grammar
        if grammar is None:
            return None
        # A branch is asked for when its turn comes: the target may have committed some of its tokens by then.
        return lambda: grammar.allowed(drafted, token_ids[self.num_committed : start])

    def _prefix(self, token_ids: Sequence[int], start: int, drafted: Sequence[int]) -> Prefix | None:
        if not self._sampling.has_penalties:
            return None
        num_prompt = len(self.spec.prompt_token_ids)
        known = [i if i < self.vocab_size else 0 for i in token_ids[:start]]
        return Prefix(known[:num_prompt], known[num_prompt:], drafted)

    def _candidates(self, logits: torch.Tensor, draft: Draft) -> list[list[Candidate]]:
        """Return what the target may choose where these logits are from: at the draft's first token and after it."""
        start = len(draft.sequence) - len(draft.tokens)
        choosing = self._choosing(draft.sequence, start, draft.token_ids[: len(logits) - 1])
        logits = adjusted(masked(logits, choosing), choosing)
        return guesses.candidates(logits, choosing, rejects=self.spec.rejects, sharpness=self.sharpness.beta)

    def _sample_support(self, probs: torch.Tensor, position: int, round_index: int) -> tuple[int, SparseDistribution]:
        """Sample from the top of the distribution, by the very float32 numbers that are shipped."""
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
