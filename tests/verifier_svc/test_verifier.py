"""A verifying session: what it commits, where it stops, what it refuses, and what it says about each token."""

from typing import Any

import pytest

from specgate.errors import InvalidArgument, OutOfSync
from specgate.runtime.kv_pages import PagePool
from specgate.types import (
    ALWAYS_SOLO,
    FinishReason,
    Proposal,
    SamplingParams,
    SparseDistribution,
    Verdict,
    Verification,
    VerifyRequest,
)
from tests.support.models import KnownModel, run_task
from tests.support.sessions import PROMPT, VOCAB_SIZE, Ids, greedy_path, known_model, make_spec, open_session
from verifier_svc.verifier import VerifySession

MODEL = known_model()
PATH = greedy_path(MODEL, 20)
"""What the target says to the prompt by itself."""
REJECTION: dict[str, Any] = {"sampling": SamplingParams(), "verification": Verification.REJECTION}


class Client:
    """Opens a session and sends it rounds, and remembers how far it is."""

    def __init__(self, model: KnownModel = MODEL, **fields: Any) -> None:
        self.model = model
        self.session = open_session(VerifySession, make_spec(**fields), model)
        run_task(model, self.session.prefill())
        self.round = -1

    def send(
        self,
        draft: Ids = (),
        *,
        position: int | None = None,
        round_index: int | None = None,
        probs: tuple[SparseDistribution, ...] = (),
        interrupt_after: int | None = None,
        **gate: Any,
    ) -> list[Verdict]:
        """Return the verdicts of a round, which is interrupted after so many of them."""
        self.round = self.round + 1 if round_index is None else round_index
        position = len(self.session.sequence) if position is None else position
        verdicts: list[Verdict] = []

        def emit(verdict: Verdict) -> None:
            verdicts.append(verdict)
            if len(verdicts) == interrupt_after:
                self.session.interrupt()

        self.session.resume()
        task = self.session.verify(VerifyRequest(self.round, position, Proposal(draft, probs), **gate), emit)
        if interrupt_after == 0:
            self.session.interrupt()
        run_task(self.model, task)
        return verdicts

    def send_one(self, draft: Ids = (), **others: Any) -> Verdict:
        (verdict,) = self.send(draft, **others)
        return verdict

    @property
    def emitted(self) -> Ids:
        return tuple(self.session.sequence.token_ids[len(PROMPT) :])


def confidence_of(path: Ids) -> float:
    """The target's raw probability of the last token of a path."""
    return float(MODEL.logits((*PROMPT, *path[:-1])).softmax(0)[path[-1]])


def other_than(token_id: int) -> int:
    return (token_id + 1) % VOCAB_SIZE


@pytest.mark.parametrize("num_right", [0, 2, 4])
def test_a_round_commits_what_agrees_and_the_targets_own_token(num_right: int) -> None:
    client = Client()
    verdict = client.send_one((*PATH[:num_right], other_than(PATH[num_right]), 0, 0)[:4])
    assert (verdict.num_accepted, verdict.token_id) == (num_right, PATH[num_right])
    assert (verdict.solo, verdict.last, verdict.finish_reason) == (False, True, None)
    expected = [confidence_of(PATH[: index + 1]) for index in range(num_right + 1)]
    assert [*verdict.accepted_confidences, verdict.confidence] == pytest.approx(expected, rel=1e-5)
    assert client.emitted == PATH[: num_right + 1]
    assert client.session.sequence.num_cached == len(PROMPT) + num_right
    assert client.session.num_remaining == 20 - num_right - 1


# Staying in step.


def test_a_round_from_another_length_is_out_of_sync() -> None:
    for off_by in (-3, -1, 1, 5):
        client = Client()
        client.send(PATH[:2])
        with pytest.raises(OutOfSync, match=f"round 1 starts at {6 + off_by}, the session is at 6 after round 0"):
            client.send(position=6 + off_by)
        assert client.emitted == PATH[:3]


def test_a_round_that_was_there_before_is_out_of_sync() -> None:
    client = Client()
    client.send(round_index=4)
    for again in (4, 3, 0):
        with pytest.raises(OutOfSync, match=f"round {again} starts at"):
            client.send(round_index=again)
    client.send(round_index=9)


def test_a_session_that_resumes_starts_behind_what_was_emitted() -> None:
    client = Client(output_token_ids=PATH[:3], max_tokens=5)
    with pytest.raises(OutOfSync):
        client.send(position=len(PROMPT))
    assert client.send_one(position=len(PROMPT) + 3).token_id == PATH[3]
    assert client.send_one().finish_reason is FinishReason.LENGTH


# Limits and ends.


def test_no_more_draft_tokens_than_may_be_emitted() -> None:
    with pytest.raises(InvalidArgument, match=r"proposal.draft_token_ids \(length\): 4 is outside \[0, 3\]"):
        Client(max_tokens=4).send((*PATH[:3], 0))
    verdict = Client(max_tokens=4).send_one(PATH[:3])
    assert (verdict.num_accepted, verdict.token_id, verdict.finish_reason) == (3, PATH[3], FinishReason.LENGTH)


def test_a_session_that_has_ended_or_has_nothing_left_to_emit_takes_no_round() -> None:
    client = Client(max_tokens=1)
    assert client.send_one().finish_reason is FinishReason.LENGTH
    with pytest.raises(InvalidArgument, match="round: the session has ended"):
        client.send()
    with pytest.raises(InvalidArgument, match=r"^proposal\.draft_token_ids "):
        Client(output_token_ids=(4, 5), max_tokens=2).send()


@pytest.mark.parametrize("index", [0, 2])
def test_a_stop_token_inside_the_accepted_run_ends_it_there_and_behind_it_nothing(index: int) -> None:
    verdict = Client(stop_token_ids=frozenset({PATH[index], 99}), logprobs=1).send_one(PATH[:4])
    assert (verdict.num_accepted, verdict.token_id) == (index + 1, None)
    assert (verdict.finish_reason, verdict.last) == (FinishReason.STOP, True)
    assert verdict.confidence == pytest.approx(confidence_of(PATH[: index + 1]), rel=1e-5)
    assert len(verdict.logprobs) == verdict.num_emitted == index + 1
    stop = other_than(PATH[index])
    verdict = Client(stop_token_ids=frozenset({stop})).send_one((*PATH[:index], stop, stop))
    assert (verdict.num_accepted, verdict.token_id, verdict.finish_reason) == (index, PATH[index], None)


@pytest.mark.parametrize("max_tokens", [3, 20])
def test_a_stop_token_of_the_target_itself_is_its_last_and_stop_comes_before_length(max_tokens: int) -> None:
    for num_right in (0, 2):
        client = Client(stop_token_ids=frozenset({PATH[num_right]}), max_tokens=max_tokens)
        verdict = client.send_one(PATH[:num_right])
        assert (verdict.num_accepted, verdict.token_id) == (num_right, PATH[num_right])
        assert verdict.finish_reason is FinishReason.STOP


# Solo runs.


def test_the_target_goes_on_alone_while_it_is_unsure() -> None:
    confidences = [confidence_of(PATH[: i + 1]) for i in range(20)]
    threshold = max(confidences[:4]) + 1e-6
    unsure = next(i for i in range(20) if confidences[i] >= threshold)
    verdicts = Client().send(solo_below=threshold, max_solo_tokens=100)
    assert [verdict.token_id for verdict in verdicts] == list(PATH[: unsure + 1])
    assert [verdict.solo for verdict in verdicts] == [False, *[True] * unsure]
    assert [verdict.last for verdict in verdicts] == [*[False] * unsure, True]
    assert {verdict.round for verdict in verdicts} == {0}


def test_a_solo_run_is_no_longer_than_asked_for() -> None:
    for max_solo_tokens in (0, 1, 3):
        client = Client()
        verdicts = client.send(solo_below=ALWAYS_SOLO, max_solo_tokens=max_solo_tokens)
        assert (len(verdicts), verdicts[-1].last) == (1 + max_solo_tokens, True)
        assert client.send_one().token_id == PATH[max_solo_tokens + 1]
    assert len(Client().send(solo_below=1e-6, max_solo_tokens=9)) == 1


def test_a_solo_run_ends_at_max_tokens_and_at_a_stop_token() -> None:
    for fields, reason in (
        ({"max_tokens": 5}, FinishReason.LENGTH),
        ({"stop_token_ids": frozenset({PATH[3]})}, FinishReason.STOP),
    ):
        verdicts = Client(**fields).send(solo_below=ALWAYS_SOLO, max_solo_tokens=100)
        assert [verdict.token_id for verdict in verdicts] == list(PATH[: 5 if reason is FinishReason.LENGTH else 4])
        assert [verdict.finish_reason for verdict in verdicts] == [None] * (len(verdicts) - 1) + [reason]
        assert (verdicts[-1].num_accepted, verdicts[-1].last) == (0, True)


# Late proposals: their sender had seen one token of a solo run, which was interrupted when it had made three more.


def interrupted(**fields: Any) -> Client:
    client = Client(**fields)
    verdicts = client.send(solo_below=ALWAYS_SOLO, max_solo_tokens=100, interrupt_after=4)
    assert [verdict.last for verdict in verdicts] == [False] * 4 + [True]
    assert verdicts[-1] == Verdict(0)
    return client


def test_an_interrupted_solo_run_ends_at_its_next_forward() -> None:
    client = interrupted()
    assert client.emitted == PATH[:4]
    assert client.send_one(PATH[4:6]).num_accepted == 2


@pytest.mark.parametrize("seen", [1, 2, 3, 4])
def test_a_late_proposal_that_names_the_solo_tokens_is_verified_from_there(seen: int) -> None:
    client = interrupted()
    verdict = client.send_one((*PATH[seen:6], other_than(PATH[6])), position=len(PROMPT) + seen)
    assert (verdict.num_accepted, verdict.token_id, verdict.solo) == (2, PATH[6], False)
    assert client.emitted == PATH[:7]
    # One that is used up gives a bonus token.
    verdict = interrupted().send_one(PATH[seen:4], position=len(PROMPT) + seen)
    assert (verdict.num_accepted, verdict.token_id) == (0, PATH[4])


@pytest.mark.parametrize(
    "draft",
    [
        pytest.param((other_than(PATH[1]), *PATH[2:7]), id="differs at once"),
        pytest.param((*PATH[1:3], other_than(PATH[3]), *PATH[4:7]), id="differs at the last solo token"),
        pytest.param((), id="says nothing"),
        pytest.param(PATH[1:3], id="is shorter than the solo run"),
    ],
)
def test_a_late_proposal_that_does_not_name_the_solo_tokens_gets_an_empty_verdict(draft: Ids) -> None:
    client = interrupted()
    assert client.send_one(draft, position=4, solo_below=ALWAYS_SOLO, max_solo_tokens=9) == Verdict(1)
    assert client.emitted == PATH[:4]
    assert client.send_one(PATH[4:6]).num_accepted == 2


def test_a_late_proposal_may_not_start_before_the_solo_run() -> None:
    with pytest.raises(OutOfSync):
        interrupted().send(position=len(PROMPT))
    # After a round that answered, a solo run before it is history.
    client = interrupted()
    client.send(PATH[4:6])
    with pytest.raises(OutOfSync):
        client.send(PATH[1:6], position=len(PROMPT) + 1)


def test_an_interruption_before_the_round_runs_is_not_lost() -> None:
    """The next message may come while the round still waits for its turn on the engine."""
    client = Client()
    verdicts = client.send(solo_below=ALWAYS_SOLO, max_solo_tokens=3, interrupt_after=0)
    assert [verdict.num_emitted for verdict in verdicts] == [1, 0]
    assert len(client.send(solo_below=ALWAYS_SOLO, max_solo_tokens=3)) == 4
    # One that ends by itself is not cut.
    assert client.send_one(interrupt_after=0).last


def test_the_limit_holds_for_what_is_left_of_a_late_proposal() -> None:
    with pytest.raises(InvalidArgument, match=r"proposal.draft_token_ids \(length\): 2 is outside \[0, 1\]"):
        interrupted(max_tokens=6).send(PATH[1:6], position=4)
    verdict = interrupted(max_tokens=6).send_one(PATH[1:5], position=4)
    assert (verdict.num_emitted, verdict.finish_reason) == (2, FinishReason.LENGTH)


# What a verdict says of its tokens.


def test_logprobs_are_raw_and_one_for_each_token() -> None:
    """Not of the sampled law: of the model, at temperature 1 and without filters."""
    sampling = SamplingParams(temperature=0.0, logit_bias={7: 100.0}, repetition_penalty=2.0)
    client = Client(sampling=sampling, logprobs=3)
    verdict = client.send_one((7, 7, 7))
    assert (verdict.num_accepted, len(verdict.logprobs)) == (3, 4)
    for i, (token_id, said) in enumerate(zip(client.emitted, verdict.logprobs, strict=True)):
        raw = MODEL.logits((*PROMPT, *client.emitted[:i])).log_softmax(0)
        best = raw.topk(3)
        assert said.logprob == pytest.approx(float(raw[token_id]), rel=1e-5)
        assert [token for token, _ in said.top] == best.indices.tolist()
        assert [value for _, value in said.top] == pytest.approx(best.values.tolist(), rel=1e-5)
    assert verdict.confidence == pytest.approx(float(raw[7].exp()), rel=1e-5)


def test_near_ties_are_counted_up_to_the_last_choice_that_matters() -> None:
    model = known_model()
    for i in (0, 2, 3):
        row = model.logits((*PROMPT, *PATH[:i]))
        row[other_than(PATH[i])] = row[PATH[i]] - 5e-5
    assert Client(model).send_one(PATH[:3]).near_ties == 3
    rejected = (PATH[0], other_than(PATH[1]))
    behind = model.logits((*PROMPT, *rejected))
    behind[:] = behind.max()
    assert Client(model).send_one((*rejected, 0)).near_ties == 1
    assert Client(model, **REJECTION).send_one().near_ties == 0


def test_penalties_look_at_each_positions_own_prefix() -> None:
    """A run of accepted tokens is the text that one token at a time would be."""
    sampling = SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=1.0, frequency_penalty=0.7)
    one_by_one = Client(sampling=sampling)
    path = tuple(one_by_one.send_one().token_id for _ in range(9))
    assert path != PATH[:9]
    at_once = Client(sampling=sampling).send_one(path[:8])
    assert (at_once.num_accepted, at_once.token_id) == (8, path[8])
    assert Client(sampling=sampling).send_one(PATH[:8]).num_accepted < 8


# Rejection.


def test_a_proposal_needs_its_distributions_in_rejection_mode_but_for_greedy() -> None:
    refusal = r"proposal.draft_probs \(length\): 0; rejection needs one a draft token: 2"
    with pytest.raises(InvalidArgument, match=refusal):
        Client(**REJECTION).send((4, 5))
    assert Client(verification=Verification.REJECTION).send_one(PATH[:2]).num_accepted == 2


def test_rejection_keeps_the_distributions_of_what_is_left() -> None:
    """A late proposal loses its first tokens and their distributions together."""
    client = interrupted(**REJECTION)
    likely = int(MODEL.logits((*PROMPT, *client.emitted)).argmax())
    draft = (*client.emitted[1:], likely)
    # A weight that the target surpasses is accepted whatever the random number.
    probs = tuple(SparseDistribution((token_id, other_than(token_id)), (1e-6, 1.0)) for token_id in draft)
    assert client.send_one(draft, position=4, probs=probs).num_accepted == 1
    assert client.emitted[4] == likely


# Opening.


def test_a_session_longer_than_the_context_or_all_pages_is_refused_for_good() -> None:
    spec, pool = make_spec(max_tokens=30), PagePool(4, 16)
    with pytest.raises(InvalidArgument, match=r"^max_tokens: 3 prompt tokens plus 30 pass the context length of 32$"):
        VerifySession(spec, pool, VOCAB_SIZE, 32)
    assert pool.num_free == 4
    VerifySession(spec, pool, VOCAB_SIZE, 33)
    with pytest.raises(InvalidArgument, match="the session needs 33 KV tokens, the limit is 32"):
        VerifySession(spec, PagePool(2, 16), VOCAB_SIZE, 64)


def test_prefill_leaves_the_last_token_for_the_first_round() -> None:
    for length in (1, 2, 10, 31):
        prompt = tuple(i % VOCAB_SIZE for i in range(length))
        client = Client(prompt_token_ids=prompt)
        assert client.session.sequence.num_cached == length - 1
        assert client.send_one().token_id == int(MODEL.logits(prompt).argmax())
    # A round before the prefill is the same.
    session, verdicts = open_session(VerifySession, make_spec(), MODEL), list[Verdict]()
    run_task(MODEL, session.verify(VerifyRequest(0, len(PROMPT), Proposal(PATH[:2])), verdicts.append))
    assert (verdicts[0].num_accepted, verdicts[0].token_id) == (2, PATH[2])
