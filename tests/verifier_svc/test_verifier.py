"""A verifying session: what it commits, where it stops, what it refuses, and what it says about each token."""

from typing import Any

import pytest
import torch

from specgate.errors import InvalidArgument, KVCacheFull, OutOfSync
from specgate.runtime.kv_pages import PagePool
from specgate.types import (
    ALWAYS_SOLO,
    FinishReason,
    Proposal,
    SamplingParams,
    SessionSpec,
    SparseDistribution,
    Verdict,
    Verification,
    VerifyRequest,
)
from tests.support.models import KnownModel, run_task
from tests.support.sessions import GREEDY, PROMPT, VOCAB_SIZE, Ids, greedy_path, known_model, make_spec
from verifier_svc.verifier import VerifySession


@pytest.fixture
def model() -> KnownModel:
    return known_model()


def open_session(model: KnownModel, **fields: Any) -> VerifySession:
    session = VerifySession(make_spec(**fields), model.pool, VOCAB_SIZE, model.loaded.context_length)
    run_task(model, session.prefill())
    return session


class Client:
    """Sends rounds to a session, and remembers how far it is."""

    def __init__(self, model: KnownModel, session: VerifySession) -> None:
        self.model, self.session = model, session
        self.round = -1

    def send(
        self, draft: Ids = (), *, position: int | None = None, round_index: int | None = None, **gate: Any
    ) -> list[Verdict]:
        self.round = self.round + 1 if round_index is None else round_index
        position = len(self.session.sequence) if position is None else position
        verdicts: list[Verdict] = []
        request = VerifyRequest(self.round, position, Proposal(draft), **gate)
        self.session.resume()
        run_task(self.model, self.session.verify(request, verdicts.append))
        return verdicts

    def send_one(self, draft: Ids = (), **others: Any) -> Verdict:
        (verdict,) = self.send(draft, **others)
        return verdict


def confidence_of(model: KnownModel, path: Ids) -> float:
    """The target's raw probability of the last token of a path."""
    return float(model.logits((*PROMPT, *path[:-1])).softmax(0)[path[-1]])


def other_than(token_id: int) -> int:
    return (token_id + 1) % VOCAB_SIZE


@pytest.mark.parametrize("num_right", [0, 1, 2, 4])
def test_a_round_commits_what_agrees_and_the_targets_own_token(num_right: int, model: KnownModel) -> None:
    path = greedy_path(model, 5)
    wrong = (*path[:num_right], other_than(path[num_right]), 0, 0)[:4] if num_right < 4 else path[:4]
    session = open_session(model)
    verdict = Client(model, session).send_one(wrong)
    assert (verdict.num_accepted, verdict.token_id) == (num_right, path[num_right])
    assert (verdict.solo, verdict.last, verdict.finish_reason) == (False, True, None)
    expected = [confidence_of(model, path[: index + 1]) for index in range(num_right)]
    assert verdict.accepted_confidences == pytest.approx(expected, rel=1e-5)
    assert verdict.confidence == pytest.approx(confidence_of(model, path[: num_right + 1]), rel=1e-5)
    assert session.sequence.token_ids == [*PROMPT, *path[: num_right + 1]]
    assert session.sequence.num_cached == len(PROMPT) + num_right
    assert session.num_remaining == 20 - num_right - 1


def test_rounds_follow_each_other(model: KnownModel) -> None:
    path = greedy_path(model, 9)
    client = Client(model, open_session(model))
    assert client.send_one(path[:2]).num_emitted == 3
    assert client.send_one((path[3], other_than(path[4]))).num_emitted == 2
    assert client.send_one().token_id == path[5]
    assert client.send_one(path[6:8]).token_id == path[8]


# Staying in step.


@pytest.mark.parametrize("off_by", [-3, -1, 1, 5])
def test_a_round_from_another_length_is_out_of_sync(off_by: int, model: KnownModel) -> None:
    client = Client(model, open_session(model))
    client.send(greedy_path(model, 2))
    length = len(client.session.sequence)
    with pytest.raises(
        OutOfSync, match=f"round 1 starts at {length + off_by}, the session is at {length} after round 0"
    ):
        client.send(position=length + off_by)
    assert len(client.session.sequence) == length


@pytest.mark.parametrize("again", [4, 3, 0])
def test_a_round_that_was_there_before_is_out_of_sync(again: int, model: KnownModel) -> None:
    client = Client(model, open_session(model))
    client.send(round_index=4)
    with pytest.raises(OutOfSync, match=f"round {again} starts at"):
        client.send(round_index=again)
    client.send(round_index=9)


def test_a_session_that_resumes_starts_behind_what_was_emitted(model: KnownModel) -> None:
    path = greedy_path(model, 5)
    session = open_session(model, output_token_ids=path[:3], max_tokens=5)
    with pytest.raises(OutOfSync):
        Client(model, session).send(position=len(PROMPT))
    client = Client(model, session)
    assert client.send_one(position=len(PROMPT) + 3).token_id == path[3]
    assert client.send_one().finish_reason is FinishReason.LENGTH


# Limits and ends.


def test_no_more_draft_tokens_than_may_be_emitted(model: KnownModel) -> None:
    path = greedy_path(model, 4)
    client = Client(model, open_session(model, max_tokens=4))
    with pytest.raises(InvalidArgument, match=r"proposal.draft_token_ids \(length\): 4 is outside \[0, 3\]"):
        client.send((*path[:3], 0))
    client = Client(model, open_session(model, max_tokens=4))
    verdict = client.send_one(path[:3])
    assert (verdict.num_accepted, verdict.token_id) == (3, path[3])
    assert verdict.finish_reason is FinishReason.LENGTH


def test_a_session_that_has_ended_takes_no_round(model: KnownModel) -> None:
    client = Client(model, open_session(model, max_tokens=1))
    assert client.send_one().finish_reason is FinishReason.LENGTH
    with pytest.raises(InvalidArgument, match="round: the session has ended"):
        client.send()


def test_a_session_with_nothing_left_to_emit_takes_no_round(model: KnownModel) -> None:
    client = Client(model, open_session(model, output_token_ids=(4, 5), max_tokens=2))
    with pytest.raises(InvalidArgument, match=r"^proposal\.draft_token_ids "):
        client.send()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_stop_token_inside_the_accepted_run_ends_it_there(index: int, model: KnownModel) -> None:
    path = greedy_path(model, 5)
    first = path.index(path[index])
    session = open_session(model, stop_token_ids=frozenset({path[index], 99}), logprobs=1)
    verdict = Client(model, session).send_one(path[:4])
    assert (verdict.num_accepted, verdict.token_id) == (first + 1, None)
    assert verdict.finish_reason is FinishReason.STOP
    assert verdict.last
    assert verdict.confidence == pytest.approx(confidence_of(model, path[: first + 1]), rel=1e-5)
    assert len(verdict.logprobs) == verdict.num_emitted == first + 1


def test_a_stop_token_behind_the_first_difference_ends_nothing(model: KnownModel) -> None:
    path = greedy_path(model, 2)
    stop = other_than(path[1])
    verdict = Client(model, open_session(model, stop_token_ids=frozenset({stop}))).send_one((path[0], stop, stop))
    assert (verdict.num_accepted, verdict.token_id, verdict.finish_reason) == (1, path[1], None)


@pytest.mark.parametrize("num_right", [0, 2])
def test_a_stop_token_of_the_target_itself_is_its_last(num_right: int, model: KnownModel) -> None:
    path = greedy_path(model, 3)
    assert len(set(path)) == 3
    session = open_session(model, stop_token_ids=frozenset({path[num_right]}))
    verdict = Client(model, session).send_one(path[:num_right])
    assert (verdict.num_accepted, verdict.token_id) == (num_right, path[num_right])
    assert verdict.finish_reason is FinishReason.STOP


def test_stop_comes_before_length(model: KnownModel) -> None:
    path = greedy_path(model, 3)
    session = open_session(model, stop_token_ids=frozenset({path[2]}), max_tokens=3)
    assert Client(model, session).send_one(path[:2]).finish_reason is FinishReason.STOP


# Solo runs.


def solo_path(model: KnownModel, threshold: float) -> int:
    """Return how many tokens come before one that the target is sure of."""
    path = greedy_path(model, 20)
    return next(i for i in range(20) if confidence_of(model, path[: i + 1]) >= threshold)


def test_the_target_goes_on_alone_while_it_is_unsure(model: KnownModel) -> None:
    path = greedy_path(model, 20)
    threshold = max(confidence_of(model, path[: i + 1]) for i in range(4)) + 1e-6
    unsure = solo_path(model, threshold)
    assert unsure >= 4
    verdicts = Client(model, open_session(model)).send(solo_below=threshold, max_solo_tokens=100)
    assert [verdict.token_id for verdict in verdicts] == list(path[: unsure + 1])
    assert [verdict.solo for verdict in verdicts] == [False, *[True] * unsure]
    assert [verdict.last for verdict in verdicts] == [*[False] * unsure, True]
    assert verdicts[-1].confidence >= threshold > max(verdict.confidence for verdict in verdicts[:-1])
    assert {verdict.round for verdict in verdicts} == {0}


@pytest.mark.parametrize("max_solo_tokens", [0, 1, 3])
def test_a_solo_run_is_no_longer_than_asked_for(max_solo_tokens: int, model: KnownModel) -> None:
    client = Client(model, open_session(model))
    verdicts = client.send(solo_below=ALWAYS_SOLO, max_solo_tokens=max_solo_tokens)
    assert len(verdicts) == 1 + max_solo_tokens
    assert verdicts[-1].last
    assert client.send_one().token_id == greedy_path(model, max_solo_tokens + 2)[-1]


def test_a_sure_first_token_starts_no_solo_run(model: KnownModel) -> None:
    assert len(Client(model, open_session(model)).send(solo_below=1e-6, max_solo_tokens=9)) == 1


def test_a_solo_run_ends_at_max_tokens_and_at_a_stop_token(model: KnownModel) -> None:
    path = greedy_path(model, 8)
    verdicts = Client(model, open_session(model, max_tokens=5)).send(solo_below=ALWAYS_SOLO, max_solo_tokens=100)
    assert [verdict.finish_reason for verdict in verdicts] == [None] * 4 + [FinishReason.LENGTH]
    assert verdicts[-1].last
    stop = path[4]
    session = open_session(model, stop_token_ids=frozenset({stop}))
    verdicts = Client(model, session).send(solo_below=ALWAYS_SOLO, max_solo_tokens=100)
    assert len(verdicts) == path.index(stop) + 1
    assert verdicts[-1].finish_reason is FinishReason.STOP
    assert (verdicts[-1].num_accepted, verdicts[-1].token_id) == (0, stop)


class Interrupted:
    """A session whose solo run was cut after some tokens, by a client that had seen one of them."""

    def __init__(self, model: KnownModel, solo_tokens: int, **fields: Any) -> None:
        self.path = greedy_path(model, 12)
        self.session = open_session(model, **fields)
        self.client = Client(model, self.session)
        verdicts: list[Verdict] = []

        def emit(verdict: Verdict) -> None:
            verdicts.append(verdict)
            if len(verdicts) == 1 + solo_tokens:
                self.session.interrupt()

        request = VerifyRequest(0, len(PROMPT), Proposal(), ALWAYS_SOLO, 100)
        run_task(model, self.session.verify(request, emit))
        self.client.round = 0
        self.verdicts = verdicts

    def send(self, draft: Ids, **others: Any) -> list[Verdict]:
        return self.client.send(draft, position=len(PROMPT) + 1, **others)


def test_an_interrupted_solo_run_ends_at_its_next_forward(model: KnownModel) -> None:
    cut = Interrupted(model, 3)
    assert [verdict.token_id for verdict in cut.verdicts] == [*cut.path[:4], None]
    assert [verdict.last for verdict in cut.verdicts] == [False] * 4 + [True]
    assert cut.verdicts[-1] == Verdict(0)
    assert cut.client.send_one(cut.path[4:6]).num_accepted == 2


def test_a_late_proposal_that_names_the_solo_tokens_is_verified_from_there(model: KnownModel) -> None:
    cut = Interrupted(model, 3)
    (verdict,) = cut.send((*cut.path[1:6], other_than(cut.path[6])))
    assert (verdict.num_accepted, verdict.token_id, verdict.solo) == (2, cut.path[6], False)
    assert cut.session.sequence.token_ids == [*PROMPT, *cut.path[:7]]


def test_a_late_proposal_that_is_used_up_gives_a_bonus_token(model: KnownModel) -> None:
    cut = Interrupted(model, 3)
    (verdict,) = cut.send(cut.path[1:4])
    assert (verdict.num_accepted, verdict.token_id) == (0, cut.path[4])


@pytest.mark.parametrize("wrong_at", [0, 2])
def test_a_late_proposal_that_differs_gets_an_empty_verdict(wrong_at: int, model: KnownModel) -> None:
    cut = Interrupted(model, 3)
    draft = list(cut.path[1:7])
    draft[wrong_at] = other_than(draft[wrong_at])
    (verdict,) = cut.send(tuple(draft), solo_below=ALWAYS_SOLO, max_solo_tokens=9)
    assert verdict == Verdict(1)
    assert cut.session.sequence.token_ids == [*PROMPT, *cut.path[:4]]
    assert cut.client.send_one(cut.path[4:6]).num_accepted == 2


@pytest.mark.parametrize("length", [0, 1, 2])
def test_a_late_proposal_shorter_than_the_solo_run_gets_an_empty_verdict(length: int, model: KnownModel) -> None:
    cut = Interrupted(model, 3)
    assert cut.send(cut.path[1 : 1 + length]) == [Verdict(1)]


def test_a_late_proposal_may_start_at_any_token_of_the_solo_run(model: KnownModel) -> None:
    for seen in (1, 2, 3, 4):
        cut = Interrupted(model, 3)
        (verdict,) = cut.client.send(cut.path[seen:6], position=len(PROMPT) + seen)
        assert (verdict.num_accepted, verdict.token_id) == (2, cut.path[6])


def test_a_late_proposal_may_not_start_before_the_solo_run(model: KnownModel) -> None:
    with pytest.raises(OutOfSync):
        Interrupted(model, 3).client.send((), position=len(PROMPT))


def test_what_was_seen_before_the_last_round_cannot_be_drafted_from_again(model: KnownModel) -> None:
    """After a round that answered, a solo run before it is history."""
    cut = Interrupted(model, 3)
    cut.client.send(cut.path[4:6])
    with pytest.raises(OutOfSync):
        cut.client.send(cut.path[1:6], position=len(PROMPT) + 1)


def test_an_interruption_before_the_round_runs_is_not_lost(model: KnownModel) -> None:
    """The next message may come while the round still waits for its turn on the engine."""
    session = open_session(model)
    verdicts: list[Verdict] = []
    task = session.verify(VerifyRequest(0, len(PROMPT), Proposal(), ALWAYS_SOLO, 3), verdicts.append)
    session.interrupt()
    run_task(model, task)
    assert [verdict.num_emitted for verdict in verdicts] == [1, 0]
    assert len(Client(model, session).send(round_index=1, solo_below=ALWAYS_SOLO, max_solo_tokens=3)) == 4


def test_an_interruption_does_not_cut_a_round_that_ends_by_itself(model: KnownModel) -> None:
    session = open_session(model)
    session.interrupt()
    verdicts: list[Verdict] = []
    run_task(model, session.verify(VerifyRequest(0, len(PROMPT), Proposal()), verdicts.append))
    assert [verdict.last for verdict in verdicts] == [True]


def test_the_limit_holds_for_what_is_left_of_a_late_proposal(model: KnownModel) -> None:
    cut = Interrupted(model, 3, max_tokens=6)
    with pytest.raises(InvalidArgument, match=r"proposal.draft_token_ids \(length\): 2 is outside \[0, 1\]"):
        cut.send(cut.path[1:6])
    cut = Interrupted(model, 3, max_tokens=6)
    (verdict,) = cut.send(cut.path[1:5])
    assert (verdict.num_emitted, verdict.finish_reason) == (2, FinishReason.LENGTH)


# What a verdict says of its tokens.


def test_logprobs_are_raw_and_one_for_each_token(model: KnownModel) -> None:
    """Not of the sampled law: of the model, at temperature 1 and without filters."""
    sampling = SamplingParams(temperature=0.0, logit_bias={7: 100.0}, repetition_penalty=2.0)
    session = open_session(model, sampling=sampling, logprobs=3)
    verdict = Client(model, session).send_one((7, 7, 7))
    emitted = [7] * verdict.num_accepted + [verdict.token_id]
    assert verdict.num_accepted == 3
    assert len(verdict.logprobs) == 4
    for i, (token_id, said) in enumerate(zip(emitted, verdict.logprobs, strict=True)):
        raw = model.logits((*PROMPT, *emitted[:i])).log_softmax(0)
        best = raw.topk(3)
        assert said.logprob == pytest.approx(float(raw[token_id]), rel=1e-5)
        assert [token for token, _ in said.top] == best.indices.tolist()
        assert [value for _, value in said.top] == pytest.approx(best.values.tolist(), rel=1e-5)
    assert verdict.confidence == pytest.approx(float(raw[7].exp()), rel=1e-5)


def test_logprobs_of_no_alternatives_and_no_logprobs_at_all(model: KnownModel) -> None:
    path = greedy_path(model, 2)
    (said,) = Client(model, open_session(model, logprobs=0)).send_one((other_than(path[0]),)).logprobs
    assert said.top == ()
    assert Client(model, open_session(model)).send_one(path[:1]).logprobs == ()
    (said,) = Client(model, open_session(model, logprobs=20)).send_one().logprobs
    assert len(said.top) == VOCAB_SIZE


def test_near_ties_are_counted_up_to_the_last_choice_that_matters(model: KnownModel) -> None:
    path = greedy_path(model, 4)
    for i in (0, 2, 3):
        row = model.logits((*PROMPT, *path[:i]))
        row[other_than(path[i])] = row[path[i]] - 5e-5
    assert Client(model, open_session(model)).send_one(path[:3]).near_ties == 3
    assert Client(model, open_session(model)).send_one((path[0], other_than(path[1]), 0)).near_ties == 1
    rejection = open_session(model, sampling=SamplingParams(), verification=Verification.REJECTION)
    assert Client(model, rejection).send_one().near_ties == 0


def test_penalties_look_at_each_positions_own_prefix(model: KnownModel) -> None:
    """A run of accepted tokens is the text that one token at a time would be."""
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=1.0, frequency_penalty=0.7)
    one_by_one = Client(model, open_session(model, sampling=sampling))
    path = tuple(one_by_one.send_one().token_id for _ in range(9))
    plain = greedy_path(model, 9)
    assert path != plain
    at_once = Client(model, open_session(model, sampling=sampling)).send_one(path[:8])
    assert (at_once.num_accepted, at_once.token_id) == (8, path[8])
    assert Client(model, open_session(model, sampling=sampling)).send_one(plain[:8]).num_accepted < 8


# Rejection.


def test_a_proposal_without_its_distributions_is_refused_in_rejection_mode(model: KnownModel) -> None:
    session = open_session(model, sampling=SamplingParams(), verification=Verification.REJECTION)
    with pytest.raises(
        InvalidArgument, match=r"proposal.draft_probs \(length\): 0; rejection needs one a draft token: 2"
    ):
        Client(model, session).send((4, 5))


def test_greedy_needs_no_distributions_in_rejection_mode(model: KnownModel) -> None:
    path = greedy_path(model, 3)
    session = open_session(model, verification=Verification.REJECTION)
    assert Client(model, session).send_one(path[:2]).num_accepted == 2


def test_rejection_keeps_the_distributions_of_what_is_left(model: KnownModel) -> None:
    """A late proposal loses its first tokens and their distributions together."""
    session = open_session(model, sampling=SamplingParams(), verification=Verification.REJECTION)
    verdicts: list[Verdict] = []

    def emit(verdict: Verdict) -> None:
        verdicts.append(verdict)
        if len(verdicts) == 3:
            session.interrupt()

    run_task(model, session.verify(VerifyRequest(0, 3, Proposal(), ALWAYS_SOLO, 100), emit))
    emitted = tuple(verdict.token_id or 0 for verdict in verdicts[:3])
    session.resume()
    likely = int(model.logits((*PROMPT, *emitted)).argmax())
    draft = (*emitted[1:], likely)
    # A weight that the target surpasses is accepted whatever the random number.
    probs = tuple(SparseDistribution((token_id, other_than(token_id)), (1e-6, 1.0)) for token_id in draft)
    request = VerifyRequest(1, 4, Proposal(draft, probs))
    run_task(model, session.verify(request, verdicts.append))
    assert verdicts[-1].num_accepted == 1
    assert session.sequence.token_ids[:-1] == [*PROMPT, *emitted, likely]


# Opening.


def test_a_session_longer_than_the_context_is_refused() -> None:
    spec = SessionSpec(PROMPT, GREEDY, 1, Verification.SHARED_NOISE, 30)
    pool = PagePool(4, 16)
    with pytest.raises(InvalidArgument, match=r"^max_tokens: 3 prompt tokens plus 30 pass the context length of 32$"):
        VerifySession(spec, pool, VOCAB_SIZE, 32)
    assert pool.num_free == 4
    VerifySession(spec, pool, VOCAB_SIZE, 33)


def test_pages_are_given_back_once() -> None:
    spec = SessionSpec(PROMPT, GREEDY, 1, Verification.SHARED_NOISE, 30)
    pool = PagePool(3, 16)
    session = VerifySession(spec, pool, VOCAB_SIZE, 64)
    assert pool.extend(session.sequence, 40)
    with pytest.raises(KVCacheFull):
        VerifySession(spec, pool, VOCAB_SIZE, 64)
    session.free()
    session.free()
    assert pool.num_free == 3
    pool.check_integrity()


def test_a_session_longer_than_all_pages_is_refused_for_good() -> None:
    spec = SessionSpec(PROMPT, GREEDY, 1, Verification.SHARED_NOISE, 30)
    with pytest.raises(InvalidArgument, match="the session needs 33 KV tokens, the limit is 32"):
        VerifySession(spec, PagePool(2, 16), VOCAB_SIZE, 64)


@pytest.mark.parametrize("length", [1, 2, 9, 10, 31])
def test_prefill_leaves_the_last_token_for_the_first_round(length: int, model: KnownModel) -> None:
    prompt = tuple(i % VOCAB_SIZE for i in range(length))
    session = VerifySession(SessionSpec(prompt, GREEDY, 1, Verification.SHARED_NOISE, 5), model.pool, VOCAB_SIZE, 64)
    run_task(model, session.prefill())
    assert session.sequence.num_cached == length - 1
    assert Client(model, session).send_one().token_id == int(model.logits(prompt).argmax())


def test_a_round_before_the_prefill_is_the_same(model: KnownModel) -> None:
    spec = SessionSpec(PROMPT, GREEDY, 1, Verification.SHARED_NOISE, 20)
    session = VerifySession(spec, model.pool, VOCAB_SIZE, 64)
    path = greedy_path(model, 3)
    verdict = Client(model, session).send_one(path[:2])
    assert (verdict.num_accepted, verdict.token_id) == (2, path[2])


def test_confidence_is_a_probability_in_float32(model: KnownModel) -> None:
    row = model.logits(PROMPT)
    row[5] = 200.0
    verdict = Client(model, open_session(model)).send_one()
    assert (verdict.token_id, verdict.confidence) == (5, 1.0)
    assert isinstance(verdict.confidence, float)
    assert torch.isfinite(row).all()
