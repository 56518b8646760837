"""Run-ahead changes when a proposal is there, and nothing else: hit or miss, it is the same proposal."""

import weakref
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from drafter_svc.drafter import DraftSession
from drafter_svc.run_ahead import outcomes
from drafter_svc.run_ahead import session as run_ahead
from drafter_svc.run_ahead.branches import Ids
from drafter_svc.service import drafting
from specgate.errors import NonFiniteLogits
from specgate.types import Announcement, DraftRequest, Proposal, SamplingParams, SessionSpec, Verification
from tests.support.broken_run_ahead import AdoptsAnother, GoesOnBehindAnother, KeepsWrongKeys, ReusesTheKey
from tests.support.models import KnownModel, Mix, make_runner, run_all, run_task, write_llama
from tests.support.sessions import (
    GREEDY,
    PROMPT,
    VOCAB_SIZE,
    Generation,
    MakeDraft,
    Pair,
    Plan,
    decode,
    guessing,
    known_model,
    make_spec,
)

ALL = 4 * VOCAB_SIZE
"""Rows for every outcome of a short proposal that is worth one."""
MODES = {
    "greedy": {"sampling": GREEDY},
    "shared noise": {"sampling": SamplingParams()},
    "rejection": {"sampling": SamplingParams(), "verification": Verification.REJECTION},
    "penalties": {"sampling": SamplingParams(temperature=0.8, repetition_penalty=1.3, top_k=6)},
}
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


@pytest.fixture
def model() -> KnownModel:
    return known_model()


class Client:
    """A client and an engine of one session: it sends rounds, and lets the drafter guess between them."""

    def __init__(self, model: KnownModel, make: MakeDraft = DraftSession, **fields: Any) -> None:
        self.model, self.round = model, 0
        self.session = make(make_spec(**fields), model.pool, model.vocab_size, 64)
        self.heard: list[Announcement] = []
        run_task(model, self.session.warm())

    def send(
        self,
        committed: Ids = (),
        gamma: int = 3,
        stop_below: float = 0.0,
        skip: int = 0,
        prepare: int = 0,
        foreseen: bool = True,
    ) -> Proposal:
        self.round += 1 + skip
        position = self.session.num_committed
        request = DraftRequest(self.round, position, committed, gamma, stop_below, prepare, foreseen)
        return run_task(self.model, self.session.draft(request))

    def guess(self, num_rows: int = ALL, num_steps: int | None = None) -> None:
        for task in guessing(self.session, num_rows, num_steps, self.heard.append):
            run_task(self.model, task)

    @property
    def branches(self) -> dict[Ids, Any]:
        return next((branches.branches for branches in self.session.ahead._branch_sets), {})

    @property
    def num_open(self) -> int:
        return len(self.model.pool.sequences)


# The same, hit or miss.


def histories(pair: Pair, spec: SessionSpec, plan: Plan, make: MakeDraft = DraftSession) -> list[Generation]:
    """The generation without run-ahead, and with it."""
    return [run_all([decode(pair, spec, p, make_draft=make)])[0] for p in (plan._replace(ahead=0), plan)]


def drafted(generation: Generation) -> list[tuple[Any, ...]]:
    return [(proposal.draft_token_ids, proposal.draft_probs) for proposal in generation.proposals]


def draft_ids(generation: Generation) -> list[Ids]:
    """Without the distributions: two forwards of another shape round differently."""
    return [proposal.draft_token_ids for proposal in generation.proposals]


def num_hits(generation: Generation) -> int:
    return sum(proposal.from_run_ahead for proposal in generation.proposals)


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("steps", [None, 0, 1, 3])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("mode", MODES)
def test_every_proposal_is_what_it_would_have_been(mode: str, plan: str, steps: int | None) -> None:
    pair = Pair(KnownModel(VOCAB_SIZE, 3, gain=2.0), KnownModel(VOCAB_SIZE, 4, gain=2.0, mix=Mix(3, 0.9)))
    hits = 0
    for seed in range(4):
        spec = make_spec(max_tokens=24, seed=seed, **MODES[mode])
        without, ahead = histories(pair, spec, PLANS[plan]._replace(ahead_steps=steps))
        assert drafted(ahead) == drafted(without)
        assert ahead.token_ids == without.token_ids
        hits += num_hits(ahead)
    assert hits > 0 or steps is not None
    assert hits == 0 or steps != 0
    assert pair.draft.pool.num_free == pair.draft.pool.num_pages
    pair.draft.pool.check_integrity()


@pytest.fixture(scope="module")
def real_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Models whose answers stand on keys and values, over pages that a branch fills in the middle."""
    folder: Path = tmp_path_factory.mktemp("pair")
    write_llama(folder / "target", seed=1)
    write_llama(folder / "draft", seed=2, mix=Mix(1, 0.9))
    target, draft = (make_runner(folder / name, kv_tokens=4096, page_size=16) for name in ("target", "draft"))
    return Pair(target, draft)


def real_specs(mode: str) -> list[SessionSpec]:
    return [make_spec(prompt_token_ids=tuple(range(20)), max_tokens=24, seed=s, **MODES[mode]) for s in range(3)]


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("mode", MODES)
def test_every_proposal_stands_on_the_keys_of_its_own_outcome(mode: str, real_pair: Pair) -> None:
    hits = 0
    for spec in real_specs(mode):
        without, ahead = histories(real_pair, spec, Plan(2, ahead=8))
        assert draft_ids(ahead) == draft_ids(without)
        hits += num_hits(ahead)
    assert hits > 0
    real_pair.draft.pool.check_integrity()


# What must not pass.


@pytest.mark.parametrize("make", [AdoptsAnother, KeepsWrongKeys])
@pytest.mark.parametrize("mode", ["greedy", "shared noise", "rejection"])
def test_a_wrong_branch_is_found_out(mode: str, make: MakeDraft, real_pair: Pair) -> None:
    generations = [histories(real_pair, spec, Plan(3, ahead=16), make) for spec in real_specs(mode)]
    assert any(draft_ids(ahead) != draft_ids(without) for without, ahead in generations)


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("mode", ["greedy", "shared noise"])
def test_a_wrong_look_further_ahead_is_found_out(mode: str, real_pair: Pair) -> None:
    generations = [histories(real_pair, spec, Plan(3, ahead=16), GoesOnBehindAnother) for spec in real_specs(mode)]
    assert any(draft_ids(ahead) != draft_ids(without) for without, ahead in generations)


def test_a_key_that_was_used_is_found_out() -> None:
    pair = Pair(KnownModel(VOCAB_SIZE, 3, gain=2.0), KnownModel(VOCAB_SIZE, 4, gain=2.0, mix=Mix(3, 0.9)))
    spec = make_spec(**MODES["rejection"])
    without, ahead = histories(pair, spec, Plan(2, ahead=8), ReusesTheKey)
    assert drafted(ahead) != drafted(without)


# One round after the other.


@pytest.mark.parametrize("num_accepted", [0, 1, 2, 3])
def test_a_prepared_outcome_needs_no_forward(num_accepted: int, model: KnownModel) -> None:
    client = Client(model)
    proposal = client.send()
    client.guess()
    outcome = next(one for one in client.branches if len(one) == num_accepted + 1)
    assert outcome[:-1] == proposal.draft_token_ids[:num_accepted]
    request = DraftRequest(2, client.session.num_committed, outcome, 3)
    with pytest.raises(StopIteration) as ended:
        next(client.session.draft(request))
    prepared = ended.value.value
    assert prepared.from_run_ahead
    ids = Client(model).send(outcome).draft_token_ids
    assert prepared == Proposal(ids, from_run_ahead=True, num_prepared=len(ids))


def test_a_missed_outcome_is_drafted_as_usual(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(1)
    missed = next(i for i in range(VOCAB_SIZE) if (i,) not in client.branches)
    proposal = client.send((missed,))
    assert client.num_open == 1
    assert proposal == Client(model).send((missed,))


@pytest.mark.parametrize("mode", ["shared noise", "rejection"])
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_another_length_is_cut_or_drafted_on(gamma: int, mode: str, model: KnownModel) -> None:
    client, plain = Client(model, **MODES[mode]), Client(model, **MODES[mode])
    client.send()
    plain.send()
    client.guess()
    outcome = next(iter(client.branches))
    proposal = client.send(outcome, gamma)
    assert (proposal.from_run_ahead, proposal.num_prepared) == (gamma < 3, min(gamma, 3))
    expected = plain.send(outcome, gamma)
    assert (proposal.draft_token_ids, proposal.draft_probs) == (expected.draft_token_ids, expected.draft_probs)
    # And the round after that one stands on the right tokens.
    assert client.send((5,)).draft_token_ids == plain.send((5,)).draft_token_ids


@pytest.mark.parametrize("mode", ["shared noise", "rejection"])
def test_a_gate_that_changes_its_mind_finds_drafts_of_every_length_it_had(mode: str, model: KnownModel) -> None:
    client, plain = Client(model, **MODES[mode]), Client(model, **MODES[mode])
    outcome: Ids = ()
    for gamma in (5, 1, 5, 2):
        proposal, expected = client.send(outcome, gamma), plain.send(outcome, gamma)
        assert (proposal.draft_token_ids, proposal.draft_probs) == (expected.draft_token_ids, expected.draft_probs)
        assert proposal.from_run_ahead == bool(outcome)
        client.guess()
        outcome = next(iter(client.branches))


@pytest.mark.parametrize(("mode", "is_used"), [("greedy", True), ("shared noise", True), ("rejection", False)])
def test_another_rounds_randomness_is_not_this_ones(mode: str, is_used: bool, model: KnownModel) -> None:
    client, plain = Client(model, **MODES[mode]), Client(model, **MODES[mode])
    client.send()
    plain.send()
    client.guess()
    outcome = next(iter(client.branches))
    proposal, expected = client.send(outcome, skip=1), plain.send(outcome, skip=1)
    assert proposal.from_run_ahead == is_used
    assert (proposal.draft_token_ids, proposal.draft_probs) == (expected.draft_token_ids, expected.draft_probs)


def test_another_threshold_is_another_draft(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess()
    outcome = next(iter(client.branches))
    proposal = client.send(outcome, stop_below=1.0)
    assert not proposal.from_run_ahead
    assert len(proposal) == 1


def test_a_round_that_asks_for_nothing_leaves_the_threshold_of_what_is_prepared(model: KnownModel) -> None:
    client = Client(model)
    own = client.send(stop_below=1.0).draft_token_ids[0]
    client.send((own,), gamma=0, prepare=3)
    client.guess()
    proposal = client.send(next(iter(client.branches)), stop_below=1.0)
    assert proposal.from_run_ahead
    assert len(proposal) == 1


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_branch_that_has_not_ended_is_finished(num_steps: int, model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(num_steps=num_steps)
    outcome, branch = next((one, branch) for one, branch in client.branches.items())
    assert len(branch.draft.tokens) == num_steps
    task = client.session.draft(DraftRequest(2, client.session.num_committed, outcome, 3))
    assert next(task).length == len(PROMPT) + len(outcome) + num_steps
    task.close()


def test_while_the_target_is_alone_the_next_draft_is_guessed(model: KnownModel) -> None:
    client = Client(model)
    own = client.send().draft_token_ids[0]
    client.send((own,), gamma=0)
    client.guess()
    solo = next(iter(client.branches))
    assert len(solo) == 1
    assert client.send(solo).from_run_ahead


def test_nothing_is_guessed_before_a_draft_was_asked_for(model: KnownModel) -> None:
    client = Client(model)
    client.send((4,), gamma=0)
    client.guess()
    assert not client.branches


def test_no_more_branches_than_rows_and_the_likeliest_first(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    four = list(client.branches)
    assert len(four) == client.num_open - 1 == 4
    other = Client(model)
    other.send()
    other.guess(2)
    assert list(other.branches) == four[:2]


def test_what_ends_the_text_is_not_guessed(model: KnownModel) -> None:
    everything = frozenset(range(VOCAB_SIZE))
    client = Client(model, stop_token_ids=everything - {7})
    client.send((4,))
    client.guess()
    assert {outcome[-1] for outcome in client.branches} <= {7}


def test_where_the_request_ends_nothing_is_guessed(model: KnownModel) -> None:
    client = Client(model, max_tokens=4)
    client.send(gamma=3)
    client.guess()
    assert all(len(outcome) < 4 for outcome in client.branches)
    client.send(next(iter(client.branches)), gamma=1)


# What is announced.


@pytest.mark.parametrize("mode", ["greedy", "shared noise", "penalties"])
def test_what_is_announced_is_what_is_answered(mode: str, model: KnownModel) -> None:
    client = Client(model, **MODES[mode])
    proposal = client.send((4,))
    client.guess(6)
    (announcement,) = client.heard
    assert announcement.position == len(PROMPT) + 1
    assert len(announcement.proposals) == len(client.branches) > 1
    for num_accepted, token_id, draft_token_ids in announcement.proposals:
        outcome = (*proposal.draft_token_ids[:num_accepted], token_id)
        other = Client(model, **MODES[mode])
        other.send((4,))
        assert other.send(outcome).draft_token_ids == draft_token_ids


def test_a_solo_token_is_an_outcome_of_its_own(model: KnownModel) -> None:
    client = Client(model)
    own = client.send().draft_token_ids[0]
    client.send((own,), gamma=0)
    client.guess()
    (announcement,) = client.heard
    assert announcement.position == len(PROMPT) + 1
    assert {one.num_accepted for one in announcement.proposals} == {0}


def test_nothing_is_announced_where_a_round_has_terms_of_its_own(model: KnownModel) -> None:
    client = Client(model, **MODES["rejection"])
    client.send()
    client.guess()
    assert client.branches
    assert not client.heard


def test_what_is_not_finished_is_not_announced(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(num_steps=2)
    assert client.branches
    assert not client.heard


def guesses(client: Client) -> list[Any]:
    """The branches of the round that was just sent, as tasks that nobody has run yet."""
    tasks: list[Any] = []

    def submit(task: Any) -> "Future[Any]":
        tasks.append(task)
        return Future()

    client.session.ahead.start(4, submit, client.heard.append)
    run_task(client.model, tasks[0])
    return tasks[1:]


def test_a_branch_that_is_lost_keeps_no_other_one_unsaid(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    lost, *others = guesses(client)
    next(lost)
    lost.close()
    for task in others:
        run_task(model, task)
    (announcement,) = client.heard
    assert len(announcement.proposals) == len(others) > 1
    assert all(len(one.draft_token_ids) == 3 for one in announcement.proposals)


def test_of_a_round_that_is_over_nothing_is_announced(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    tasks = guesses(client)
    run_task(model, tasks[0])
    for task in tasks[1:]:
        next(task)
    client.send((5,))
    for task in tasks[1:]:
        task.close()
    assert not client.heard


def test_a_draft_was_announced_where_it_is_what_was_told(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    assert not client.session.ahead.was_announced
    client.guess()
    told = client.heard[0].proposals[0]
    proposal = client.send((*client.session.last_proposal[: told.num_accepted], told.token_id))
    assert proposal.from_run_ahead
    assert client.session.ahead.was_announced
    client.guess()
    missed = next(i for i in range(VOCAB_SIZE) if (i,) not in client.branches)
    client.send((missed,))
    assert not client.session.ahead.was_announced


# Further ahead.


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize("mode", ["greedy", "shared noise", "penalties"])
def test_behind_the_likeliest_outcome_the_round_after_it_is_told_too(mode: str, model: KnownModel) -> None:
    client = Client(model, **MODES[mode])
    proposal = client.send((4,))
    client.guess(4)
    near, far = client.heard
    assert (near.further, far.further) == (False, True)
    num_accepted, token_id, draft_token_ids = near.proposals[0]
    outcome = (*proposal.draft_token_ids[:num_accepted], token_id)
    assert far.position == near.position + len(outcome)
    for one in far.proposals:
        other = Client(model, **MODES[mode])
        other.send((4,))
        other.send(outcome)
        behind = (*draft_token_ids[: one.num_accepted], one.token_id)
        assert other.send(behind).draft_token_ids == one.draft_token_ids


def named_by(announcement: Announcement, client: Client, index: int) -> Ids:
    """The tokens that make one of the outcomes that were announced."""
    num_accepted, token_id, _ = announcement.proposals[index]
    return (*client.session.last_proposal[:num_accepted], token_id)


@pytest.mark.usefixtures("looks_further")
def test_what_was_prepared_further_ahead_is_gone_on_with(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    far = client.heard[1]
    client.send(named_by(client.heard[0], client, 0))
    kept = [(*client.session.last_proposal[: one.num_accepted], one.token_id) for one in far.proposals]
    assert list(client.branches) == kept
    client.guess(4)
    # Nothing is told twice: what comes is behind that.
    assert [(one.further, one.number) for one in client.heard] == [(False, 1), (True, 2), (True, 3)]
    assert client.send(named_by(far, client, 1)).from_run_ahead


@pytest.mark.usefixtures("looks_further")
def test_a_client_that_missed_what_it_stands_behind_is_told_again(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    client.send(named_by(client.heard[0], client, 0), foreseen=False)
    client.guess(4)
    _, far, again, farther = client.heard
    assert again == far._replace(further=False, number=3)
    assert (farther.further, farther.number) == (True, 4)


@pytest.mark.usefixtures("looks_further")
def test_where_its_pages_were_wanted_the_round_is_prepared_anew(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    first = named_by(client.heard[0], client, 0)
    _, further = client.session.ahead._branch_sets
    for branch in further.branches.values():
        model.pool.discard(branch.draft.sequence)
    client.send(first)
    assert not client.branches
    client.guess(4)
    assert client.branches
    assert not client.heard[2].further


@pytest.mark.usefixtures("looks_further")
def test_where_others_draft_too_nothing_is_kept(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    client.send(named_by(client.heard[0], client, 0))
    assert client.num_open > 1
    client.guess(0)
    assert client.num_open == 1


@pytest.mark.usefixtures("looks_further")
@pytest.mark.parametrize(
    ("index", "changed"),
    [(1, {}), (0, {"gamma": 2}), (0, {"gamma": 4}), (0, {"gamma": 0}), (0, {"stop_below": 0.9}), (0, {"prepare": 5})],
)
def test_behind_anything_else_it_is_dropped(index: int, changed: dict[str, Any], model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    client.send(named_by(client.heard[0], client, index), **changed)
    assert not client.branches
    assert client.num_open == 1
    client.guess(4)
    assert not client.heard[2].further


@pytest.mark.usefixtures("looks_further")
def test_what_is_told_after_it_came_true_is_of_the_next_round(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    tasks: list[Any] = []

    def submit(task: Any) -> "Future[Any]":
        tasks.append(task)
        return Future()

    client.session.ahead.start(2, submit, client.heard.append)
    while not client.heard:
        run_task(model, tasks.pop(0))
    (further,) = tasks
    client.send(named_by(client.heard[0], client, 0))
    tasks.clear()
    run_task(model, further)
    for task in list(tasks):
        run_task(model, task)
    assert [one.further for one in client.heard] == [False, False]
    assert client.heard[1].position == client.session.num_committed


def test_an_unlikely_outcome_is_not_looked_behind(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    assert len(client.heard) == 1


@pytest.mark.usefixtures("looks_further")
def test_a_session_that_ends_leaves_nothing_of_it(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(4)
    assert len(client.heard) == 2
    client.session.free()
    assert client.num_open == 0
    assert model.pool.num_free == model.pool.num_pages


@pytest.mark.parametrize(("mode", "gamma"), [("greedy", 4), ("rejection", 3)])
def test_a_hit_that_nobody_was_told_of_is_waited_for(mode: str, gamma: int, model: KnownModel) -> None:
    client = Client(model, **MODES[mode])
    client.send()
    client.guess()
    assert client.send(next(iter(client.branches)), gamma).num_prepared == 3
    assert not client.session.ahead.was_announced


@pytest.mark.parametrize("is_told", [True, False])
def test_guessing_begins_before_the_answer_goes_out_where_it_was_announced(model: KnownModel, is_told: bool) -> None:
    client = Client(model)
    client.send()
    client.guess(4, num_steps=None if is_told else 1)
    outcome, started = next(iter(client.branches)), list[int]()
    request = DraftRequest(2, client.session.num_committed, outcome, 3)
    proposal = run_task(model, drafting(client.session, request, lambda: started.append(len(client.session.sequence))))
    assert len(proposal) == 3
    # With the whole draft before it.
    assert started == ([client.session.num_committed + 3] if is_told else [])


# How far.


@pytest.mark.parametrize("gamma", [0, 3])
def test_branches_are_as_long_as_was_said(gamma: int, model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.send((5,), gamma, prepare=6)
    client.guess(4)
    (announcement,) = client.heard
    assert [len(one.draft_token_ids) for one in announcement.proposals] == [6] * 4


def test_a_session_that_was_never_asked_for_a_draft_prepares_what_it_is_told_to(model: KnownModel) -> None:
    client = Client(model)
    client.send((4,), gamma=0, prepare=3)
    client.guess(4)
    assert {len(one.draft_token_ids) for one in client.heard[-1].proposals} == {3}
    client.send((5,), gamma=0)
    client.guess(4)
    assert len(client.heard) == 1


# Pages.


def test_the_end_of_a_session_is_the_end_of_its_branches(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(num_steps=1)
    assert client.num_open > 2
    client.session.free()
    assert client.num_open == 0
    assert model.pool.num_free == model.pool.num_pages
    model.pool.check_integrity()


def test_the_end_of_a_session_is_the_end_of_its_logits(model: KnownModel) -> None:
    """It is in a cycle with what drafts for it, which is collected who knows when."""
    client = Client(model)
    client.send()
    draft = client.session.ahead._proposed
    assert draft is not None
    logits = [weakref.ref(row) for row in draft.logits]
    del draft
    assert len(logits) == 3
    client.session.free()
    assert [row() for row in logits] == [None] * 3


def test_a_branch_whose_pages_were_wanted_is_drafted_anew(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess()
    outcome, branch = next(iter(client.branches.items()))
    model.pool.discard(branch.draft.sequence)
    proposal = client.send(outcome)
    assert proposal == Client(model).send(outcome)
    assert client.num_open == 2


def test_a_branch_that_failed_is_drafted_anew(model: KnownModel) -> None:
    client = Client(model)
    client.send()
    client.guess(num_steps=1)
    outcome, branch = next(iter(client.branches.items()))
    failed: Future[Any] = branch.job
    failed.set_exception(NonFiniteLogits("of a branch"))
    proposal = client.send(outcome)
    assert not proposal.from_run_ahead
    assert proposal.draft_token_ids == Client(model).send(outcome).draft_token_ids
