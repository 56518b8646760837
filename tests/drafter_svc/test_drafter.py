"""A drafting session: it follows the target, drafts from the right keys, and ships what it sampled from."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch

from drafter_svc.drafter import DRAFT_SUPPORT, DraftSession
from specgate.errors import InvalidArgument, KVCacheFull, OutOfSync
from specgate.runtime import noise, sampling
from specgate.runtime.engine.model_runner import ModelRunner
from specgate.runtime.kv_pages import PagePool
from specgate.runtime.noise import Purpose
from specgate.runtime.sampling_step import SamplingStep
from specgate.runtime.scheduler import Rows
from specgate.types import DraftRequest, Proposal, SamplingParams, Verification
from tests.support.choices import by_the_rule
from tests.support.models import KnownModel, Mix, eager_logits, eager_model, make_runner, run_all, run_task, write_model
from tests.support.sessions import PROMPT, VOCAB_SIZE, Ids, Pair, Plan, decode, greedy_path, known_model, make_spec

MODEL = known_model()
PATH = greedy_path(MODEL, 4)


class Client:
    """Sends rounds to a session, in step with it."""

    def __init__(self, model: KnownModel = MODEL, **fields: Any) -> None:
        self.model, self.round = model, -1
        limit = fields.pop("context_length", model.loaded.context_length)
        last = fields.pop("last", 1000)
        self.session = DraftSession(make_spec(**fields).last(last), model.pool, model.vocab_size, limit)
        run_task(model, self.session.warm())

    def send(self, committed: Ids = (), gamma: int = 0, **others: Any) -> Proposal:
        self.round += 1
        position = self.session.spec.first_position + self.session.num_committed
        fields = {"round": self.round, "position": position, "stop_below": 0.0, **others}
        return run_task(self.model, self.session.draft(DraftRequest(token_ids=committed, gamma=gamma, **fields)))


def test_it_drafts_what_the_model_says() -> None:
    assert Client().send(gamma=4) == Proposal(PATH)


def test_it_goes_on_behind_what_was_committed() -> None:
    """Nothing was accepted, some, all, or cut at a cached token; or more solo tokens than were ever drafted."""
    for committed in ((13,), (*PATH[:2], 13), (*PATH, 13), PATH[:2], tuple(range(4, 13))):
        client = Client()
        client.send(gamma=4)
        assert client.send(committed, 3).draft_token_ids == greedy_path(MODEL, 3, (*PROMPT, *committed))
        assert client.session.num_committed == len(PROMPT) + len(committed)


def test_gamma_zero_keeps_the_cache_warm() -> None:
    client = Client()
    for token_ids in ((), (4,), (5, 6)):
        assert client.send(token_ids) == Proposal()
        assert client.session.sequence.num_cached == len(client.session.sequence) - 1
    assert client.send((7,), 2).draft_token_ids == greedy_path(MODEL, 2, (*PROMPT, 4, 5, 6, 7))


def test_drafting_again_from_the_same_place_is_the_same_draft() -> None:
    """Nothing was committed: the round before was cut short by a solo run."""
    client = Client()
    client.send((4,))
    assert client.send((), 3) == client.send((), 3) == client.send((), 3)


# Staying in step.


def test_a_round_from_another_length_is_out_of_sync() -> None:
    client = Client()
    client.send(gamma=2)
    for number, off_by in enumerate((-2, -1, 1, 7), 1):
        with pytest.raises(OutOfSync, match=f"the round starts at {3 + off_by}, the session is at 3"):
            client.send((4,), 2, position=3 + off_by, round=number)


def test_a_number_drafts_once() -> None:
    """It keys the draft's randomness: two drafts of one number would not be independent."""
    client = Client()
    client.send(gamma=2, round=5)
    for number in (5, 4):
        with pytest.raises(OutOfSync, match=f"round {number} comes after round 5"):
            client.send(gamma=2, round=number)
    client.send((4,), 0, round=5)  # keeping warm draws nothing
    client.send((5,), 1, round=6)


# The ends of a draft.


def test_a_stop_token_is_the_last_of_its_draft_and_stays_in_it() -> None:
    client = Client(stop_token_ids=frozenset({PATH[2]}))
    assert client.send(gamma=5).draft_token_ids == PATH[:3]


@pytest.mark.parametrize("verification", Verification)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_unsure_token_is_the_last_of_its_draft_and_stays_in_it(
    verification: Verification, temperature: float
) -> None:
    lengths = set()
    for seed in range(40):
        first = seed % VOCAB_SIZE
        client = Client(seed=seed, sampling=SamplingParams(temperature=temperature), verification=verification)
        proposal = client.send((first,), 6, stop_below=0.4)
        drafted = proposal.draft_token_ids
        laws = [MODEL.logits((*PROMPT, first, *drafted[:i])).softmax(0) for i in range(len(drafted))]
        probs = [float(law[token_id]) for law, token_id in zip(laws, drafted, strict=True)]
        assert all(p >= 0.4 for p in probs[:-1])
        assert len(drafted) == 6 or probs[-1] < 0.4
        assert proposal.draft_confidences == pytest.approx(probs)
        assert client.send(drafted, 2).draft_confidences == ()
        lengths.add(len(drafted))
    assert len(lengths) > 2


def test_a_draft_ends_with_the_draft_models_context_and_with_the_request() -> None:
    client = Client(context_length=6)
    assert client.send(gamma=5).draft_token_ids == PATH[:3]
    assert client.send(PATH[:3], 5) == Proposal()
    # Past its context it still hears what is committed, and has nothing to say.
    assert client.send((4, 5, 6, 7)) == Proposal()
    assert client.send((8,), 5) == Proposal()
    assert client.session.num_committed == 11
    assert client.session.sequence.num_cached <= 6
    client = Client(max_tokens=4)
    assert client.send(gamma=9).draft_token_ids == PATH
    assert len(client.send((4, 5, 6), 9).draft_token_ids) == 1


@pytest.mark.parametrize("verification", Verification)
@pytest.mark.parametrize("last", [4, 1])
def test_the_end_of_a_text_alone_is_drafted_from_as_at_its_place_in_the_text(
    verification: Verification, last: int
) -> None:
    """The noise is of the place: the same noise at two places would bias a text."""

    class OfOneToken(KnownModel):
        def logits(self, prefix: Sequence[int]) -> torch.Tensor:
            return super().logits(prefix[-1:])

    given: dict[str, Any] = {
        "output_token_ids": (9, 4), "min_tokens": 6, "stop_token_ids": frozenset(range(3, 9)),
        "sampling": SamplingParams(), "verification": verification,
    }  # fmt: skip
    whole, end = (Client(OfOneToken(VOCAB_SIZE, seed=3), last=n, **given) for n in (1000, last))
    for committed in ((), (5, 6), (7,)):
        assert end.send(committed, 5) == whole.send(committed, 5)
    assert end.session.num_committed == last + 3


# Vocabularies.


def test_ids_that_the_draft_lacks_are_read_as_zero() -> None:
    client = Client(prompt_token_ids=(1, 99, 3), vocab_size=100)
    assert client.send(gamma=2).draft_token_ids == greedy_path(MODEL, 2, (1, 0, 3))
    assert client.send((50, 4), 2).draft_token_ids == greedy_path(MODEL, 2, (1, 0, 3, 0, 4))
    # Penalties pass over them.
    penalty = SamplingParams(temperature=0.0, repetition_penalty=1.4)
    client = Client(sampling=penalty, prompt_token_ids=(1, 99, 3), vocab_size=100)
    assert len(client.send((98,), 4).draft_token_ids) == 4


@pytest.mark.parametrize("verification", Verification)
def test_it_proposes_only_ids_that_the_target_has(verification: Verification) -> None:
    wide = KnownModel(VOCAB_SIZE, seed=3)
    for seed in range(20):
        client = Client(wide, vocab_size=5, seed=seed, sampling=SamplingParams(), verification=verification)
        proposal = client.send(gamma=4)
        assert max(proposal.draft_token_ids) < 5
        assert all(max(shipped.token_ids) < 5 for shipped in proposal.draft_probs)
    greedy = Client(wide, vocab_size=5).send(gamma=1).draft_token_ids
    assert greedy == (int(wide.logits(PROMPT)[:5].argmax()),)


def test_a_bias_for_an_id_that_the_draft_lacks_is_left_out() -> None:
    bias = {5: 50.0, VOCAB_SIZE: 60.0, 70_000: 70.0}
    client = Client(sampling=SamplingParams(temperature=0.0, logit_bias=bias), vocab_size=100_000)
    assert client.send(gamma=3).draft_token_ids == (5, 5, 5)


def test_penalties_look_at_the_drafts_own_prefix() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=1.0, frequency_penalty=0.7)
    client = Client(sampling=params)
    drafted = client.send((4, 4), 6).draft_token_ids
    for i, token_id in enumerate(drafted):
        output = [4, 4, *drafted[:i]]
        logits = MODEL.logits((*PROMPT, *output))[None]
        adjusted = sampling.adjust(logits, params, sampling.token_counts(PROMPT, output, (), logits))
        assert token_id == int(adjusted.argmax())
    assert drafted != greedy_path(MODEL, 6, (*PROMPT, 4, 4))


# What is shipped.


def rejecting(model: KnownModel = MODEL, **fields: Any) -> Client:
    return Client(model, sampling=SamplingParams(), verification=Verification.REJECTION, **fields)


def test_the_distribution_is_the_one_that_was_sampled() -> None:
    """Its top 64, from the very float32 numbers that go out, by the number that the round and position key."""
    model = KnownModel(200, seed=3)
    for seed in range(10):
        client = rejecting(model, seed=seed)
        client.round = 6
        proposal = client.send((4,), 3)
        assert len(proposal.draft_probs) == len(proposal) == 3
        for i, (token_id, shipped) in enumerate(zip(proposal.draft_token_ids, proposal.draft_probs, strict=True)):
            prefix = (*PROMPT, 4, *proposal.draft_token_ids[:i])
            expected = model.logits(prefix).softmax(0).topk(DRAFT_SUPPORT)
            assert list(shipped.token_ids) == expected.indices.tolist()
            assert list(shipped.probs) == pytest.approx(expected.values.tolist(), rel=1e-5)
            assert [float(torch.tensor(p, dtype=torch.float32)) for p in shipped.probs] == list(shipped.probs)
            number = noise.uniform(noise.row_key(seed, len(prefix), Purpose.DRAFT, 7))
            index = bisect_right(list(accumulate(shipped.probs)), number * sum(shipped.probs))
            assert token_id == shipped.token_ids[index]


def test_filters_are_part_of_the_distribution() -> None:
    client = Client(sampling=SamplingParams(top_k=3), verification=Verification.REJECTION)
    for shipped in client.send(gamma=4).draft_probs:
        assert len(shipped.token_ids) <= 3
        assert min(shipped.probs) > 0
        assert sum(shipped.probs) == pytest.approx(1.0, abs=1e-6)


def test_only_rejection_ships_distributions() -> None:
    for fields in ({"sampling": SamplingParams()}, {}, {"verification": Verification.REJECTION}):
        assert Client(**fields).send(gamma=3).draft_probs == ()


def test_shared_noise_is_the_targets_own_noise() -> None:
    """A draft with the target's logits names the target's choice, whatever the round."""
    params = SamplingParams(temperature=0.9, top_k=8)
    drafted = Client(sampling=params, seed=77).send(gamma=5, round=4).draft_token_ids
    for i, token_id in enumerate(drafted):
        logits = MODEL.logits((*PROMPT, *drafted[:i]))[None]
        assert [token_id] == by_the_rule(logits, SamplingStep(params, 77, len(PROMPT) + i, VOCAB_SIZE)).token_ids


# Opening.


def test_pages_are_promised_up_to_the_context_and_given_back_once() -> None:
    with pytest.raises(InvalidArgument, match=r"^prompt_token_ids: 3 tokens, the draft model takes 2$"):
        DraftSession(make_spec(), PagePool(4, 16), VOCAB_SIZE, 2)
    pool = PagePool(3, 16)
    session = DraftSession(make_spec(max_tokens=500), pool, VOCAB_SIZE, 40)
    assert pool.extend(session.sequence, 40)
    with pytest.raises(KVCacheFull):
        DraftSession(make_spec(), pool, VOCAB_SIZE, 40)
    with pytest.raises(InvalidArgument, match="needs 49 KV tokens, the limit is 48"):
        DraftSession(make_spec(max_tokens=500), pool, VOCAB_SIZE, 49)
    session.free()
    session.free()
    assert pool.num_free == 3
    pool.check_integrity()


def test_warming_leaves_the_last_token_for_the_first_draft() -> None:
    for length in (1, 2, 9, 31):
        session = DraftSession(make_spec(prompt_token_ids=tuple(range(length))), MODEL.pool, 64, 64)
        assert run_task(MODEL, session.warm()) == Proposal()
        assert session.sequence.num_cached == length - 1


# Keys: with a real model, whatever happened to the cache before.


class Witness:
    """A runner that remembers after which tokens it gave which logits."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.vocab_size, self.pool, self.loaded = runner.vocab_size, runner.pool, runner.loaded
        self.seen: list[tuple[Ids, torch.Tensor]] = []

    def forward(self, batch: list[Rows]) -> list[torch.Tensor]:
        logits = self._runner.forward(batch)
        for (sequence, _, num_logits), rows in zip(batch, logits, strict=True):
            for back in range(num_logits):
                ids = tuple(sequence.token_ids[: sequence.num_cached - back])
                self.seen.append((ids, rows[num_logits - 1 - back]))
        return logits

    def largest_error(self, folder: Path) -> float:
        """Return how far any of the logits is from what a fresh eager forward gives."""
        by_length: dict[int, list[tuple[Ids, torch.Tensor]]] = {}
        for ids, row in self.seen:
            by_length.setdefault(len(ids), []).append((ids, row))
        model, errors = eager_model(folder), []
        for same in by_length.values():
            fresh = eager_logits(model, [ids for ids, _ in same])[:, -1]
            errors.append(float((fresh - torch.stack([row for _, row in same])).abs().max()))
        return max(errors)


PLANS = {
    "the target itself": (0.0, Plan(7)),
    "short": (0.9, Plan(3)),
    "long": (0.9, Plan(7)),
    "gate": (0.9, Plan(4, solo_below=0.15)),
    "draft confidence": (0.9, Plan(6, stop_below=0.1)),
    "overtaken": (0.9, Plan(5, solo_below=0.2, max_solo_tokens=3, overtake=1)),
    "overtaken by the target itself": (0.0, Plan(5, solo_below=0.2, max_solo_tokens=3, overtake=1)),
}
"""How near the draft is to the target (0: the same model), and what is asked for."""


@pytest.mark.parametrize("name", PLANS)
def test_logits_after_every_round_are_those_of_a_fresh_prefill(name: str, tmp_path: Path) -> None:
    """Above all after full acceptance, when the last draft token has never been through the draft model."""
    (share, plan), window = PLANS[name], {"sliding_window": 8}
    write_model(tmp_path / "target", "mistral", seed=1, **window)
    write_model(tmp_path / "draft", "mistral", seed=2 if share else 1, mix=Mix(1, share) if share else None, **window)
    target, draft = (Witness(make_runner(tmp_path / name, 1024, page_size=16)) for name in ("target", "draft"))
    specs = [make_spec(sampling=SamplingParams(temperature=0.7), max_tokens=30, seed=seed) for seed in range(4)]
    generations = run_all([decode(Pair(target, draft), spec, plan) for spec in specs])
    drafted = sum(len(proposal) for generation in generations for proposal in generation.proposals)
    accepted = sum(generation.num_accepted for generation in generations)
    assert accepted > 0
    if name in ("the target itself", "short", "long"):
        assert (accepted == drafted) == (not share)
    assert len(draft.seen) >= drafted
    assert target.largest_error(tmp_path / "target") < 1e-3
    assert draft.largest_error(tmp_path / "draft") < 1e-3
