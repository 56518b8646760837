"""Fakes of both services, as ``decode.ports`` has them, over a tiny exact language model. Greedy, no network.

They check what they are told as the real services do, so a caller that skips or repeats a token fails here too.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TypeVar

from orchestrator.decode.lookahead import Announcer
from orchestrator.decode.ports import OnAnnouncement
from specgate.errors import OutOfSync, ServiceUnavailable
from specgate.types import (
    AnnouncedProposal,
    Announcement,
    DraftRequest,
    FinishReason,
    FollowUps,
    Proposal,
    RunningDraft,
    SessionSpec,
    TokenIds,
    Verdict,
    VerifyRequest,
)

VOCAB_SIZE = 97
EOS_TOKEN_ID = 0
MODULUS = 1_000_003

T = TypeVar("T")


def fake_hash(token_ids: Sequence[int], salt: int = 0) -> float:
    """Return a number in [0, 1) that depends on the last five tokens and the length."""
    state = len(token_ids) * 7919 + salt * 104_729
    for token_id in token_ids[-5:]:
        state = (state * 31 + token_id + 17) % MODULUS
    return (state * 48_271 % MODULUS) / MODULUS


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A language model that is a hash. ``eos_rate`` of its tokens are EOS_TOKEN_ID."""

    eos_rate: float = 0.0

    def next_token(self, token_ids: Sequence[int]) -> int:
        if fake_hash(token_ids, 1) < self.eos_rate:
            return EOS_TOKEN_ID
        return 1 + int(fake_hash(token_ids) * (VOCAB_SIZE - 1))

    def confidence(self, token_ids: Sequence[int]) -> float:
        """Return the probability of the last of ``token_ids``."""
        return fake_hash(token_ids, 2)

    def generate(self, spec: SessionSpec) -> tuple[int, ...]:
        """Return what this model alone says to ``spec``: what every decode must come to."""
        committed = list(spec.committed_token_ids)
        while len(committed) < spec.max_length:
            committed.append(self.next_token(committed))
            if committed[-1] in spec.stop_token_ids:
                break
        return tuple(committed[len(spec.prompt_token_ids) :])


class Fault(Enum):
    """What a fake does instead of its work."""

    DIE = auto()
    HANG = auto()
    NONSENSE = auto()


@dataclass(slots=True)
class FakeDrafter:
    """Drafts what the target would say, with probability ``agreement`` a token; its first proposal takes ``prefill_s``.

    One that ``announces`` says each proposal but the first before it is asked, and tells who listens of two outcomes:
    the one that comes true and another one. An answer takes ``delay_s``, and ``token_s`` for each token.
    ``faults`` are by the number of proposals made before; ``told`` is what it knows to be committed.
    """

    spec: SessionSpec
    model: FakeModel = FakeModel()
    agreement: float = 0.7
    prefill_s: float = 0.0
    delay_s: float = 0.0
    token_s: float = 0.0
    announces: bool = False
    faults: dict[int, Fault] = field(default_factory=dict)
    told: list[int] = field(default_factory=list)
    requests: list[DraftRequest] = field(default_factory=list)
    closed: bool = False
    num_proposals: int = 0
    on_announcement: OnAnnouncement = lambda: None
    running: RunningDraft | None = None
    known: Announcer = field(default_factory=Announcer)

    def __post_init__(self) -> None:
        self.told.extend(self.spec.committed_token_ids)

    @property
    def position(self) -> int:
        return self.spec.first_position + len(self.told)

    def announced(self, request: DraftRequest) -> Proposal | None:
        if not (self.announces and request.gamma and self.num_proposals):
            return None
        proposal = self._propose([*self.told, *request.token_ids], request)
        return replace(proposal, from_run_ahead=True, draft_us=0, num_prepared=len(proposal))

    async def draft(self, request: DraftRequest) -> Proposal:
        self.requests.append(request)
        if request.position != self.position:
            raise OutOfSync(f"the round starts at {request.position}, the drafter is at {self.position}")
        self.told += request.token_ids
        self.known.commit(request)
        if request.gamma == 0:
            if request.running:
                asyncio.get_running_loop().call_later(self.delay_s, self._run_on, request, tuple(self.told))
            return Proposal()
        await asyncio.sleep(self.delay_s if self.num_proposals else self.prefill_s)
        fault = self.faults.get(self.num_proposals)
        self.num_proposals += 1
        if fault is not None:
            return await _misbehave(fault, Proposal((VOCAB_SIZE,)))
        proposal = self._propose(self.told, request)
        await asyncio.sleep(self.token_s * len(proposal))
        if self.announces:
            self.known.add(self._announcement(proposal.draft_token_ids, request))
            self.on_announcement()
        return replace(proposal, draft_us=proposal.draft_us + int(1e6 * self.token_s * len(proposal)))

    def _run_on(self, request: DraftRequest, told: TokenIds) -> None:
        drafted = self._propose(told, replace(request, gamma=request.running)).draft_token_ids
        self.running = RunningDraft(self.spec.first_position + len(told), drafted)
        self.on_announcement()

    def expected(self, position: int) -> Collection[TokenIds]:
        return self.known.expected(position)

    def listen(self, on_announcement: OnAnnouncement) -> None:
        self.on_announcement = on_announcement

    def _announcement(self, drafted: tuple[int, ...], request: DraftRequest) -> Announcement:
        accepted, own = list[int](), self.model.next_token(self.told)
        while len(accepted) < len(drafted) and own == drafted[len(accepted)]:
            accepted.append(own)
            own = self.model.next_token([*self.told, *accepted])
        told = [*self.told, *accepted]
        proposals = [
            AnnouncedProposal((*accepted, token_id), self._propose([*told, token_id], request).draft_token_ids)
            for token_id in (1 + own % (VOCAB_SIZE - 1), own)
        ]
        return Announcement(self.position, tuple(proposals), request.gamma, request.stop_below)

    def _propose(self, committed: Sequence[int], request: DraftRequest) -> Proposal:
        tokens = list(committed)
        for _ in range(request.gamma):
            token_id = self.model.next_token(tokens)
            if fake_hash(tokens, 3) >= self.agreement:
                token_id = (token_id + 1) % VOCAB_SIZE
            tokens.append(token_id)
            if fake_hash(tokens, 4) < request.stop_below:
                break
        return Proposal(tuple(tokens[len(committed) :]), draft_us=50)

    async def close(self) -> None:
        self.closed = True


@dataclass(slots=True)
class FakeVerifier:
    """Verifies greedily, and goes on alone under the gate.

    ``faults`` are by the number of verdicts given before, so that one can strike inside a solo run. A verdict takes
    ``delay_s``. It says that ``cached_tokens`` of its prompt were cached.
    """

    spec: SessionSpec
    model: FakeModel = FakeModel()
    delay_s: float = 0.0
    cached_tokens: int = 0
    faults: dict[int, Fault] = field(default_factory=dict)
    requests: list[VerifyRequest] = field(default_factory=list)
    closed: bool = False
    num_verdicts: int = 0
    committed: list[int] = field(default_factory=list)
    expected: FollowUps | None = None
    running: RunningDraft | None = None
    followed: VerifyRequest | None = None
    num_followed: int = 0

    def __post_init__(self) -> None:
        self.committed.extend(self.spec.committed_token_ids)

    async def verify(self, request: VerifyRequest) -> AsyncGenerator[Verdict, None]:
        self.requests.append(request)
        if request.position != len(self.committed):
            raise OutOfSync(f"the round starts at {request.position}, the verifier is at {len(self.committed)}")
        followed, self.followed = self.followed, None
        if followed is not None and _draft(request) != _draft(followed):
            raise OutOfSync(f"round {request.round} is not the one that was begun: {followed}")
        draft, solo, budget, last = request.proposal.draft_token_ids, False, request.max_solo_tokens, False
        while not last:
            fault = self.faults.get(self.num_verdicts)
            self.num_verdicts += 1
            if fault is not None:
                yield await _misbehave(fault, Verdict(request.round, num_accepted=len(draft) + 1, token_id=1))
            await asyncio.sleep(self.delay_s)
            start = len(self.committed)
            running = self.running.after(self.committed, request.running_gamma) if self.running and not draft else ()
            verdict = self._judge(request, running or draft, solo and not running, budget)
            verdict = self._follow(replace(verdict, draft_token_ids=running), start)
            last = verdict.last
            yield verdict
            draft, solo, budget = (), True, budget - 1

    def _judge(self, request: VerifyRequest, draft: tuple[int, ...], solo: bool, budget: int) -> Verdict:
        start = len(self.committed)
        num_accepted, own, confidences = 0, None, list[float]()
        while (reason := self._finish_reason(start)) is None and own is None:
            token_id = self.model.next_token(self.committed)
            if num_accepted < len(draft) and draft[num_accepted] == token_id:
                num_accepted += 1
            else:
                own = token_id
            self.committed.append(token_id)
            confidences.append(self.model.confidence(self.committed))
        confidence = confidences[-1]
        goes_on = reason is None and (confidence < request.solo_below or request.running_gamma > 0) and budget > 0
        return Verdict(
            request.round, num_accepted, own, confidence=confidence, solo=solo, last=not goes_on, finish_reason=reason,
            accepted_confidences=tuple(confidences[:num_accepted]), verify_us=100, forward_us=90, batch_sessions=1,
            batch_rows=len(draft) + 1, cached_tokens=self.cached_tokens,
        )  # fmt: skip

    def expect(self, follow_ups: FollowUps) -> None:
        self.expected = follow_ups

    def run_on(self, draft: RunningDraft) -> None:
        self.running = draft

    def _follow(self, verdict: Verdict, start: int) -> Verdict:
        expected = self.expected
        if expected is None or not verdict.last or verdict.finish_reason is not None:
            return verdict
        number, self.followed = expected.following(verdict, start, len(self.committed))
        self.num_followed += number > 0
        return replace(verdict, follow_up=number)

    def _finish_reason(self, start: int) -> FinishReason | None:
        if len(self.committed) > start and self.committed[-1] in self.spec.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.committed) >= self.spec.max_length else None

    async def close(self) -> None:
        self.closed = True


def _draft(request: VerifyRequest) -> tuple[int, int, tuple[int, ...]]:
    return request.round, request.position, request.proposal.draft_token_ids


async def _misbehave(fault: Fault, nonsense: T) -> T:
    if fault is Fault.DIE:
        raise ServiceUnavailable("the fake died")
    if fault is Fault.HANG:
        await asyncio.Event().wait()
    return nonsense
