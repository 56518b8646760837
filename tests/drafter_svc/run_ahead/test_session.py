"""Run-ahead changes when a proposal is there, and nothing else: hit or miss, it is the same proposal."""

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drafter_svc.drafter import DraftSession
from drafter_svc.rounds import drafting
from drafter_svc.run_ahead import outcomes
from drafter_svc.run_ahead import session as run_ahead
from drafter_svc.run_ahead.branches import Branch, BranchSet
from drafter_svc.run_ahead.learned import Learned, LearnedByMode
from specgate.errors import NonFiniteLogits
from specgate.types import Announcement, DraftRequest, Proposal, SamplingParams, Verification
from tests.support.models import KnownModel, Mix, make_runner, run_all, run_task, write_llama
from tests.support.sessions import (
    GREEDY,
    PROMPT,
    VOCAB_SIZE,
    Generation,
    Ids,
    Pair,
    Plan,
    decode,
    guessing,
    known_model,
    make_spec,
)

ALL = 4 * VOCAB_SIZE
"""Rows for every outcome of a short proposal that is worth one."""
MODES: dict[str, Any] = {
    "greedy": {"sampling": GREEDY},
    "shared noise": {"sampling": SamplingParams()},
    "rejection": {"sampling": SamplingParams(), "verification": Verification.REJECTION},
    "penalties": {"sampling": SamplingParams(temperature=0.8, repetition_penalty=1.3, top_k=6)},
}
ANNOUNCING = ["greedy", "shared noise", "penalties"]
PLANS = {
    "short": Plan(2, ahead=8),
    "long": Plan(6, ahead=5),
    "gate": Plan(3, solo_below=0.3, ahead=8),
    "draft confidence": Plan(5, stop_below=0.3, ahead=8),
    "overtaken": Plan(4, solo_below=0.4, max_solo_tokens=3, overtake=1, ahead=8),
}


@pytest.fixture(autouse=True)
def every_guess_is_worth_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models as small as these are sure of nothing."""
    monkeypatch.setattr(outcomes, "WORTH_A_ROW", 0.01)
    monkeypatch.setattr(run_ahead, "WORTH_LOOKING", 2.0)


@pytest.fixture
def looks_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare the round behind the next one, however unlikely it is."""
    monkeypatch.setattr(run_ahead, "WORTH_LOOKING", 0.0)


class Client:
    """A client and an engine of one session: it sends rounds, and lets the drafter guess between them.

    Every proposal must be that of a session that never guesses.
    """

    def __init__(self, learned: Learned | None = None, **fields: Any) -> None:
        self.model, self.plain_model, self.round = known_model(), known_model(), 0
        self.session, self.plain = (
            DraftSession(make_spec(**fields), model.pool, VOCAB_SIZE, 64, known)
            for model, known in ((self.model, learned), (self.plain_model, None))
        )
        self.heard: list[Announcement] = []
        self.tasks: list[Any] = []
        run_task(self.model, self.session.warm())
        run_task(self.plain_model, self.plain.warm())

    def request(self, committed: Ids = (), gamma: int = 3, **fields: Any) -> DraftRequest:
        """The next round."""
        self.round += 1
        position = self.session.spec.first_position + self.session.num_committed
        return DraftRequest(self.round, position, committed, gamma, **fields)

    def send(self, committed: Ids = (), gamma: int = 3, **fields: Any) -> Proposal:
        request = self.request(committed, gamma, **fields)
        proposal = run_task(self.model, self.session.draft(request))
        expected = run_task(self.plain_model, self.plain.draft(request))
        assert (proposal.draft_token_ids, proposal.draft_probs) == (expected.draft_token_ids, expected.draft_probs)
        assert proposal.draft_confidences == pytest.approx(expected.draft_confidences)
        return proposal

    def guess(self, num_rows: int = ALL, num_steps: int | None = None) -> "Client":
        for task in guessing(self.session, num_rows, num_steps, self.heard.append):
            run_task(self.model, task)
        return self

    def begin_guessing(self, num_rows: int) -> None:
        """Leave it to the test when ``tasks`` are run."""

        def submit(task: Any) -> "Future[Any]":
            self.tasks.append(task)
            return Future()

        self.session.ahead.start(num_rows, submit, self.heard.append)
        run_task(self.model, self.tasks.pop(0))

    @property
    def branch_sets(self) -> list[BranchSet]:
        # What nobody is told of is seen nowhere else.
        return self.session.guesses._branch_sets

    @property
    def branches(self) -> dict[Ids, Branch]:
        return self.branch_sets[0].branches if self.branch_sets else {}

    @property
    def likeliest(self) -> Ids:
        return next(iter(self.branches))

    @property
    def unforeseen(self) -> Ids:
        return next((token_id,) for token_id in range(VOCAB_SIZE) if (token_id,) not in self.branches)

    def told(self, announcement: Announcement, index: int = 0) -> Ids:
        """The tokens of an announced outcome that are not committed yet."""
        return announcement.proposals[index].token_ids[self.session.num_committed - announcement.position :]

    @property
    def num_open(self) -> int:
        return len(self.model.pool.sequences)


def begun(**fields: Any) -> Client:
    """A client with a first proposal of three tokens."""
    client = Client(**fields)
    client.send()
    return client


def answer(*outcomes: Ids, **fields: Any) -> Ids:
    """What is drafted behind these outcomes where nothing is guessed."""
    client = Client(**fields)
    return [client.send(outcome).draft_token_ids for outcome in outcomes][-1]


# The same, hit or miss.


def known_pair() -> Pair:
    return Pair(KnownModel(VOCAB_SIZE, 3, gain=2.0), KnownModel(VOCAB_SIZE, 4, gain=2.0, mix=Mix(3, 0.9)))


@pytest.fixture(scope="module")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Models whose answers stand on keys and values, over pages that a branch fills in the middle."""
    folder: Path = tmp_path_factory.mktemp("pair")
    write_llama(folder / "target", seed=1)
    write_llama(folder / "draft", seed=2, mix=Mix(1, 0.9))
    target, draft = (make_runner(folder / name, kv_tokens=4096, page_size=16) for name in ("target", "draft"))
    return Pair(target, draft)


Histories = list[tuple[Generation, Generation]]


def histories(pair: Pair, mode: str, plan: Plan, seeds: Sequence[int] = range(3), **fields: Any) -> Histories:
    """The generations of these seeds without run-ahead, and with it."""
    specs = [make_spec(max_tokens=24, seed=seed, **fields, **MODES[mode]) for seed in seeds]
    without, ahead = ([run_all([decode(pair, spec, p)])[0] for spec in specs] for p in (plan._replace(ahead=0), plan))
    return list(zip(without, ahead, strict=True))


def drafted(generation: Generation) -> list[tuple[Any, ...]]:
    return [(proposal.draft_token_ids, proposal.draft_probs) for proposal in generation.proposals]


def draft_ids(generation: Generation) -> list[Ids]:
    """Without the distributions: two forwards of another shape round differently."""
    return [proposal.draft_token_ids for proposal in generation.proposals]


def num_hits(pairs: Histories) -> int:
    return sum(proposal.from_run_ahead for _, ahead in pairs for proposal in ahead.proposals)


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("plan", "steps"), [*((plan, None) for plan in PLANS), ("gate", 0), ("draft confidence", 1), ("overtaken", 3)]
)
def test_every_proposal_is_what_it_would_have_been(mode: str, plan: str, steps: int | None) -> None:
    pair = known_pair()
    pairs = histories(pair, mode, PLANS[plan]._replace(ahead_steps=steps), seeds=range(4))
    for without, ahead in pairs:
        assert drafted(ahead) == drafted(without)
        assert ahead.token_ids == without.token_ids
    assert num_hits(pairs) > 0 or steps is not None
    assert num_hits(pairs) == 0 or steps != 0
    assert pair.draft.pool.num_free == pair.draft.pool.num_pages
    pair.draft.pool.check_integrity()


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("mode", MODES)
def test_every_proposal_stands_on_the_keys_of_its_own_outcome(mode: str, real_pair: Pair) -> None:
    pairs = histories(real_pair, mode, Plan(2, ahead=8), prompt_token_ids=tuple(range(20)))
    for without, ahead in pairs:
        assert draft_ids(ahead) == draft_ids(without)
    assert num_hits(pairs) > 0
    real_pair.draft.pool.check_integrity()


# One round after the other.


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_a_prepared_outcome_needs_no_forward(num_accepted: int) -> None:
    client = begun().guess()
    outcome = next(one for one in client.branches if len(one) == num_accepted + 1)
    assert outcome[:-1] == tuple(client.session.last_proposal[:num_accepted])
    with pytest.raises(StopIteration) as ended:
        next(client.session.draft(client.request(outcome)))
    ids = answer((), outcome)
    assert ended.value.value == Proposal(ids, from_run_ahead=True, num_prepared=len(ids))


def test_a_missed_outcome_is_drafted_as_usual() -> None:
    client = begun().guess(1)
    proposal = client.send(client.unforeseen)
    assert client.num_open == 1
    assert (proposal.from_run_ahead, proposal.num_prepared) == (False, 0)


@pytest.mark.parametrize("mode", ["shared noise", "rejection"])
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_another_length_is_cut_or_drafted_on(gamma: int, mode: str) -> None:
    client = begun(**MODES[mode]).guess()
    proposal = client.send(client.likeliest, gamma)
    assert (proposal.from_run_ahead, proposal.num_prepared) == (gamma < 3, min(gamma, 3))
    # What nobody was told of, as a whole, is waited for.
    assert client.session.ahead.was_announced == (gamma < 3 and mode == "shared noise")
    # And the round after that one stands on the right tokens.
    client.send((5,))


@pytest.mark.parametrize("mode", ["shared noise", "rejection"])
def test_a_gate_that_changes_its_mind_finds_drafts_of_every_length_it_had(mode: str) -> None:
    client = Client(**MODES[mode])
    outcome: Ids = ()
    for gamma in (5, 1, 5, 2):
        assert client.send(outcome, gamma).from_run_ahead == bool(outcome)
        outcome = client.guess().likeliest


@pytest.mark.parametrize(("mode", "is_used"), [("greedy", True), ("shared noise", True), ("rejection", False)])
def test_another_rounds_randomness_is_not_this_ones(mode: str, is_used: bool) -> None:
    client = begun(**MODES[mode]).guess()
    client.round += 1
    assert client.send(client.likeliest).from_run_ahead == is_used


def test_another_threshold_is_another_draft() -> None:
    client = begun().guess()
    proposal = client.send(client.likeliest, stop_below=1.0)
    assert (proposal.from_run_ahead, len(proposal)) == (False, 1)


def test_announced_drafts_have_their_probabilities_where_they_may_stop() -> None:
    client = Client()
    client.send(stop_below=0.01)
    (announcement,) = client.guess().heard
    own = announcement.proposals[0].draft_confidences
    assert client.send(client.told(announcement), stop_below=0.01).draft_confidences == own
    assert all(len(one.draft_confidences) == len(one.draft_token_ids) > 0 for one in announcement.proposals)
    (announcement,) = begun().guess().heard
    assert not any(one.draft_confidences for one in announcement.proposals)


def test_a_round_that_asks_for_nothing_leaves_the_threshold_of_what_is_prepared() -> None:
    client = Client()
    own = client.send(stop_below=1.0).draft_token_ids
    client.send(own, gamma=0, prepare=3)
    proposal = client.send(client.guess().likeliest, stop_below=1.0)
    assert (proposal.from_run_ahead, len(proposal)) == (True, 1)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_branch_that_has_not_ended_is_finished(num_steps: int) -> None:
    client = begun().guess(num_steps=num_steps)
    outcome = client.likeliest
    assert len(client.branches[outcome].draft.tokens) == num_steps
    task = client.session.draft(client.request(outcome))
    assert next(task).length == len(PROMPT) + len(outcome) + num_steps
    task.close()


def test_while_the_target_is_alone_its_next_token_is_an_outcome_of_its_own() -> None:
    client = begun()
    client.send(tuple(client.session.last_proposal[:1]), gamma=0)
    (announcement,) = client.guess().heard
    assert announcement.position == len(PROMPT) + 1
    assert {len(one.token_ids) for one in announcement.proposals} == {1}
    assert client.send(client.told(announcement)).from_run_ahead


def test_a_session_that_was_never_asked_for_a_draft_prepares_only_what_it_is_told_to() -> None:
    client = Client()
    for token_id, prepare in ((4, 0), (5, 3), (6, 0)):
        client.send((token_id,), gamma=0, prepare=prepare)
        client.guess(4)
        assert bool(client.branches) == bool(prepare)
    (announcement,) = client.heard
    assert {len(one.draft_token_ids) for one in announcement.proposals} == {3}


@pytest.mark.parametrize("gamma", [0, 3])
def test_branches_are_as_long_as_was_said(gamma: int) -> None:
    client = begun()
    client.send((5,), gamma, prepare=6)
    (announcement,) = client.guess(4).heard
    assert [len(one.draft_token_ids) for one in announcement.proposals] == [6] * 4


def test_no_more_branches_than_rows_and_the_likeliest_first() -> None:
    client = begun().guess(4)
    assert len(client.branches) == client.num_open - 1 == 4
    assert list(begun().guess(2).branches) == list(client.branches)[:2]


def test_what_ends_the_text_is_not_guessed() -> None:
    client = Client(stop_token_ids=frozenset(range(VOCAB_SIZE)) - {7})
    client.send((4,))
    client.guess()
    assert {outcome[-1] for outcome in client.branches} == {7}


def test_where_the_request_ends_nothing_is_guessed() -> None:
    client = begun(max_tokens=4).guess()
    assert all(len(outcome) < 4 for outcome in client.branches)
    client.send(client.likeliest, gamma=1)


# What is announced.


@pytest.mark.parametrize("mode", ANNOUNCING)
def test_what_is_announced_is_what_is_answered(mode: str) -> None:
    client = Client(**MODES[mode])
    client.send((4,))
    (announcement,) = client.guess(6).heard
    assert announcement.position == len(PROMPT) + 1
    assert len(announcement.proposals) == len(client.branches) > 1
    for index, one in enumerate(announcement.proposals):
        assert answer((4,), client.told(announcement, index), **MODES[mode]) == one.draft_token_ids


@pytest.mark.parametrize(("mode", "num_steps"), [("rejection", None), ("greedy", 2)])
def test_what_holds_for_one_round_or_is_not_finished_is_not_announced(mode: str, num_steps: int | None) -> None:
    client = begun(**MODES[mode]).guess(num_steps=num_steps)
    assert client.branches
    assert not client.heard


@pytest.mark.parametrize("lost", [{0}, {3}, {0, 1, 2, 3}], ids=str)
def test_a_branch_that_is_lost_keeps_no_other_one_unsaid(lost: set[int]) -> None:
    client = begun()
    client.begin_guessing(4)
    for index, task in enumerate(client.tasks):
        if index in lost:
            next(task)
            task.close()
        else:
            assert not client.heard
            run_task(client.model, task)
    told = [one for announcement in client.heard for one in announcement.proposals]
    kept = [outcome for index, outcome in enumerate(client.branches) if index not in lost]
    assert [one.token_ids for one in told] == kept
    assert all(len(one.draft_token_ids) == 3 for one in told)
    assert len(client.heard) == bool(kept)


def test_of_a_round_that_is_over_nothing_is_announced() -> None:
    client = begun()
    client.begin_guessing(4)
    first, *others = client.tasks
    run_task(client.model, first)
    for task in others:
        next(task)
    client.send((5,))
    for task in others:
        task.close()
    assert not client.heard


def test_a_draft_was_announced_where_it_is_what_was_told() -> None:
    client = begun()
    assert not client.session.ahead.was_announced
    client.guess()
    assert client.send(client.told(client.heard[0])).from_run_ahead
    assert client.session.ahead.was_announced
    client.guess()
    client.send(client.unforeseen)
    assert not client.session.ahead.was_announced


@pytest.mark.parametrize("is_told", [True, False])
def test_guessing_begins_before_the_answer_goes_out_where_it_was_announced(is_told: bool) -> None:
    client = begun().guess(4, num_steps=None if is_told else 1)
    session, started = client.session, list[int]()
    request = client.request(client.likeliest)
    proposal = run_task(client.model, drafting(session, request, lambda: started.append(len(session.sequence))))
    assert len(proposal) == 3
    # With the whole draft before it.
    assert started == ([session.num_committed + 3] if is_told else [])


# Further ahead.


def is_near(client: Client, announcement: Announcement) -> bool:
    """Whether it is of the outcomes of what was proposed last."""
    told = {one.token_ids for one in announcement.proposals}
    return announcement.position == client.session.num_committed and told <= client.branch_sets[0].branches.keys()


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("mode", ANNOUNCING)
@pytest.mark.parametrize("first_position", [0, 20])
def test_behind_the_likeliest_outcome_the_round_after_it_is_told_too(mode: str, first_position: int) -> None:
    """At its place in the text, wherever the drafter's part of it begins."""
    fields = {**MODES[mode], "first_position": first_position}
    client = Client(**fields)
    client.send((4,))
    near, far = client.guess(4).heard
    assert near.position == far.position == first_position + len(PROMPT) + 1
    outcome = near.proposals[0].token_ids
    for token_ids, draft_token_ids, *_ in far.proposals:
        assert token_ids[: len(outcome)] == outcome
        assert answer((4,), outcome, token_ids[len(outcome) :], **fields) == draft_token_ids


def test_an_unlikely_outcome_is_not_looked_behind() -> None:
    assert len(begun().guess(4).heard) == 1


@pytest.mark.usefixtures("looks_further")
def test_what_was_prepared_further_ahead_is_gone_on_with() -> None:
    client = begun().guess(4)
    near, far = client.heard
    client.send(client.told(near))
    assert list(client.branches) == [client.told(far, index) for index in range(len(far.proposals))]
    client.guess(4)
    # Nothing is told twice: what comes is behind that.
    _, _, farther = client.heard
    assert farther.position == client.session.num_committed
    assert all(one.token_ids[: len(client.likeliest)] == client.likeliest for one in farther.proposals)
    assert client.send(client.told(far, 1)).from_run_ahead


@pytest.mark.usefixtures("looks_further")
def test_where_its_pages_were_wanted_the_round_is_prepared_anew() -> None:
    client = begun().guess(4)
    for branch in client.branch_sets[1].branches.values():
        client.model.pool.discard(branch.draft.sequence)
    client.send(client.told(client.heard[0]))
    assert not client.branches
    client.guess(4)
    assert client.branches
    assert is_near(client, client.heard[2])


@pytest.mark.usefixtures("looks_further")
def test_where_others_draft_too_nothing_is_kept() -> None:
    client = begun().guess(4)
    client.send(client.told(client.heard[0]))
    assert client.num_open > 1
    client.guess(0)
    assert client.num_open == 1


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize(
    ("index", "changed"),
    [(1, {}), (0, {"gamma": 2}), (0, {"gamma": 4}), (0, {"gamma": 0}), (0, {"stop_below": 0.9}), (0, {"prepare": 5})],
)
def test_behind_anything_else_it_is_dropped(index: int, changed: dict[str, Any]) -> None:
    client = begun().guess(4)
    client.send(client.told(client.heard[0], index), **changed)
    assert not client.branches
    assert client.num_open == 1
    assert is_near(client.guess(4), client.heard[2])


@pytest.mark.usefixtures("looks_further")
def test_what_is_told_after_it_came_true_is_of_the_next_round() -> None:
    client = begun()
    client.begin_guessing(2)
    while not client.heard:
        run_task(client.model, client.tasks.pop(0))
    (further,) = client.tasks
    client.send(client.told(client.heard[0]))
    client.tasks.clear()
    run_task(client.model, further)
    for task in list(client.tasks):
        run_task(client.model, task)
    assert is_near(client, client.heard[1])


# Pages and memory.


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize(("num_steps", "num_told"), [(1, 0), (None, 2)])
def test_the_end_of_a_session_is_the_end_of_its_branches(num_steps: int | None, num_told: int) -> None:
    client = begun().guess(4, num_steps)
    assert len(client.heard) == num_told
    assert client.num_open > 2
    client.session.free()
    assert client.num_open == 0
    assert client.model.pool.num_free == client.model.pool.num_pages
    client.model.pool.check_integrity()


def test_the_end_of_a_session_is_the_end_of_its_logits() -> None:
    """It is in a cycle with what drafts for it, which is collected who knows when."""
    client = begun()
    client.begin_guessing(4)
    for task in client.tasks[:-1]:
        run_task(client.model, task)
    drafts = [client.branch_sets[0].proposed, *(branch.draft for branch in client.branches.values())]
    proposed, *prepared = ([weakref.ref(row) for row in draft.logits] for draft in drafts)
    assert [len(logits) for logits in (proposed, *prepared)] == [3, 3, 3, 3, 0]
    del drafts
    client.session.free()
    # One that was never begun keeps no other one alive, until the engine leaves it too.
    assert not any(row() is not None for logits in prepared for row in logits)
    client.tasks.clear()
    assert not any(row() is not None for row in proposed)


@pytest.mark.parametrize("failed", [False, True])
def test_a_branch_that_failed_or_whose_pages_were_wanted_is_drafted_anew(failed: bool) -> None:
    client = begun()
    client.begin_guessing(4)
    for task in client.tasks:
        run_task(client.model, task)
    outcome, branch = next(iter(client.branches.items()))
    if failed:
        branch.job.set_exception(NonFiniteLogits("of a branch"))
    else:
        client.model.pool.discard(branch.draft.sequence)
    assert not client.send(outcome).from_run_ahead
    assert client.num_open == 1


@pytest.mark.parametrize("pays", [True, False])
def test_guesses_are_made_where_rounds_take_less_time_by_them(pays: bool) -> None:
    """Rounds that solo tokens follow would say the contrary."""
    now_s = 0.0
    learned = Learned(clock=lambda: now_s)
    for _ in range(4):
        client = Client(learned, max_tokens=56)
        for index in range(36):
            guesses, is_solo = bool(client.branches), index % 3 == 2
            now_s += 2.0 + (guesses != pays) + 20.0 * (is_solo and guesses == pays)
            client.send((4, 5) if is_solo else (4,))
            client.guess(4)
    assert bool(client.branches) == pays
    assert bool(begun(learned=learned).guess(4).branches) == pays


def test_sessions_whose_targets_choose_alike_learn_together() -> None:
    modes, spec = LearnedByMode(), make_spec(sampling=SamplingParams(temperature=0.7))
    assert modes.of(make_spec(sampling=GREEDY)) is modes.of(make_spec(sampling=replace(GREEDY, top_k=5)))
    assert modes.of(spec) is modes.of(replace(spec, sampling=SamplingParams(temperature=0.72)))
    assert modes.of(spec) is not modes.of(replace(spec, sampling=SamplingParams(temperature=1.0)))
    assert modes.of(spec) is not modes.of(replace(spec, verification=Verification.REJECTION))
