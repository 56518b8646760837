"""The decode loop in one thread, without services: a drafting and a verifying session, round by round."""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

from drafter_svc.drafter import DraftSession
from drafter_svc.sources.source import Announce
from specgate.runtime.grammar import Grammars
from specgate.runtime.sampling_step import ForwardResult
from specgate.runtime.scheduler import ForwardRequest
from specgate.types import (
    Announcement,
    DraftRequest,
    FinishReason,
    Proposal,
    SamplingParams,
    SessionSpec,
    Verdict,
    Verification,
    VerifyRequest,
)
from tests.support.models import KnownModel, Runner, Work, on
from verifier_svc.verifier import VerifySession

T = TypeVar("T")
VOCAB_SIZE = 16
PROMPT = (1, 2, 3)
GREEDY = SamplingParams(temperature=0.0)
Ids = tuple[int, ...]


def known_model() -> KnownModel:
    """A model whose logits a test can compute itself."""
    return KnownModel(VOCAB_SIZE, seed=3, gain=3.0)


def make_spec(**fields: Any) -> SessionSpec:
    """A greedy session of 20 tokens after ``PROMPT``, but for ``fields``."""
    settings: dict[str, Any] = {
        "prompt_token_ids": PROMPT, "sampling": GREEDY, "seed": 1, "verification": Verification.SHARED_NOISE,
        "max_tokens": 20, **fields,
    }  # fmt: skip
    return SessionSpec(**settings)


def greedy_path(model: KnownModel, length: int, prefix: Ids = PROMPT) -> Ids:
    """What the model says to ``prefix``, greedily."""
    path: Ids = ()
    for _ in range(length):
        path += (int(model.logits((*prefix, *path)).argmax()),)
    return path


class Pair(NamedTuple):
    """Two models on their serving paths."""

    target: Runner
    draft: Runner


class Plan(NamedTuple):
    """What the loop asks for in every round.

    ``overtake``: the next round is drafted from the first verdict of a solo run, and arrives when the run has made
    that many more tokens, as a client does that drafts while the target is alone.

    ``ahead``: how many outcomes the drafter guesses while the target judges; each gets ``ahead_steps`` forwards.
    """

    gamma: int = 0
    stop_below: float = 0.0
    solo_below: float = 0.0
    max_solo_tokens: int = 1 << 20
    overtake: int | None = None
    ahead: int = 0
    ahead_steps: int | None = None


class Generation(NamedTuple):
    """What a loop emitted, and how it came about: one entry of ``verdicts`` a round."""

    token_ids: list[int]
    proposals: list[Proposal]
    verdicts: list[list[Verdict]]

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.verdicts[-1][-1].finish_reason

    @property
    def near_ties(self) -> int:
        return sum(verdict.near_ties for verdicts in self.verdicts for verdict in verdicts)

    @property
    def num_accepted(self) -> int:
        return sum(verdict.num_accepted for verdicts in self.verdicts for verdict in verdicts)

    @property
    def num_solo(self) -> int:
        return sum(verdict.solo for verdicts in self.verdicts for verdict in verdicts)


def was_interrupted(verdicts: list[Verdict]) -> bool:
    """Say whether a round's solo run was cut short by the next round."""
    return len(verdicts) > 1 and verdicts[-1].num_emitted == 0


Calls = Generator[tuple[Runner, Generator[ForwardRequest, ForwardResult, Any]], Any, T]
"""Tasks one after the other, each with the runner that it is for; receives their results."""
MakeDraft = Callable[..., DraftSession]
Use = Callable[[Proposal], Proposal]


def as_it_is(proposal: Proposal) -> Proposal:
    """Use every proposal, whatever is in it: the only lossless way."""
    return proposal


def decode(
    pair: Pair,
    spec: SessionSpec,
    plan: Plan,
    *,
    make_draft: MakeDraft = DraftSession,
    use: Use = as_it_is,
    grammars: Grammars | None = None,
) -> Work[Generation]:
    """The decode loop, without services: one drafting and one verifying session, round by round.

    Args:
        make_draft, use: what a test replaces to see that it notices.
        grammars: of the specification's, where it has one.
    """
    drafter = open_session(make_draft, spec, pair.draft, grammars)
    verifier = open_session(VerifySession, spec, pair.target, grammars)
    try:
        return (yield from _by_steps(DecodeLoop(pair, plan, drafter, verifier, use).run()))
    finally:
        drafter.free()
        verifier.free()


def open_session(make: Callable[..., T], spec: SessionSpec, runner: Runner, grammars: Grammars | None = None) -> T:
    """Open a drafting or a verifying session."""
    if grammars is not None and spec.grammar is not None:
        make = partial(make, grammar=grammars.state(spec, runner.vocab_size))
    return make(spec, runner.pool, runner.vocab_size, runner.loaded.context_length)


def _by_steps(calls: Calls[T]) -> Work[T]:
    result: Any = None
    while True:
        try:
            runner, task = calls.send(result)
        except StopIteration as stop:
            return stop.value
        result = yield from on(runner, task)


def cut_short(
    task: Generator[ForwardRequest, ForwardResult, Any], num_steps: int | None
) -> Generator[ForwardRequest, ForwardResult, None]:
    """Run a task for so many forwards, None is to its end, and leave it there."""
    answer: ForwardResult | None = None
    for step in count():
        try:
            need = next(task) if answer is None else task.send(answer)
        except StopIteration:
            return
        if step == num_steps:
            return task.close()
        answer = yield need


def guessing(
    drafter: DraftSession, num_rows: int, num_steps: int | None = None, announce: Announce | None = None
) -> Iterator[Generator[ForwardRequest, ForwardResult, None]]:
    """Yield the tasks that run ahead of the verdict, each for so many forwards, before the next one is asked for."""
    tasks: deque[tuple[Generator[ForwardRequest, ForwardResult, Any], Future[Any]]] = deque()

    def submit(task: Generator[ForwardRequest, ForwardResult, Any]) -> "Future[Any]":
        tasks.append((task, Future()))
        return tasks[-1][1]

    drafter.ahead.start(num_rows, submit, announce)
    while tasks:
        task, job = tasks.popleft()
        yield cut_short(task, num_steps)
        if num_steps is None:
            job.set_result(None)


def unheard(announcement: Announcement) -> None:
    """Nobody listens. Yet only what can be told of is prepared more than a round ahead."""


class DecodeLoop:
    """The client's side of one session: what it has seen, and what it asks for next."""

    def __init__(
        self, pair: Pair, plan: Plan, drafter: DraftSession, verifier: VerifySession, use: Use = as_it_is
    ) -> None:
        self.pair, self.plan, self.use = pair, plan, use
        self.drafter, self.verifier = drafter, verifier
        self.tokens = list(verifier.spec.committed_token_ids)
        self.seen = len(self.tokens)
        self.closed = self.overtaking = False
        self.generation = Generation([], [], [])

    def run(self) -> Calls[Generation]:
        yield self.pair.draft, self.drafter.warm()
        yield self.pair.target, self.verifier.prefill()
        while not self.generation.verdicts or self.generation.finish_reason is None:
            proposal = self.use((yield self.pair.draft, self.drafter.draft(self._draft_request())))
            for task in guessing(self.drafter, self.plan.ahead, self.plan.ahead_steps, unheard):
                yield self.pair.draft, task
            verdicts: list[Verdict] = []
            self.verifier.resume()
            yield self.pair.target, self.verifier.verify(*self._verify_arguments(proposal, verdicts))
            self._commit(proposal, verdicts)
        return self.generation

    def _draft_request(self) -> DraftRequest:
        wanted = 0 if self.closed and not self.overtaking else self.plan.gamma
        known = self.drafter.num_committed
        return DraftRequest(
            round=len(self.generation.verdicts),
            position=known,
            token_ids=tuple(self.tokens[known : self.seen]),
            gamma=min(wanted, self.verifier.spec.max_length - self.seen - 1),
            stop_below=self.plan.stop_below,
        )

    def _verify_arguments(
        self, proposal: Proposal, verdicts: list[Verdict]
    ) -> tuple[VerifyRequest, Callable[[Verdict], None]]:
        round_index, overtake = len(self.generation.verdicts), self.plan.overtake

        def emit(verdict: Verdict) -> None:
            verdicts.append(verdict)
            if overtake is not None and not self.overtaking and len(verdicts) == 1 + overtake:
                self.verifier.interrupt()

        request = VerifyRequest(round_index, self.seen, proposal, self.plan.solo_below, self.plan.max_solo_tokens)
        return request, emit

    def _commit(self, proposal: Proposal, verdicts: list[Verdict]) -> None:
        unseen, before = len(self.tokens) - self.seen, len(self.tokens)
        for verdict in verdicts:
            self.tokens += proposal.draft_token_ids[unseen : unseen + verdict.num_accepted]
            self.tokens += [] if verdict.token_id is None else [verdict.token_id]
            if verdict.num_emitted:
                self.closed = verdict.confidence < self.plan.solo_below
        self.overtaking = was_interrupted(verdicts)
        self.seen = before + verdicts[0].num_emitted if self.overtaking else len(self.tokens)
        self.generation.token_ids.extend(self.tokens[before:])
        self.generation.proposals.append(proposal)
        self.generation.verdicts.append(verdicts)
