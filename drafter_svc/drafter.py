"""One drafting session: follow the committed tokens, draft up to gamma tokens after them."""

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch

from drafter_svc import guesses
from drafter_svc.draft import Draft, DraftToken, Terms
from drafter_svc.outcomes import Candidate
from drafter_svc.run_ahead import RunAhead
from specgate.errors import InvalidArgument, OutOfSync
from specgate.runtime import noise, sampling
from specgate.runtime.kv_pages import PagePool
from specgate.runtime.kv_pages import Sequence as Tokens
from specgate.runtime.noise import Purpose
from specgate.runtime.scheduler import Need, logits_of
from specgate.types import DraftRequest, Proposal, SamplingParams, SessionSpec, SparseDistribution, Verification

DRAFT_SUPPORT = 64
"""Tokens of the draft's distribution that rejection mode samples from, and ships."""

Drafting = Generator[Need, torch.Tensor, Proposal]


class DraftSession:
    """A session's tokens and pages on the draft model. Lives on the engine's thread.

    Args:
        spec: what the session was opened with.
        pool: where its pages come from.
        vocab_size, context_length: the draft model's own.

    Raises:
        InvalidArgument: the prompt does not fit into the draft model's context.
        KVCacheFull: no pages.
    """

    def __init__(self, spec: SessionSpec, pool: PagePool, vocab_size: int, context_length: int) -> None:
        self.spec = spec
        self.capacity = min(spec.max_length, context_length)
        committed = spec.committed_token_ids
        if len(committed) > self.capacity:
            raise InvalidArgument(
                "prompt_token_ids", f"{len(committed)} tokens, the draft model takes {context_length}"
            )
        # The draft may only propose what the target knows.
        self.vocab_size = min(vocab_size, spec.vocab_size or vocab_size)
        self._sampling = _within(spec.sampling, self.vocab_size)
        self.num_committed = len(committed)
        self._last_round = -1
        self._num_rows = vocab_size
        self._pool = pool
        self.sequence = pool.open(self._readable(committed), self.capacity, spec.cache_salt)
        self.ahead = RunAhead(spec, pool, self.capacity, self.extend, self._candidates)

    def free(self) -> None:
        self.ahead.free()
        self._pool.free(self.sequence)

    @property
    def last_proposal(self) -> list[int]:
        """Draft tokens that are not committed yet."""
        return self.sequence.token_ids[self.num_committed :]

    def _readable(self, token_ids: Sequence[int]) -> list[int]:
        """Read an id that the draft model has no row for as id 0: a worse guess, never a wrong text."""
        return [token_id if token_id < self._num_rows else 0 for token_id in token_ids]

    def warm(self) -> Drafting:
        """Fill the KV up to the last committed token, which the next draft needs as its input."""
        if (length := min(len(self.sequence), self.capacity) - 1) > self.sequence.num_cached:
            yield Need(self.sequence, 0, length)
        return Proposal()

    def commit(self, request: DraftRequest) -> None:
        """Follow the target: keep the KV of what was accepted, drop the rest.

        Raises:
            OutOfSync: the round starts from another length, or was drafted for already: its number keys the draft's
                randomness.
        """
        if request.round < self._last_round + (request.gamma > 0):
            raise OutOfSync(f"round {request.round} comes after round {self._last_round}")
        if request.gamma:
            self._last_round = request.round
        if request.position != self.num_committed:
            raise OutOfSync(f"the round starts at {request.position}, the session is at {self.num_committed}")
        committed, drafted, kept = self._readable(request.token_ids), self.last_proposal, 0
        while kept < min(len(drafted), len(committed)) and drafted[kept] == committed[kept]:
            kept += 1
        self.sequence.truncate(self.num_committed + kept)
        self.sequence.append(committed[kept:])
        self.num_committed += len(committed)
        self.sequence.settle(min(self.num_committed, self.capacity))

    def draft(self, request: DraftRequest) -> Drafting:
        """Commit, then draft 1 to gamma tokens; fewer where a stop token was drafted, the draft is unsure or the
        context ends. The token that ends a draft stays in it: dropping it for its value would bias the text.
        """
        before = self.num_committed
        self.commit(request)
        draft = self.ahead.begin(self.sequence, Terms.of(request), tuple(self.sequence.token_ids[before:]))
        if request.gamma == 0:
            return (yield from self.warm())
        num_ready = len(draft.tokens)
        yield from self.extend(draft)
        return draft.proposal(from_run_ahead=0 < num_ready == len(draft.tokens))

    def extend(self, draft: Draft) -> Generator[Need, torch.Tensor, None]:
        """Draft on until there are as many tokens as the draft's terms ask for, or one ends it."""
        sequence, terms = draft.sequence, draft.terms
        while len(draft.tokens) < terms.gamma and len(sequence) < self.capacity and not draft.ended:
            logits: torch.Tensor = yield from logits_of(sequence, 1)
            logits = logits[:, : self.vocab_size]
            token = self._pick(logits, sequence, terms.round)
            draft.tokens.append(token)
            draft.logits.append(logits)
            sequence.append([token.token_id])
            draft.ended = self._should_stop(logits, token.token_id, terms.stop_below)

    def _should_stop(self, logits: torch.Tensor, token_id: int, stop_below: float) -> bool:
        if token_id in self.spec.stop_token_ids:
            return True
        return stop_below > 0 and float(logits.float().softmax(-1)[0, token_id]) < stop_below

    def _pick(self, logits: torch.Tensor, sequence: Tokens, round_index: int) -> DraftToken:
        params, position = self._sampling, len(sequence)
        adjusted = sampling.adjust(logits, params, self._counts(logits, sequence.token_ids))
        if params.greedy or self.spec.verification is Verification.SHARED_NOISE:
            choice = sampling.sample_shared(adjusted, params, self.spec.seed, position)
            return DraftToken(choice.token_ids[0], None)
        probs = sampling.log_probs(adjusted, params)[0].exp()
        return self._sample_support(probs, position, round_index)

    def _sample_support(self, probs: torch.Tensor, position: int, round_index: int) -> DraftToken:
        """Sample from the top of the distribution, by the very float32 numbers that are shipped."""
        top = probs.topk(min(DRAFT_SUPPORT, len(probs)))
        weights, ids = top.values.cpu(), top.indices.cpu()
        weights, ids = weights[weights > 0], ids[weights > 0]
        key = noise.row_key(self.spec.seed, position, Purpose.DRAFT, round_index)
        index = sampling.sample_weights(weights.double(), noise.uniform(key))
        distribution = SparseDistribution(tuple(ids.tolist()), tuple(weights.tolist()))
        return DraftToken(distribution.token_ids[index], distribution)

    def _counts(
        self, logits: torch.Tensor, token_ids: Sequence[int], drafted: Sequence[int] = ()
    ) -> sampling.TokenCounts | None:
        if not self.spec.sampling.has_penalties:
            return None
        num_prompt = len(self.spec.prompt_token_ids)
        known = [i if i < self.vocab_size else 0 for i in token_ids]
        return sampling.token_counts(known[:num_prompt], known[num_prompt:], drafted, logits)

    def _candidates(self, logits: torch.Tensor, draft: Draft) -> list[list[Candidate]]:
        """Return what the target may choose where these logits are from: at the draft's first token and after it."""
        logits, start = logits[:, : self.vocab_size], len(draft.sequence) - len(draft.tokens)
        drafted = draft.token_ids[: len(logits) - 1]
        counts = self._counts(logits, draft.sequence.token_ids[:start], drafted)
        adjusted = sampling.adjust(logits, self._sampling, counts)
        return guesses.candidates(adjusted, self._sampling, self.spec, start)


def _within(sampling: SamplingParams, vocab_size: int) -> SamplingParams:
    """Return the parameters without biases on tokens that the draft does not have."""
    known = {token_id: bias for token_id, bias in sampling.logit_bias.items() if token_id < vocab_size}
    return replace(sampling, logit_bias=known)
