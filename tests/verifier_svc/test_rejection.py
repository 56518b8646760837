"""Rejection through both sessions and many rounds: the joint law of a text is the target's.

Exactly: every branch of every random choice is enumerated over models whose logits are known. (With the numbers that
services draw, over real models: tests/integration/test_rejection_law.py.)
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from drafter_svc import drafter
from drafter_svc.drafter import DraftSession
from specgate.runtime import noise, sampling
from specgate.runtime.grammar import Grammars
from specgate.types import ALWAYS_SOLO, DraftRequest, Proposal, SamplingParams, SessionSpec, Verification
from tests.support.chisquare import Text, joint_law
from tests.support.grammars import END, LETTERS, allowed_by_texts, choice, letter_grammars
from tests.support.models import KnownModel, Mix, run_all
from tests.support.sessions import Generation, MakeDraft, Pair, Plan, Use, as_it_is, decode, was_interrupted
from verifier_svc import acceptance

PROMPT = (1, 2)
NextLaw = Callable[[Text], list[float]]


def make_spec(max_tokens: int, seed: int = 0, **fields: Any) -> SessionSpec:
    settings = {"sampling": SamplingParams(), "verification": Verification.REJECTION, **fields}
    return SessionSpec(prompt_token_ids=PROMPT, seed=seed, max_tokens=max_tokens, **settings)


class Branches:
    """Takes every way through a program that chooses at random, one after the other."""

    def __init__(self) -> None:
        self._path: list[int] = []
        self._depth = 0
        self._open: list[list[int]] = [[]]
        self._numbers: dict[tuple[int, int], Number] = {}
        self.may_reuse = False
        self.weight = 1.0

    def __iter__(self) -> Iterator[None]:
        while self._open:
            self._path, self._depth, self.weight = self._open.pop(), 0, 1.0
            self._numbers = {}
            yield

    def choose(self, probs: list[float]) -> int:
        """Return an index of positive probability, another one at each pass."""
        if self._depth == len(self._path):
            first, *others = [index for index, p in enumerate(probs) if p > 0]
            self._open += [[*self._path, index] for index in others]
            self._path.append(first)
        index = self._path[self._depth]
        self._depth += 1
        self.weight *= probs[index]
        return index

    def number(self, key: int, counter: int = 0) -> "Number":
        """Stand in for noise.uniform. Choices are independent only if no number is used twice.

        But where drafts are prepared for several outcomes, of which one comes true: those may have it in common.
        """
        assert self.may_reuse or (key, counter) not in self._numbers, "one random number for two decisions"
        return self._numbers.setdefault((key, counter), Number(self))


class Number:
    """A uniform number of which no more is known than that it lies in an interval: comparing it is a choice."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        self._low, self._high = 0.0, 1.0

    def __lt__(self, ratio: float) -> bool:
        return self._decide([0.0, min(1.0, max(0.0, ratio)), 1.0]) == 0

    def select(self, weights: torch.Tensor) -> int:
        return self._decide([0.0, *(weights.cumsum(0) / weights.sum()).tolist()])

    def _decide(self, bounds: list[float]) -> int:
        """Return between which of the rising bounds it lies."""
        parts = [(max(low, self._low), min(high, self._high)) for low, high in pairwise(bounds)]
        sizes = [max(0.0, high - low) / (self._high - self._low) for low, high in parts]
        index = self._branches.choose([size if size > ROUNDING else 0.0 for size in sizes])
        self._low, self._high = parts[index]
        return index


class Mutant(NamedTuple):
    """What a test breaks."""

    make_draft: MakeDraft = DraftSession
    use: Use = as_it_is
    recover: Callable[..., int] | None = None


SOUND = Mutant()
ROUNDING, FLOAT32 = 1e-12, 1e-6


def enumerate_texts(
    pair: Pair, spec: SessionSpec, plan: Plan, mutant: Mutant = SOUND, grammars: Grammars | None = None
) -> tuple[dict[Text, float], list[Generation]]:
    """Return the law of the text of both sessions, and one generation for every branch."""
    law: defaultdict[Text, float] = defaultdict(float)
    generations, branches = [], Branches()
    branches.may_reuse = plan.ahead > 0
    with pytest.MonkeyPatch.context() as patch:
        # A branch can be taken only where a number is asked for, which is inside.
        patch.setattr(noise, "uniform", branches.number)
        patch.setattr(sampling, "sample_weights", lambda weights, number: number.select(weights))
        patch.setattr(acceptance, "sample_weights", sampling.sample_weights)
        patch.setattr(drafter, "DRAFT_SUPPORT", 2)  # the draft's own distribution is cut in every test
        if mutant.recover is not None:
            patch.setattr(acceptance, "_recover", mutant.recover)
        for _ in branches:
            make, use = mutant.make_draft, mutant.use
            (generation,) = run_all([decode(pair, spec, plan, make_draft=make, use=use, grammars=grammars)])
            law[tuple(generation.token_ids)] += branches.weight
            generations.append(generation)
    return dict(law), generations


TARGET = KnownModel(3, 11)
KNOWN = Pair(TARGET, draft=KnownModel(3, 12, mix=Mix(11, 0.6)))


def law_of_known(spec: SessionSpec) -> dict[Text, float]:
    """The target's law by definition, in float64: penalties, temperature and top-k as OpenAI and CTRL have them."""
    params = spec.sampling

    def next_law(text: Text) -> list[float]:
        scores = [float(logit) for logit in TARGET.logits([*PROMPT, *text])]
        for i in range(len(scores)):
            if i in (*PROMPT, *text):
                factor = params.repetition_penalty
                scores[i] = scores[i] / factor if scores[i] > 0 else scores[i] * factor
            scores[i] -= params.frequency_penalty * text.count(i) + params.presence_penalty * (i in text)
            scores[i] = (scores[i] + params.logit_bias.get(i, 0.0)) / params.temperature
            if i in spec.stop_token_ids and len(text) < spec.min_tokens:
                scores[i] = -torch.inf
        kth = sorted(scores, reverse=True)[params.top_k - 1] if params.top_k else min(scores)
        kept = torch.tensor([score if score >= kth else -torch.inf for score in scores], dtype=torch.float64)
        return kept.softmax(0).tolist()

    return joint_law(next_law, spec.max_tokens, spec.stop_token_ids)


def largest_error(law: dict[Text, float], expected: dict[Text, float]) -> float:
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-9)
    return max(abs(law.get(text, 0.0) - expected.get(text, 0.0)) for text in law | expected)


PENALTIES = SamplingParams(repetition_penalty=1.6, presence_penalty=0.4, frequency_penalty=-0.3)
CASES: dict[str, tuple[Plan, SessionSpec]] = {
    "long drafts": (Plan(3), make_spec(4)),
    "gate, short solo runs": (Plan(2, solo_below=0.6, max_solo_tokens=1), make_spec(4)),
    "draft confidence": (Plan(3, stop_below=0.5), make_spec(4)),
    "both": (Plan(2, stop_below=0.5, solo_below=0.4), make_spec(3)),
    "stop token": (Plan(2), make_spec(3, stop_token_ids=frozenset({2}))),
    "stop token, not yet": (Plan(3), make_spec(4, stop_token_ids=frozenset({2}), min_tokens=2)),
    "stop token, not yet, run-ahead": (Plan(1, ahead=2), make_spec(4, stop_token_ids=frozenset({2}), min_tokens=2)),
    "stop token, gate": (Plan(2, solo_below=0.5), make_spec(3, stop_token_ids=frozenset({0}))),
    "top-k": (Plan(2), make_spec(3, sampling=SamplingParams(temperature=0.7, top_k=2))),
    "penalties": (Plan(2), make_spec(3, sampling=PENALTIES)),
    "bias": (Plan(2), make_spec(3, sampling=SamplingParams(temperature=1.3, logit_bias={0: 1.0, 2: -0.5}))),
    "run-ahead": (Plan(2, ahead=2), make_spec(3)),
    "run-ahead, short drafts": (Plan(1, ahead=2), make_spec(4)),
    "run-ahead, unfinished": (Plan(2, ahead=3, ahead_steps=1), make_spec(3)),
    "run-ahead, gate": (Plan(2, solo_below=0.5, ahead=2), make_spec(3)),
    "run-ahead, draft confidence": (Plan(2, stop_below=0.5, ahead=3), make_spec(3)),
    "run-ahead, stop token": (Plan(2, ahead=3), make_spec(3, stop_token_ids=frozenset({2}))),
    "overtaken at once": (Plan(2, solo_below=ALWAYS_SOLO, overtake=0), make_spec(3)),
    "overtaken by one": (Plan(2, solo_below=ALWAYS_SOLO, overtake=1), make_spec(4)),
    "overtaken by two": (Plan(3, solo_below=0.6, overtake=2), make_spec(4)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_branch_together_is_the_targets_law(case: str) -> None:
    plan, spec = CASES[case]
    law, generations = enumerate_texts(KNOWN, spec, plan)
    assert largest_error(law, law_of_known(spec)) < FLOAT32
    assert any(generation.num_accepted for generation in generations)
    assert any(len(generation.verdicts) >= 2 for generation in generations)
    assert any(proposal.from_run_ahead for g in generations for proposal in g.proposals) == (plan.ahead > 0)
    if plan.overtake is not None:
        # A proposal that comes late: some of its first tokens are what the target said meanwhile, some are not.
        rounds = [both for generation in generations for both in pairwise(generation.verdicts)]
        was_used = {after[0].num_emitted > 0 for before, after in rounds if was_interrupted(before)}
        assert was_used == {True, plan.overtake == 0}


class DropsTheUnsureToken(DraftSession):
    """Leaves the sampled token out that the draft gave a low probability."""

    def draft(self, request: DraftRequest) -> Any:
        proposal = yield from super().draft(request)
        if proposal.draft_token_ids and _first_prob(proposal, -1) < request.stop_below:
            self.sequence.truncate(len(self.sequence) - 1)
            proposal = Proposal(proposal.draft_token_ids[:-1], proposal.draft_probs[:-1])
        return proposal


def _first_prob(proposal: Proposal, index: int = 0) -> float:
    shipped, token_id = proposal.draft_probs[index], proposal.draft_token_ids[index]
    return shipped.probs[shipped.token_ids.index(token_id)] / sum(shipped.probs)


def only_when_early(proposal: Proposal) -> Proposal:
    """Use a proposal only where it was ready in time, and the sure ones are ready sooner."""
    return proposal if proposal.draft_token_ids and _first_prob(proposal) > 0.5 else Proposal()


def from_the_plain_target(target_probs: torch.Tensor, draft_probs: torch.Tensor, seed: int, position: int) -> int:
    return acceptance.sample_target(target_probs, seed, position)


MUTANTS = {
    "plain target": (Mutant(recover=from_the_plain_target), Plan(2)),
    "drops unsure": (Mutant(make_draft=DropsTheUnsureToken), Plan(2, stop_below=0.5)),
    "only when early": (Mutant(use=only_when_early), Plan(2)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_not_exact_is_found_out(name: str) -> None:
    mutant, plan = MUTANTS[name]
    law, _ = enumerate_texts(KNOWN, make_spec(3), plan, mutant)
    assert largest_error(law, law_of_known(make_spec(3))) > 1e-3


# Under a grammar.

TEXTS = ("ab", "ba", "abb", "b")
WIDE_TARGET = KnownModel(4, 21)
WIDER = Pair(WIDE_TARGET, draft=KnownModel(4, 22, mix=Mix(21, 0.6)))
"""Of the letters' tokenizer."""


def law_under(texts: Sequence[str], spec: SessionSpec) -> dict[Text, float]:
    """The target's law among the tokens that lead to one of the texts, in float64."""

    def next_law(text: Text) -> list[float]:
        scores = WIDE_TARGET.logits([*PROMPT, *text]).double()
        scores[~torch.tensor(allowed_by_texts(texts, LETTERS, text))] = -torch.inf
        return scores.softmax(0).tolist()

    return joint_law(next_law, spec.max_tokens, spec.stop_token_ids)


def follows_no_grammar(*arguments: Any, grammar: Any) -> DraftSession:
    return DraftSession(*arguments)


GRAMMAR_CASES: dict[str, tuple[Plan, Mutant]] = {
    "drafts": (Plan(3), SOUND),
    "drafts that follow no grammar": (Plan(2), Mutant(make_draft=follows_no_grammar)),
    "gate": (Plan(2, solo_below=0.6, max_solo_tokens=1), SOUND),
    "draft confidence": (Plan(3, stop_below=0.5), SOUND),
    "run-ahead": (Plan(2, ahead=2), SOUND),
}


@pytest.mark.parametrize("case", GRAMMAR_CASES)
def test_every_branch_under_a_grammar_is_the_masked_law(case: str, tmp_path: Path) -> None:
    plan, mutant = GRAMMAR_CASES[case]
    spec = make_spec(4, grammar=choice(*TEXTS), stop_token_ids=frozenset({END}))
    law, generations = enumerate_texts(WIDER, spec, plan, mutant, letter_grammars(tmp_path))
    expected = law_under(TEXTS, spec)
    assert largest_error(law, expected) < FLOAT32
    assert {tuple(one.token_ids) for one in generations} == set(expected)
    assert any(generation.num_accepted for generation in generations)


def test_a_draft_under_a_grammar_agrees_more_often(tmp_path: Path) -> None:
    spec, grammars = make_spec(4, grammar=choice(*TEXTS), stop_token_ids=frozenset({END})), letter_grammars(tmp_path)
    specs = [replace(spec, seed=seed) for seed in range(100)]

    def num_accepted(make: MakeDraft) -> int:
        runs = run_all([decode(WIDER, one, Plan(2), make_draft=make, grammars=grammars) for one in specs])
        return sum(run.num_accepted for run in runs)

    assert num_accepted(DraftSession) > 1.2 * num_accepted(follows_no_grammar) > 0
