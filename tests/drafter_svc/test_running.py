"""A running draft is what would be drafted if it were asked for, whatever was drafted before the target chose."""

from concurrent.futures import Future
from typing import Any

import pytest

from drafter_svc.drafter import DraftSession
from specgate.errors import InvalidArgument
from specgate.types import DraftRequest, RunningDraft, SamplingParams, Verification
from tests.support.models import run_task
from tests.support.sessions import GREEDY, PROMPT, VOCAB_SIZE, Ids, greedy_path, known_model, make_spec

START, AHEAD = len(PROMPT), 8
MODEL = known_model()
PATH = greedy_path(MODEL, 20)
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "shared noise": {"sampling": SamplingParams()},
    "penalties": {"sampling": SamplingParams(temperature=0.8, repetition_penalty=1.3, top_k=6)},
}


class Client:
    """A client and an engine of one session."""

    def __init__(self, **fields: Any) -> None:
        self.model = known_model()
        self.session = DraftSession(make_spec(**fields), self.model.pool, VOCAB_SIZE, 64)
        self.heard: list[RunningDraft] = []
        self.tasks: list[tuple[Any, Future[Any]]] = []
        self.round = 0
        run_task(self.model, self.session.warm())

    def commit(self, token_ids: Ids = (), gamma: int = 0, running: int = AHEAD, prepare: int = 2) -> Ids:
        """Send a round; return what it proposes."""
        self.round += 1
        position = self.session.num_committed
        request = DraftRequest(self.round, position, token_ids, gamma, prepare=prepare, running=running)
        proposal = run_task(self.model, self.session.draft(request))
        self.session.ahead.start(0, self._submit, self.heard.append)
        return proposal.draft_token_ids

    def run(self) -> RunningDraft:
        """Run what is to be done; return what was heard last."""
        while self.tasks:
            task, job = self.tasks.pop(0)
            if not job.cancelled():
                run_task(self.model, task)
                job.set_result(None)
        return self.heard[-1]

    def _submit(self, task: Any) -> "Future[Any]":
        self.tasks.append((task, Future()))
        return self.tasks[-1][1]


@pytest.mark.parametrize("mode", MODES)
def test_it_is_what_would_be_proposed(mode: str) -> None:
    client, plain = Client(**MODES[mode]), Client(**MODES[mode])
    committed = START
    # Twice what it drafted, then another token, in the first place and in a later one.
    for num_right, other in ((0, ()), (3, ()), (5, ()), (0, (7,)), (2, (7,)), (1, (0, 7))):
        agreed = client.heard[-1].draft_token_ids[:num_right] if num_right else ()
        tokens = (*agreed, *other)
        client.commit(tokens)
        committed += len(tokens)
        expected = plain.commit(tokens, gamma=AHEAD, running=0)
        draft = client.run()
        assert (draft.position, draft.draft_token_ids) == (committed, expected[: 20 + START - committed])
        assert len(draft.draft_confidences) == len(draft.draft_token_ids)


def test_it_is_told_as_it_grows_and_what_agrees_of_it_is_not_drafted_again() -> None:
    client = Client()
    client.commit()
    assert client.run().draft_token_ids == PATH[:AHEAD]
    client.heard.clear()
    client.commit(PATH[:3])
    client.run()
    for draft in client.heard:
        num_drafted = len(draft.draft_token_ids)
        assert AHEAD - 3 < num_drafted <= AHEAD
        assert (draft.position, draft.draft_token_ids) == (START + 3, PATH[3 : 3 + num_drafted])


def test_a_draft_in_the_making_is_dropped_where_the_target_chose_another_token() -> None:
    client = Client()
    client.commit()
    (task, _) = client.tasks[0]
    next(task)
    other = (PATH[0] + 1) % VOCAB_SIZE
    client.commit((other,))
    assert client.run().draft_token_ids == greedy_path(MODEL, AHEAD, (*PROMPT, other))
    task.close()


def test_a_round_that_asks_ends_it() -> None:
    client = Client()
    client.commit()
    client.run()
    assert client.commit((PATH[0], PATH[1]), gamma=3, running=0) == PATH[2:5]
    assert client.session.last_proposal == list(PATH[2:5])
    client.commit(PATH[2:4])
    assert client.run().draft_token_ids == PATH[4:12]


def test_it_ends_at_a_stop_token_and_where_the_text_must() -> None:
    client = Client(stop_token_ids=frozenset({PATH[4]}))
    client.commit(running=16)
    stop = PATH.index(PATH[4]) + 1
    assert client.run().draft_token_ids == PATH[:stop]
    short = Client(max_tokens=5)
    short.commit(running=16)
    assert short.run().draft_token_ids == PATH[:5]


def test_rejection_asks_for_each_draft() -> None:
    client = Client(sampling=SamplingParams(), verification=Verification.REJECTION)
    with pytest.raises(InvalidArgument, match="running"):
        client.commit()
