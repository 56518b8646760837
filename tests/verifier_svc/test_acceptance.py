"""Acceptance by rejection has exactly the target's law: every proposal, every interval of every random number.

The random numbers that the rule asks for are handed to it by the test. The test finds the points in (0, 1) at which
the rule changes its mind by bisection, so that probabilities come out as lengths of intervals, to 1e-11, whatever
the code under test looks like inside.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import pytest
import torch

from specgate.runtime import noise
from specgate.runtime.noise import Purpose
from specgate.runtime.sampling import sample_weights
from specgate.types import Proposal, SparseDistribution
from tests.support.models import KnownModel, Mix
from tests.support.transfers import Transfers
from verifier_svc.acceptance import Acceptance, accept_agreeing, accept_by_rejection

Accept = Callable[[torch.Tensor, Proposal, int, int], Acceptance]
Text = tuple[int, ...]
SEED, POSITION = 5, 100
EXACT = 1e-9
RESOLUTION = 1e-12
FIRST_LOOK = (RESOLUTION, 0.23, 0.49, 0.77, 1 - RESOLUTION)


class Asked(Exception):
    """The rule asks for a random number that the test has not decided on."""

    def __init__(self, key: Hashable) -> None:
        super().__init__(key)
        self.key = key


class Pair:
    """A target and a draft law for every prefix. The draft leaves out some ids that the target has."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self._target = KnownModel(vocab_size, seed)
        self._draft = KnownModel(vocab_size, seed + 1000, mix=Mix(seed, 0.7))

    def target(self, prefix: Text) -> torch.Tensor:
        probs = self._target.logits(prefix).double().softmax(0)
        if len(prefix) == 1:  # a filter has removed an id here and there
            probs[probs.argmin()] = 0.0
        return probs / probs.sum()

    def draft(self, prefix: Text) -> SparseDistribution:
        weights, ids = self._draft.logits(prefix).softmax(0).sort(descending=True)
        kept = self.vocab_size - (len(prefix) % 2)
        return SparseDistribution(tuple(ids[:kept].tolist()), tuple(weights[:kept].tolist()))


class Drawn(NamedTuple):
    """A proposal and how likely the draft draws it."""

    probability: float
    proposal: Proposal


Propose = Callable[[Pair, int], Iterator[Drawn]]


def every_proposal(pair: Pair, gamma: int) -> Iterator[Drawn]:
    """All proposals of gamma tokens."""

    def extend(done: Drawn) -> Iterator[Drawn]:
        ids, probs = done.proposal.draft_token_ids, done.proposal.draft_probs
        if len(ids) == gamma:
            yield done
            return
        shipped = pair.draft(ids)
        total = sum(shipped.probs)
        for token_id, weight in zip(shipped.token_ids, shipped.probs, strict=True):
            longer = Proposal((*ids, token_id), (*probs, shipped))
            yield from extend(Drawn(done.probability * weight / total, longer))

    return extend(Drawn(1.0, Proposal()))


def cut(proposal: Proposal, length: int) -> Proposal:
    return Proposal(proposal.draft_token_ids[:length], proposal.draft_probs[:length])


def unsure_at(proposal: Proposal, threshold: float = 0.4) -> int:
    """Return the index of the first token that the draft gave less than the threshold, or the length."""
    for index, (token_id, shipped) in enumerate(zip(proposal.draft_token_ids, proposal.draft_probs, strict=True)):
        if shipped.probs[shipped.token_ids.index(token_id)] / sum(shipped.probs) < threshold:
            return index
    return len(proposal)


def stopped_when_unsure(pair: Pair, gamma: int) -> Iterator[Drawn]:
    """draft_confidence: the token that the draft is unsure of is the proposal's last."""
    for probability, proposal in every_proposal(pair, gamma):
        yield Drawn(probability, cut(proposal, unsure_at(proposal) + 1))


def nothing(pair: Pair, gamma: int) -> Iterator[Drawn]:
    yield Drawn(1.0, Proposal())


def joint_law_error(accept: Accept, pair: Pair, gamma: int, propose: Propose = every_proposal) -> float:
    """Return the largest error in the law of the next gamma + 1 tokens.

    What a round leaves open of them is continued by the target's own law, as the next rounds do.
    """
    emitted: defaultdict[Text, float] = defaultdict(float)
    for probability, proposal in propose(pair, gamma):
        ids = proposal.draft_token_ids
        target_probs = torch.stack([pair.target(ids[:i]) for i in range(len(ids) + 1)])
        law = law_of(partial(accept, target_probs, proposal, SEED, POSITION))
        for (num_accepted, token_id), p in law.items():
            emitted[(*ids[:num_accepted], token_id)] += probability * p
    errors = []
    for text in product(range(pair.vocab_size), repeat=gamma + 1):
        actual = sum(emitted[text[:n]] * likelihood(pair, text, n) for n in range(1, gamma + 2))
        errors.append(abs(actual - likelihood(pair, text, 0)))
    return max(errors)


def likelihood(pair: Pair, text: Text, start: int) -> float:
    """Return the target's probability of text[start:] after text[:start]."""
    result = 1.0
    for i in range(start, len(text)):
        result *= float(pair.target(text[:i])[text[i]])
    return result


def law_of(rule: Callable[[], Acceptance]) -> dict[Acceptance, float]:
    """Return the exact law of what ``rule`` decides over all random numbers that it asks for."""
    law: defaultdict[Acceptance, float] = defaultdict(float)

    def look(given: dict[Hashable, float]) -> Hashable:
        """Return what is decided, or which number is asked for next."""
        with pytest.MonkeyPatch.context() as patch:
            # The only way in for numbers that the test decides on.
            patch.setattr(noise, "row_key", lambda seed, position, purpose, round_index=0: (position, purpose))
            patch.setattr(noise, "uniform", lambda key, counter=0: _answer(given, (key, counter)))
            try:
                return rule()
            except Asked as asked:
                return asked.key

    def integrate(given: dict[Hashable, float], weight: float) -> None:
        found = look(given)
        if isinstance(found, Acceptance):
            law[found] += weight
            return
        for uniform, width in pieces(lambda u: look({**given, found: u})):
            integrate({**given, found: uniform}, weight * width)

    integrate({}, 1.0)
    return dict(law)


def _answer(given: dict[Hashable, float], key: Hashable) -> float:
    if key not in given:
        raise Asked(key)
    return given[key]


def pieces(label_of: Callable[[float], Hashable]) -> Iterator[tuple[float, float]]:
    """Yield a number and the width of the interval around it over which the label is one."""
    borders = [0.0]
    for low, high in pairwise(FIRST_LOOK):
        while label_of(low) != label_of(high):
            left, right = low, high
            while right - left > RESOLUTION:
                middle = (left + right) / 2
                left, right = (middle, right) if label_of(middle) == label_of(low) else (left, middle)
            borders.append(right)
            low = right
    borders.append(1.0)
    for low, high in pairwise(borders):
        yield (low + high) / 2, high - low


@pytest.mark.parametrize(("vocab_size", "gamma"), [(3, 1), (3, 2), (3, 3), (4, 2), (5, 1), (5, 2)])
def test_one_round_has_exactly_the_targets_law(vocab_size: int, gamma: int) -> None:
    for seed in range(2 if vocab_size**gamma < 20 else 1):
        assert joint_law_error(accept_by_rejection, Pair(vocab_size, seed), gamma) < EXACT


def test_a_draft_that_stops_after_its_unsure_token_or_proposes_nothing_is_exact() -> None:
    assert {len(proposal) for _, proposal in stopped_when_unsure(Pair(3, 0), 3)} == {1, 2, 3}
    assert joint_law_error(accept_by_rejection, Pair(3, 0), 3, stopped_when_unsure) < EXACT
    assert joint_law_error(accept_by_rejection, Pair(4, 3), 1, nothing) < EXACT


def test_equal_laws_are_never_rejected() -> None:
    """Not even by rounding, where the ratio is a hair below 1 and the residual is empty."""
    probs = torch.tensor([0.1, 0.2, 0.3, 0.4])
    target = torch.stack([probs.double()] * 2)
    shipped = SparseDistribution((0, 1, 2, 3), tuple(probs.tolist()))
    for token_id in range(4):
        law = law_of(partial(accept_by_rejection, target, Proposal((token_id,), (shipped,)), 1, 1))
        assert sum(p for (num_accepted, _), p in law.items() if num_accepted == 0) < 1e-6


def test_agreeing_accepts_up_to_the_first_difference() -> None:
    for draft, target, expected in (
        ((), (7,), (0, 7)),
        ((6,), (7, 8), (0, 7)),
        ((1, 2, 3), (1, 2, 3, 4), (3, 4)),
        ((1, 9, 3), (1, 2, 3, 4), (1, 2)),
    ):
        assert accept_agreeing(draft, target) == expected


def word_for_word(target_probs: torch.Tensor, proposal: Proposal, seed: int, position: int) -> Acceptance:
    """Algorithm 1 of the paper, number by number."""
    for i, (token_id, shipped) in enumerate(zip(proposal.draft_token_ids, proposal.draft_probs, strict=True)):
        weights = torch.tensor(shipped.probs, dtype=torch.float32).double()
        draft_probs = torch.zeros_like(target_probs[i])
        draft_probs[torch.tensor(shipped.token_ids)] = weights / weights.sum()
        ratio = float(target_probs[i, token_id] / draft_probs[token_id])
        if noise.uniform(noise.row_key(seed, position + i, Purpose.ACCEPT)) < ratio:
            continue
        residual = (target_probs[i] - draft_probs).clamp_min(0)
        weights = residual if float(residual.sum()) > 0 else target_probs[i]
        number = noise.uniform(noise.row_key(seed, position + i, Purpose.RESIDUAL))
        return Acceptance(i, sample_weights(weights, number))
    number = noise.uniform(noise.row_key(seed, position + len(proposal), Purpose.TARGET))
    return Acceptance(len(proposal), sample_weights(target_probs[-1], number))


def a_round(seed: int) -> tuple[torch.Tensor, Proposal]:
    """Return what the target says to a proposal of a draft that is more or less like it."""
    generator = torch.Generator().manual_seed(seed)
    gamma, vocab_size = seed % 6, (8, 100, 5000)[seed % 3]
    logits = 2 * torch.randn(gamma + 1, vocab_size, generator=generator)
    target_probs = logits.log_softmax(-1).double().exp()
    # The draft's last row is the target's own: equal laws, whose residual is empty or next to it.
    drafts = (logits + 0.5 * torch.randn(logits.shape, generator=generator))[:gamma]
    drafts[gamma - 1 :] = logits[gamma - 1 : gamma]
    tops = [row.softmax(-1).topk(min(64, vocab_size)) for row in drafts]
    shipped = tuple(SparseDistribution(tuple(top.indices.tolist()), tuple(top.values.tolist())) for top in tops)
    picks = [int(torch.multinomial(top.values, 1, generator=generator)) for top in tops]
    return target_probs, Proposal(tuple(s.token_ids[i] for s, i in zip(shipped, picks, strict=True)), shipped)


def test_the_rule_is_the_papers_number_by_number_in_two_transfers_from_the_device() -> None:
    outcomes = Counter[bool]()
    for seed in range(300):
        target_probs, proposal = a_round(seed)
        with Transfers() as transfers:
            found = accept_by_rejection(target_probs, proposal, seed, POSITION)
        assert transfers.num <= 2
        assert found == word_for_word(target_probs, proposal, seed, POSITION), seed
        outcomes[found.num_accepted == len(proposal)] += 1
    assert min(outcomes.values()) > 50
