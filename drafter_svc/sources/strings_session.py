"""A draft model whose tokenizer has little in common with the target's: what it writes is encoded anew."""

from functools import cached_property
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from drafter_svc.sources.retokenized import Retokenized, TokenizerPair
from drafter_svc.sources.source import Announce, RoundOrder, Submit
from specgate.runtime.grammar import GrammarState
from specgate.runtime.kv_pages import PagePool
from specgate.runtime.scheduler import ForwardRequest, logits_of
from specgate.types import DraftRequest, Proposal, SessionSpec, common_prefix_length

if TYPE_CHECKING:
    from specgate.runtime.engine.jobs import Task

MOST_OWN_TOKENS = 2
"""Forwards for each token that is asked for: a draft of single bytes needs more, and is not worth them."""


class StringsSession:
    """See ``SourceSession``. It drafts the likeliest tokens, whatever the temperature: the noise is of other tokens.

    Its pages follow its own tokens: what is the same as before is kept, the rest is a rollback by length. It guesses
    nothing ahead, and lets a grammar to the target.

    Args:
        spec, pool, vocab_size, context_length, grammar: see ``DraftSession``.
        pair: both tokenizers.
        end_token_ids: at which the draft model ends a text.
    """

    was_announced = False

    def __init__(
        self,
        spec: SessionSpec,
        pool: PagePool,
        vocab_size: int,
        context_length: int,
        pair: TokenizerPair,
        end_token_ids: tuple[int, ...] = (),
        grammar: GrammarState | None = None,
    ) -> None:
        self.spec = spec
        self.last_proposal: tuple[int, ...] = ()
        self._pool, self._capacity, self._ends = pool, context_length, frozenset(end_token_ids)
        self._order = RoundOrder(spec.position)
        self._pair, self._vocab_size = pair, vocab_size
        self._num_dropped = 0
        self._sequence = pool.open((), context_length, spec.cache_salt)

    @property
    def ahead(self) -> "StringsSession":
        return self

    def start(self, num_rows: int, submit: Submit, announce: Announce | None = None) -> None:
        """See ``LookAhead``: nothing is guessed."""

    def free(self) -> None:
        self._pool.free(self._sequence)

    @cached_property
    def _text(self) -> Retokenized:
        # On the engine's thread: a long prompt takes a tenth of a second, for which no other stream may wait.
        return Retokenized(self._pair, self.spec.committed_token_ids)

    def warm(self) -> "Task[Proposal]":
        """Fill the KV but for the last token."""
        self._follow(len(self._text.own_ids))
        if (length := len(self._sequence) - 1) > self._sequence.num_cached:
            yield ForwardRequest(self._sequence, 0, length)
        return Proposal()

    def draft(self, request: DraftRequest) -> "Task[Proposal]":
        """See ``SourceSession``."""
        self._order.begin(request)
        self._follow(self._text.extend(request.token_ids))
        self.last_proposal = ()
        if request.gamma == 0:
            return (yield from self.warm())
        own: list[int] = []
        probs: list[float] = []
        if self._text.is_whole and len(self._sequence):
            yield from self._add(own, probs, request)
        ended = bool(own) and own[-1] in self._ends
        ids, ends = self._text.in_target_tokens(own, ended=ended)
        if ended and self._pair.end is not None:
            ids, ends = (*ids, self._pair.end), [*ends, ends[-1] if ends else 0]
        self.last_proposal = ids[: request.gamma]
        confidences = self._confidences(own, probs, ends) if request.stop_below > 0 else ()
        proposal = Proposal(self.last_proposal, draft_confidences=confidences[: request.gamma])
        return proposal.as_certain() if self.spec.rejects else proposal

    def _add(self, own: list[int], probs: list[float], request: DraftRequest) -> "Task[None]":
        """Draft until there are enough of the target's tokens, or nothing may follow."""
        while len(own) < MOST_OWN_TOKENS * (request.gamma + 1) and len(self._sequence) < self._capacity:
            logits = yield from logits_of(self._sequence, 1)
            prob, token_id = logits[0, : self._vocab_size].float().softmax(-1).max(-1)
            own.append(int(token_id))
            probs.append(float(prob))
            self._sequence.append(own[-1:])
            ended = own[-1] in self._ends or probs[-1] < request.stop_below
            if ended or len(self._text.in_target_tokens(own, ended=False)[0]) >= request.gamma:
                return

    def _follow(self, num_same: int) -> None:
        """Let the pages be those of the text, whose first ``num_same`` tokens are old; of a long one, of its end."""
        own = self._text.own_ids
        if len(own) - self._num_dropped > self._capacity * 3 // 4:
            self._num_dropped, num_same = len(own) - self._capacity // 2, 0
        same = min(max(num_same - self._num_dropped, 0), len(self._sequence))
        rest = own[self._num_dropped + same :]
        kept = common_prefix_length(self._sequence.token_ids[same:], rest)
        self._sequence.truncate(same + kept)
        self._sequence.append(rest[kept:])
        self._sequence.mark_stable(0)

    def _confidences(self, own: list[int], probs: list[float], ends: list[int]) -> tuple[float, ...]:
        """Return the draft's probability of each of the target's tokens: of all that it drafted for it."""
        places = [0]
        for token_id in own:
            places.append(places[-1] + len(self._text.bytes_of(token_id)))
        at = [next((i for i, place in enumerate(places) if place >= end), len(own)) for end in (0, *ends)]
        return tuple(prod(probs[first:last]) for first, last in pairwise(at))
