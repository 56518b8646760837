"""A state machine of sessions on a real drafter and a real verifier: well-behaved ones beside others that are not."""

import asyncio
from collections.abc import Container, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import grpc
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from specgate.rpc.convert import verify_round_to_pb
from specgate.types import ALWAYS_SOLO, Proposal, SamplingParams, VerifyRequest
from specgate.v1 import drafter_service_pb2 as dpb
from specgate.v1 import types_pb2
from specgate.v1 import verifier_service_pb2 as vpb
from tests.support.fuzz_grpc import HANG_S, VOCAB_SIZE, count_faults, spec_to_pb
from tests.support.fuzzing import FuzzCounts
from tests.support.in_process import InProcess
from tests.support.loop_thread import LoopThread

T = TypeVar("T")
MESSAGES: dict[str, Any] = {"drafter": dpb.DraftRequest, "verifier": vpb.VerifyRequest}
MAX_TOKENS = 60
NEIGHBOUR = spec_to_pb(sampling=SamplingParams(temperature=1.0), seed=5, max_tokens=24)
REFUSED = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)


@dataclass
class Open:
    """One open session, and how far both sides should agree that it has come; ``text`` is what it should emit."""

    role: str
    call: Any
    position: int
    round: int = 0
    drafted: int = 0
    last_sent: Any = None
    ended: bool = False
    emitted: list[int] = field(default_factory=list)
    text: Sequence[int] = ()

    def __post_init__(self) -> None:
        self._num_prompt = self.position

    @property
    def num_out(self) -> int:
        """How many tokens have come behind the prompt."""
        return self.position - self._num_prompt

    def coming(self, num: int) -> list[int]:
        """Return the next tokens of its text: other ones are hardly ever accepted."""
        return list(self.text[self.num_out : self.num_out + num])

    async def send(self, **message: Any) -> None:
        self.last_sent = MESSAGES[self.role](**message)
        await self.call.write(self.last_sent)

    async def read(self) -> Any:
        answer = await asyncio.wait_for(self.call.read(), HANG_S)
        assert answer is not grpc.aio.EOF
        return answer

    async def end(self, *, answers: bool = True) -> grpc.StatusCode:
        """Read to the end and return the status. Without ``answers`` nothing may come before it."""
        self.ended = True
        async with asyncio.timeout(HANG_S):
            try:
                while (answer := await self.call.read()) is not grpc.aio.EOF:
                    assert answers or is_announcement(answer), f"answered: {answer}"
            except grpc.aio.AioRpcError:
                pass
            return grpc.StatusCode(await self.call.code())


def is_announcement(answer: Any) -> bool:
    """Return whether a drafter tells what it drafted ahead, which it does unasked."""
    return isinstance(answer, dpb.DraftResponse) and answer.HasField("announced")


class World:
    """Both services, a channel to each, the loop that all of it runs in, and what comes of it."""

    def __init__(self, loop: LoopThread, services: dict[str, InProcess], stubs: dict[str, Any], counts: FuzzCounts):
        self.loop, self.services, self.stubs, self.counts = loop, services, stubs, counts
        self._texts: dict[bytes, list[int]] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns. A hang or a service's fault is counted, and raised."""
        try:
            return self.loop.run(work)
        except TimeoutError:
            self.counts.hangs += 1
            raise
        except grpc.aio.AioRpcError as error:
            count_faults(grpc.StatusCode(error.code()), self.counts)
            raise

    def text(self, spec: types_pb2.SessionSpec) -> list[int]:
        """Return all that a verifier says in a session that behaves."""
        key = spec.SerializeToString()
        if key not in self._texts:
            self._texts[key] = self.run(self._whole_text(spec))
        return self._texts[key]

    async def open(self, role: str, spec: types_pb2.SessionSpec) -> Open:
        stub = self.stubs[role]
        session = Open(role, stub.Draft() if role == "drafter" else stub.Verify(), len(spec.prompt_token_ids))
        await session.send(open=spec)
        assert (await session.read()).opened
        return session

    async def _whole_text(self, spec: types_pb2.SessionSpec) -> list[int]:
        return await finished(await self.open("verifier", spec))


async def finished(session: Open) -> list[int]:
    """Decode a verifier's session to its end, and return all that it emitted."""
    while not session.ended:
        await verify(session)
    await session.call.done_writing()
    assert await session.end() is grpc.StatusCode.OK
    return session.emitted


async def verify(session: Open, draft: Sequence[int] = (), num_solo: int = 0, follow_up: Sequence[int] = ()) -> None:
    """Send a round that is in sync, and read its verdicts, and those of the follow-up that was told before."""
    session.round += 1
    request = VerifyRequest(session.round, session.position, Proposal(tuple(draft)), ALWAYS_SOLO, num_solo)
    await session.send(round=verify_round_to_pb(request))
    await read_verdicts(session, draft, follow_up=follow_up)


async def read_verdicts(
    session: Open, draft: Sequence[int], until_round: int = 0, follow_up: Sequence[int] = ()
) -> None:
    """Read until the last verdict of this round, and of the one with ``follow_up`` for a draft that followed it."""
    while True:
        verdict = await session.read()
        own = [verdict.token_id] if verdict.HasField("token_id") else []
        tokens = [*draft[: verdict.num_accepted], *own]
        session.position += verdict.num_accepted + len(own)
        session.emitted += tokens
        session.round = max(session.round, verdict.round)
        session.ended = bool(verdict.finish_reason)
        if session.ended or (verdict.last and not verdict.follow_up and verdict.round >= until_round):
            return
        if verdict.follow_up:
            draft = follow_up


async def draft(session: Open, gamma: int, num_accepted: int, own: int) -> None:
    """Send a drafter a round that is in sync, and read its proposal."""
    session.round += 1
    num_accepted = min(num_accepted, session.drafted)
    sent = dpb.DraftRound(
        round=session.round, position=session.position, num_accepted=num_accepted, token_ids=[own], gamma=gamma
    )
    await session.send(round=sent)
    session.position, session.drafted = session.position + num_accepted + 1, 0
    while gamma:
        answer = await session.read()
        if not is_announcement(answer):
            session.drafted = len(answer.proposal.draft_token_ids)
            return


TOKENS = st.integers(0, VOCAB_SIZE - 1)
DRAFTS = st.lists(TOKENS, max_size=8)


class SessionMachine(RuleBasedStateMachine):
    """Sessions come, behave or not, and go; what they have emitted is their text, as far as it came. The neighbour
    behaves to its end.
    """

    world: ClassVar[World]
    sessions: Bundle[Open] = Bundle("sessions")

    def __init__(self) -> None:
        super().__init__()
        self._all: list[Open] = []
        self._run = self.world.run

    @initialize()
    def open_neighbour(self) -> None:
        self.world.counts.cases += 1
        self._neighbour = self._run(self.world.open("verifier", NEIGHBOUR))

    @rule()
    def neighbour_goes_on(self) -> None:
        if not self._neighbour.ended:
            self._run(verify(self._neighbour))

    @rule(
        target=sessions,
        role=st.sampled_from(("drafter", "verifier")),
        length=st.sampled_from((1, 2, 9, 300)),
        temperature=st.sampled_from((0.0, 1.0)),
    )
    def open(self, role: str, length: int, temperature: float) -> Open:
        prompt = tuple(index % VOCAB_SIZE for index in range(length))
        sampling = SamplingParams(temperature=temperature)
        spec = spec_to_pb(prompt_token_ids=prompt, sampling=sampling, seed=length, max_tokens=MAX_TOKENS)
        session = self._run(self.world.open(role, spec))
        session.text = self.world.text(spec)
        self._all.append(session)
        return session

    @invariant()
    def all_have_their_text(self) -> None:
        for session in self._all:
            assert session.emitted == session.text[: len(session.emitted)]

    @rule(session=sessions, right=st.integers(0, 8), tokens=DRAFTS, num=st.integers(0, 8), own=TOKENS)
    def go_on(self, session: Open, right: int, tokens: list[int], num: int, own: int) -> None:
        if session.ended or self._is_near_its_end(session):
            return
        if session.role == "drafter":
            self._run(draft(session, len(tokens), num, own))
        else:
            self._run(verify(session, session.coming(right) + tokens, num))

    def _is_near_its_end(self, session: Open) -> bool:
        return session.num_out > MAX_TOKENS - 20

    @rule(session=sessions, right=st.integers(0, 8), tokens=st.lists(TOKENS, min_size=2, max_size=8))
    def say_what_may_follow(self, session: Open, right: int, tokens: list[int]) -> None:
        if session.ended or session.role == "drafter" or self._is_near_its_end(session):
            return
        own, *follow_up = session.coming(right) + tokens
        branches = types_pb2.Branches(num_accepted=[0], num_draft_tokens=[len(follow_up)], token_ids=[own, *follow_up])
        follow_ups = vpb.FollowUps(round=session.round + 2, position=session.position, branches=branches)
        self._run(session.send(follow_ups=follow_ups))
        # What it goes on with is told by verdicts of the next round.
        self._run(verify(session, follow_up=follow_up))

    @rule(session=sessions)
    def overtake(self, session: Open) -> None:
        if session.ended or session.role == "drafter" or self._is_near_its_end(session):
            return
        self._run(_overtake(session))

    @rule(session=consumes(sessions), offset=st.sampled_from((-1000, 1, 7)))
    def out_of_sync(self, session: Open, offset: int) -> None:
        position = max(0, session.position + offset)
        self._refused(session, {"round": _round(session.role, session.round + 1, position)})

    @rule(session=consumes(sessions))
    def replay(self, session: Open) -> None:
        sent = session.last_sent
        kind = sent.WhichOneof("message")
        if kind != "follow_ups":
            self._refused(session, {kind: getattr(sent, kind)})

    @rule(session=consumes(sessions))
    def out_of_order(self, session: Open) -> None:
        self._refused(session, {"round": _round(session.role, 0, 0)})

    def _refused(self, session: Open, message: dict[str, Any]) -> None:
        if not session.ended:
            self._run(session.send(**message))
            self._ends(session, REFUSED, answers=False)

    def _ends(self, session: Open, codes: Container[grpc.StatusCode], *, answers: bool) -> None:
        code = self._run(session.end(answers=answers))
        count_faults(code, self.world.counts)
        assert code in codes

    @rule(session=consumes(sessions))
    def abandon(self, session: Open) -> None:
        self._run(_cancelled(session.call))

    @rule(session=consumes(sessions), in_a_round=st.booleans())
    def half_close(self, session: Open, in_a_round: bool) -> None:
        if session.ended:
            return
        if in_a_round:
            self._run(session.send(round=_round(session.role, session.round + 1, session.position)))
        self._run(session.call.done_writing())
        self._ends(session, (grpc.StatusCode.OK,), answers=True)

    def teardown(self) -> None:
        """Leave all sessions; the neighbour's text must be the one it has alone, and no page may be left."""
        for session in self._all:
            self._run(_cancelled(session.call))
        if not hasattr(self, "_neighbour"):
            return
        assert self._run(finished(self._neighbour)) == self.world.text(NEIGHBOUR)
        for service in self.world.services.values():
            self._run(service.settled())
        self.world.counts.done += 1


def _round(role: str, number: int, position: int) -> Any:
    if role == "drafter":
        return dpb.DraftRound(round=number, position=position, token_ids=[1], gamma=1)
    return verify_round_to_pb(VerifyRequest(number, position, Proposal(), 0.0, 0))


async def _overtake(session: Open) -> None:
    """Send a second round into the solo run of the first, from behind its first verdict."""
    session.round += 1
    first = VerifyRequest(session.round, session.position, Proposal(), ALWAYS_SOLO, 10)
    await session.send(round=verify_round_to_pb(first))
    verdict = await session.read()
    session.position += 1
    session.emitted.append(verdict.token_id)
    second = VerifyRequest(session.round + 1, session.position, Proposal(), 0.0, 0)
    await session.send(round=verify_round_to_pb(second))
    await read_verdicts(session, (), until_round=second.round)


async def _cancelled(call: Any) -> None:
    call.cancel()
