"""The facade over real gRPC with the fake model behind both services."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from orchestrator.decode.request import Delta, GenerationRequest
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from orchestrator.services.timeouts import Timeouts
from specgate.errors import InvalidArgument, ServiceUnavailable, SpecgateError, TokenizerMismatch, TooManySessions
from specgate.types import FinishReason, SamplingParams, SessionSpec, TokenSource, Verification
from tests.support.decoding import PROMPT, target_alone
from tests.support.fake_services import FakeService, serving, silent, unused_endpoint
from tests.support.fakes import EOS_TOKEN_ID, VOCAB_SIZE, FakeDrafter, FakeModel, FakeVerifier, Fault

PATIENT = Timeouts(connect_s=30.0, connect_drafter_s=30.0, open_s=30.0, draft_floor_s=60.0, verdict_floor_s=60.0)
"""A busy machine adds no faults of its own."""
REQUEST = GenerationRequest(PROMPT, max_tokens=60, seed=7)


def expected(request: GenerationRequest, eos_rate: float = 0.0) -> tuple[int, ...]:
    stop = request.stop_token_ids | (frozenset() if request.ignore_eos else {EOS_TOKEN_ID})
    spec = SessionSpec(request.prompt_token_ids, request.sampling, 7, request.verification, request.max_tokens)
    return FakeModel(eos_rate).generate(
        SessionSpec(spec.prompt_token_ids, spec.sampling, 7, spec.verification, spec.max_tokens, stop_token_ids=stop)
    )


@asynccontextmanager
async def connected(
    verifiers: list[FakeService],
    drafters: list[FakeService] | None = None,
    tokenizer: TextTokenizer | None = None,
    timeouts: Timeouts = PATIENT,
) -> AsyncIterator[Orchestrator]:
    pools = [
        StaticPool([one.endpoint for one in services], recheck_interval_s=0.05) if services else None
        for services in (verifiers, drafters)
    ]
    assert pools[0] is not None
    async with await Orchestrator.connect(pools[0], pools[1], tokenizer, timeouts=timeouts) as orchestrator:
        yield orchestrator


@pytest.fixture
async def verifier() -> AsyncIterator[FakeService]:
    async with serving("verifier") as service:
        yield service


@pytest.fixture
async def drafter() -> AsyncIterator[FakeService]:
    async with serving("drafter") as service:
        yield service


@pytest.fixture
async def orchestrator(verifier: FakeService, drafter: FakeService) -> AsyncIterator[Orchestrator]:
    async with connected([verifier], [drafter]) as orchestrator:
        yield orchestrator


async def run(generation: Generation) -> tuple[int, ...]:
    return tuple([token_id async for delta in generation for token_id in delta.token_ids])


async def free(*services: FakeService) -> None:
    async with asyncio.timeout(30):
        while any(service.num_open for service in services):  # noqa: ASYNC110 - plain counters
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize("gamma", [0, 1, 4])
async def test_generate(
    orchestrator: Orchestrator, drafter: FakeService, verifier: FakeService, gate: Gate, gamma: int
) -> None:
    request = GenerationRequest(PROMPT, max_tokens=60, seed=7, gate=gate, gamma=gamma)
    generation = orchestrator.generate(request)
    assert generation.finish_reason is None
    assert await run(generation) == generation.token_ids == expected(request)
    assert generation.finish_reason is FinishReason.LENGTH
    assert generation.text == ""
    stats = generation.stats
    assert (stats.seed, stats.prompt_tokens, stats.completion_tokens) == (7, 3, 60)
    assert (stats.accepted > 0) == (gamma > 0)
    assert stats.drafter_failures == stats.verifier_failovers == 0
    assert all(round_us >= 0 for round_us in stats.round_us)
    assert bool(drafter.sessions) == (gamma > 0)
    await free(drafter, verifier)


async def test_what_it_knows_of_the_models(
    orchestrator: Orchestrator, drafter: FakeService, verifier: FakeService
) -> None:
    assert orchestrator.target_info == verifier.info
    assert orchestrator.draft_info == drafter.info


async def test_spec_that_services_get(orchestrator: Orchestrator, drafter: FakeService, verifier: FakeService) -> None:
    sampling = SamplingParams(temperature=0.5, top_k=9)
    request = GenerationRequest(
        PROMPT, sampling, 20, 7, (), frozenset({9}), gamma=2, verification=Verification.SHARED_NOISE, logprobs=None
    )
    await run(orchestrator.generate(request))
    assert drafter.sessions[0].spec == verifier.sessions[0].spec
    spec = verifier.sessions[0].spec
    assert (spec.sampling, spec.seed, spec.stop_token_ids, spec.vocab_size) == (sampling, 7, {0, 9}, VOCAB_SIZE)
    assert spec.tokenizer_fingerprint == verifier.info.tokenizer_fingerprint


async def test_end_of_sequence() -> None:
    model = FakeModel(eos_rate=0.2)
    async with (
        serving("verifier", partial(FakeVerifier, model=model)) as verifier,
        serving("drafter", partial(FakeDrafter, model=model)) as drafter,
        connected([verifier], [drafter]) as orchestrator,
    ):
        stopped = orchestrator.generate(REQUEST)
        assert await run(stopped) == expected(REQUEST, 0.2)
        assert stopped.finish_reason is FinishReason.STOP
        ignoring = GenerationRequest(PROMPT, max_tokens=60, seed=7, ignore_eos=True)
        assert await run(orchestrator.generate(ignoring)) == expected(ignoring, 0.2)


async def test_seed_that_nobody_chose_is_told(orchestrator: Orchestrator, verifier: FakeService) -> None:
    seeds = set()
    for _ in range(4):
        generation = orchestrator.generate(GenerationRequest(PROMPT, max_tokens=2))
        await run(generation)
        assert generation.stats.seed == verifier.sessions[-1].spec.seed
        seeds.add(generation.stats.seed)
    assert len(seeds) == 4


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"prompt_token_ids": ()}, "prompt_token_ids", "empty"),
        ({"prompt_token_ids": (1, VOCAB_SIZE)}, "prompt_token_ids", str(VOCAB_SIZE)),
        ({"prompt_token_ids": (1, -1)}, "prompt_token_ids", "-1"),
        ({"stop_token_ids": frozenset({VOCAB_SIZE})}, "stop_token_ids", str(VOCAB_SIZE)),
        ({"sampling": SamplingParams(logit_bias={VOCAB_SIZE: 1.0})}, "logit_bias", str(VOCAB_SIZE)),
        ({"max_tokens": 0}, "max_tokens", "0"),
        ({"max_tokens": 510}, "max_tokens", "512"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"stop": ("END",)}, "stop", "tokenizer"),
        ({"seed": -1}, "seed", "-1"),
    ],
    ids=str,
)
async def test_request_that_does_not_fit(
    orchestrator: Orchestrator, verifier: FakeService, changes: dict[str, Any], field: str, words: str
) -> None:
    values = {"prompt_token_ids": PROMPT, "max_tokens": 10, **changes}
    with pytest.raises(InvalidArgument, match=words) as caught:
        orchestrator.generate(GenerationRequest(**values))
    assert caught.value.field == field
    assert not verifier.sessions


async def test_longest_request() -> None:
    async with serving("verifier", context_length=43) as verifier, connected([verifier]) as orchestrator:
        longest = GenerationRequest(PROMPT, max_tokens=40, seed=7)
        assert await run(orchestrator.generate(longest)) == expected(longest)


async def test_text_and_stop_strings(byte_level: TextTokenizer) -> None:
    """The fake model's ids, read by a tokenizer that has them all."""
    async with (
        serving("verifier", tokenizer_fingerprint={}) as verifier,
        serving("drafter", tokenizer_fingerprint={}) as drafter,
        connected([verifier], [drafter], byte_level) as orchestrator,
    ):
        whole = orchestrator.generate(REQUEST)
        text = "".join([delta.text async for delta in whole])
        assert text == whole.text == byte_level.decode(expected(REQUEST))
        stop = text[20:23]
        cut = orchestrator.generate(GenerationRequest(PROMPT, max_tokens=60, seed=7, stop=(stop,)))
        await run(cut)
        assert cut.text == text[: text.index(stop)]
        assert cut.finish_reason is FinishReason.STOP
        assert cut.token_ids == expected(REQUEST)[: len(cut.token_ids)]
        await free(verifier, drafter)


async def test_tokenizers_of_the_pair_differ(verifier: FakeService) -> None:
    async with serving("drafter", tokenizer_fingerprint={"vocabulary": "other"}) as drafter:
        with pytest.raises(TokenizerMismatch, match="vocabulary"):
            async with connected([verifier], [drafter]):
                pass


async def test_tokenizer_of_another_model(verifier: FakeService, byte_level: TextTokenizer) -> None:
    with pytest.raises(TokenizerMismatch, match="vocabulary"):
        async with connected([verifier], None, byte_level):
            pass


async def test_services_mixed_up(verifier: FakeService, drafter: FakeService) -> None:
    with pytest.raises(InvalidArgument, match="not a verifier"):
        async with connected([drafter], [verifier]):
            pass


async def test_another_version_of_the_contract() -> None:
    async with serving("verifier", proto_version="specgate.v9") as verifier:
        with pytest.raises(InvalidArgument, match=r"specgate\.v9"):
            async with connected([verifier]):
                pass


async def test_no_verifier() -> None:
    endpoint = unused_endpoint()
    with pytest.raises(ServiceUnavailable, match="verifier"):
        await Orchestrator.connect(StaticPool([endpoint]), timeouts=Timeouts(connect_s=0.3))


async def test_one_dead_verifier_among_two(verifier: FakeService) -> None:
    for _ in range(4):
        pool = StaticPool([unused_endpoint(), verifier.endpoint])
        async with await Orchestrator.connect(pool, timeouts=PATIENT) as orchestrator:
            assert await run(orchestrator.generate(REQUEST)) == expected(REQUEST)


async def test_drafter_that_comes_up_later(verifier: FakeService, drafter: FakeService) -> None:
    await drafter.stop()
    async with connected([verifier], [drafter], timeouts=Timeouts(connect_drafter_s=0.5)) as orchestrator:
        assert orchestrator.draft_info is None
        alone = orchestrator.generate(REQUEST)
        assert await run(alone) == expected(REQUEST)
        assert alone.stats.accepted == 0
        await drafter.restart()
        await asyncio.sleep(0.3)
        helped = orchestrator.generate(REQUEST)
        assert await run(helped) == expected(REQUEST)
        assert helped.stats.accepted > 0
        assert orchestrator.draft_info == drafter.info


def holding(num_tokens: int) -> Callable[[SessionSpec], FakeDrafter]:
    """Drafters that refuse what is too long for them, as real ones do."""

    def make(spec: SessionSpec) -> FakeDrafter:
        if len(spec.committed_token_ids) >= num_tokens:
            raise InvalidArgument("prompt_token_ids", "more than the draft model holds")
        return FakeDrafter(spec, FakeModel())

    return make


LONG = GenerationRequest(tuple(range(1, 31)), seed=7, max_tokens=20)


async def test_a_drafter_that_holds_less_than_others(drafter: FakeService, verifier: FakeService) -> None:
    async with (
        serving("drafter", holding(24), context_length=24) as smaller,
        connected([verifier], [drafter, smaller]) as orchestrator,
    ):
        # Which of the two a session comes to is drawn.
        while not (drafter.sessions and smaller.sessions):
            for request in (LONG, REQUEST):
                assert await run(orchestrator.generate(request)) == expected(request)
        for request in (LONG, REQUEST) * 4:
            generation = orchestrator.generate(request)
            assert await run(generation) == expected(request)
            assert generation.stats.drafter_failures == 0
        assert all(len(session.told) <= 24 for session in smaller.sessions)
        assert any(len(session.told) > 24 for session in drafter.sessions)


async def test_a_drafter_that_comes_back_with_less_memory(drafter: FakeService, verifier: FakeService) -> None:
    async with connected([verifier], [drafter]) as orchestrator:
        await run(orchestrator.generate(REQUEST))
        drafter.make, drafter.info = holding(24), replace(drafter.info, context_length=24)
        for request in (LONG, REQUEST):
            generation = orchestrator.generate(request)
            assert await run(generation) == expected(request)
            assert generation.stats.drafter_failures == 0
        assert len(drafter.sessions[-1].told) <= 24


async def test_a_later_endpoint_that_is_no_drafter(drafter: FakeService, verifier: FakeService) -> None:
    async with connected([verifier], [drafter]) as orchestrator, serving("verifier") as other:
        await drafter.stop()
        await other.server.drain()
        await other.start(int(drafter.endpoint.rpartition(":")[2]))
        generation = orchestrator.generate(REQUEST)
        assert await run(generation) == expected(REQUEST)
        assert generation.stats.drafter_failures >= 1


async def test_stopped_drafter(verifier: FakeService) -> None:
    with silent() as endpoint:
        pool = StaticPool([endpoint])
        timeouts = Timeouts(connect_drafter_s=1.0, open_s=1.0)
        async with await Orchestrator.connect(StaticPool([verifier.endpoint]), pool, timeouts=timeouts) as orchestrator:
            generation = orchestrator.generate(REQUEST)
            assert await run(generation) == expected(REQUEST)
            assert generation.stats.drafter_failures == 1


async def test_drafter_killed_and_back_in_mid_request(drafter: FakeService) -> None:
    async with (
        serving("verifier", partial(FakeVerifier, delay_s=0.01)) as verifier,
        connected([verifier], [drafter]) as orchestrator,
    ):
        request = GenerationRequest(PROMPT, max_tokens=300, seed=7, gate=Gate.NONE)
        generation, killed = orchestrator.generate(request), False
        sources: list[TokenSource] = []
        async for delta in generation:
            sources += delta.sources
            if not killed and len(sources) > 50:
                await drafter.stop()
                await drafter.restart()
                killed = True
        assert generation.token_ids == expected(request)
        assert generation.stats.drafter_failures == 1
        assert len(drafter.sessions) == 2
        assert TokenSource.ACCEPTED in sources[sources.index(TokenSource.SOLO) :]


@pytest.mark.parametrize("fault", [Fault.DIE, Fault.NONSENSE])
async def test_verifier_fails_over(fault: Fault, drafter: FakeService) -> None:
    async with (
        serving("verifier", partial(FakeVerifier, faults={8: fault})) as first,
        serving("verifier") as second,
        connected([first, second], [drafter]) as orchestrator,
    ):
        for _ in range(3):
            assert await run(orchestrator.generate(REQUEST)) == expected(REQUEST)
        await free(first, second, drafter)


async def test_last_verifier_killed(verifier: FakeService, drafter: FakeService) -> None:
    async with connected([verifier], [drafter], timeouts=Timeouts(failover_s=1.0)) as orchestrator:
        generation = orchestrator.generate(REQUEST)
        start = asyncio.get_running_loop().time()
        await anext(deltas := aiter(generation))
        await verifier.stop()
        with pytest.raises(ServiceUnavailable, match="emitted tokens"):
            await last_of(deltas)
        assert asyncio.get_running_loop().time() - start < 10.0
        await free(drafter)


async def last_of(deltas: AsyncIterator[Delta]) -> None:
    async for _ in deltas:
        pass


async def test_full_verifier(orchestrator: Orchestrator, verifier: FakeService) -> None:
    verifier.refusal = TooManySessions("full")
    with pytest.raises(TooManySessions) as caught:
        await run(orchestrator.generate(REQUEST))
    assert caught.value.retry_after_s is not None


async def test_leaving_early_frees_both(
    orchestrator: Orchestrator, verifier: FakeService, drafter: FakeService
) -> None:
    generation = orchestrator.generate(REQUEST)
    async for _ in generation:
        break
    await free(verifier, drafter)
    assert generation.finish_reason is None
    assert len(verifier.sessions) == len(drafter.sessions) == 1


async def test_leaving_the_block_frees_both(
    orchestrator: Orchestrator, verifier: FakeService, drafter: FakeService
) -> None:
    async with orchestrator.generate(REQUEST) as generation:
        deltas = aiter(generation)
        await anext(deltas)
    await free(verifier, drafter)
    assert [delta async for delta in deltas] == []


async def test_cancelled_reader_frees_both(
    orchestrator: Orchestrator, verifier: FakeService, drafter: FakeService
) -> None:
    async def read() -> None:
        async for _ in orchestrator.generate(REQUEST):
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await asyncio.sleep(0.1)
    assert verifier.num_open == drafter.num_open == 1
    task.cancel()
    await asyncio.wait((task,))
    await free(verifier, drafter)


class Hanging(FakeVerifier):
    async def verify(self, request):
        await asyncio.Event().wait()
        yield


async def test_closed_by_another_task_while_it_waits(drafter: FakeService) -> None:
    async with (
        serving("verifier", Hanging) as verifier,
        connected([verifier], [drafter]) as orchestrator,
    ):
        generation = orchestrator.generate(REQUEST)
        task = asyncio.create_task(run(generation))
        await asyncio.sleep(0.1)
        await generation.aclose()
        assert await task == ()
        await free(verifier, drafter)
        await generation.aclose()


async def test_requests_that_broke_off_are_no_load_for_auto(orchestrator: Orchestrator) -> None:
    for _ in range(6):
        async with orchestrator.generate(REQUEST) as generation:
            async for _ in generation:
                if len(generation.token_ids) > 9:
                    break
    await run(orchestrator.generate(REQUEST))
    prices = orchestrator.learner.costs.now()
    assert prices is not None
    assert prices.sessions == 1


async def test_a_learner_that_breaks_keeps_no_session_open(
    orchestrator: Orchestrator, verifier: FakeService, drafter: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    generation = orchestrator.generate(REQUEST)
    deltas = aiter(generation)
    await anext(deltas)
    with monkeypatch.context() as patch:
        patch.setattr(orchestrator.learner, "leave", breaks)
        with pytest.raises(ZeroDivisionError):
            await generation.aclose()
        await free(verifier, drafter)
    assert [delta async for delta in deltas] == []


async def test_closing_the_orchestrator_ends_what_runs(drafter: FakeService) -> None:
    async with serving("verifier", Hanging) as verifier:
        async with connected([verifier], [drafter]) as orchestrator:
            task = asyncio.create_task(run(orchestrator.generate(REQUEST)))
            await asyncio.sleep(0.1)
        assert await task == ()
        await free(verifier, drafter)
        await orchestrator.close()


async def test_iterated_once(orchestrator: Orchestrator) -> None:
    generation = orchestrator.generate(REQUEST)
    first = aiter(generation)
    await anext(first)
    with pytest.raises(RuntimeError):
        await anext(aiter(generation))
    await generation.aclose()
    assert await run(generation) == ()


async def test_many_at_once(orchestrator: Orchestrator, verifier: FakeService, drafter: FakeService) -> None:
    requests = [GenerationRequest((1, 2, index + 1), max_tokens=80, seed=index) for index in range(12)]
    results = await asyncio.gather(*(run(orchestrator.generate(request)) for request in requests))
    assert list(results) == [expected(request) for request in requests]
    await free(verifier, drafter)


async def test_failure_of_a_verifier_is_not_hidden(drafter: FakeService) -> None:
    class Broken(FakeVerifier):
        async def verify(self, request):
            raise InvalidArgument("round", "no")
            yield

    async with serving("verifier", Broken) as verifier, connected([verifier], [drafter]) as orchestrator:
        with pytest.raises(SpecgateError):
            await run(orchestrator.generate(REQUEST))
        await free(drafter, verifier)


def test_fake_target_alone_is_what_it_says() -> None:
    assert target_alone(SessionSpec(PROMPT, SamplingParams(), 7, Verification.SHARED_NOISE, 60)) == expected(REQUEST)


async def test_auto_learns_from_the_rounds_of_all_requests(verifier: FakeService, drafter: FakeService) -> None:
    async with connected([verifier], [drafter]) as orchestrator:
        for gate in (Gate.NONE, Gate.AUTO, Gate.AUTO):
            request = GenerationRequest(PROMPT, max_tokens=60, seed=7, gate=gate, gamma=8, ignore_eos=True)
            generation = orchestrator.generate(request)
            assert tuple([token async for delta in generation for token in delta.token_ids]) == expected(request)
        prices = orchestrator.learner.costs.now()
    assert prices is not None
    # What the fake says of its forwards came over the wire.
    assert prices.forward(1) == pytest.approx(90, rel=0.1)
    assert prices.sessions == 1
