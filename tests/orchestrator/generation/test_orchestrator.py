"""The facade over real gRPC with the fake model behind both services."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from orchestrator.decode.request import Delta, GenerationRequest, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.generation.orchestrator import Generation, Orchestrator, between_events
from orchestrator.policy.auto.costs import Costs, MeasuredCosts
from orchestrator.policy.gates import Gate
from orchestrator.services.pool import StaticPool
from orchestrator.services.timeouts import Timeouts
from specgate.errors import InvalidArgument, ServiceUnavailable, TokenizerMismatch
from specgate.types import FinishReason, ForwardCost, SamplingParams, SessionSpec
from tests.orchestrator.api.queues import PATIENT, expected
from tests.support.decoding import PROMPT
from tests.support.fake_services import FakeService, serving, unused_endpoint
from tests.support.fakes import VOCAB_SIZE, FakeDrafter, FakeModel, FakeVerifier
from tests.support.patience import eventually, patience

REQUEST = GenerationRequest(PROMPT, max_tokens=60, seed=7, gate=Gate.NONE)
"""``auto`` would soon ask no drafter that is as slow beside its target as a fake."""


@asynccontextmanager
async def connected(
    verifiers: list[FakeService],
    drafters: list[FakeService] | None = None,
    tokenizer: TextTokenizer | None = None,
    timeouts: Timeouts = PATIENT,
) -> AsyncIterator[Orchestrator]:
    pool = StaticPool([one.endpoint for one in verifiers], recheck_interval_s=0.05)
    helpers = StaticPool([one.endpoint for one in drafters], recheck_interval_s=0.05) if drafters else None
    async with await Orchestrator.connect(pool, helpers, tokenizer, timeouts=timeouts) as orchestrator:
        yield orchestrator


class Served(NamedTuple):
    """A connected pair."""

    orchestrator: Orchestrator
    verifier: FakeService
    drafter: FakeService

    async def freed(self) -> None:
        """Wait until no session is open."""
        await eventually(lambda: not (self.verifier.num_open or self.drafter.num_open))


@asynccontextmanager
async def pair(
    make_verifier: Callable[[SessionSpec], FakeVerifier] | None = None,
    make_drafter: Callable[[SessionSpec], FakeDrafter] | None = None,
    tokenizer: TextTokenizer | None = None,
    **info: Any,
) -> AsyncIterator[Served]:
    """A connected pair; ``info`` changes what both say of themselves."""
    async with (
        serving("verifier", make_verifier, **info) as verifier,
        serving("drafter", make_drafter, **info) as drafter,
        connected([verifier], [drafter], tokenizer) as orchestrator,
    ):
        yield Served(orchestrator, verifier, drafter)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with pair() as served:
        yield served


async def run(generation: Generation) -> tuple[int, ...]:
    return tuple([token_id async for delta in generation for token_id in delta.token_ids])


async def answered(orchestrator: Orchestrator, request: GenerationRequest = REQUEST) -> GenerationStats:
    """Check that a request comes to the target's own text, and return how."""
    generation = orchestrator.generate(request)
    assert await run(generation) == expected(request)
    return generation.stats


async def rest_of(deltas: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in deltas]


@pytest.mark.parametrize("gate", Gate)
@pytest.mark.parametrize("gamma", [0, 1, 4])
async def test_generate(served: Served, gate: Gate, gamma: int) -> None:
    request = replace(REQUEST, gate=gate, gamma=gamma)
    generation = served.orchestrator.generate(request)
    assert generation.finish_reason is None
    assert await run(generation) == generation.token_ids == expected(request)
    assert generation.finish_reason is FinishReason.LENGTH
    assert generation.text == ""
    stats = generation.stats
    assert (stats.seed, stats.prompt_tokens, stats.completion_tokens) == (7, 3, 60)
    assert (stats.accepted > 0) == (gamma > 0)
    assert stats.drafter_failures == stats.verifier_failovers == 0
    assert all(round_us >= 0 for round_us in stats.round_us)
    assert bool(served.drafter.sessions) == (gamma > 0)
    await served.freed()


async def test_what_it_knows_of_the_models_and_what_services_are_told_of_a_request(served: Served) -> None:
    orchestrator, verifier, drafter = served
    assert (orchestrator.target_info, orchestrator.draft_info) == (verifier.info, drafter.info)
    sampling = SamplingParams(temperature=0.5, top_k=9)
    await run(orchestrator.generate(replace(REQUEST, sampling=sampling, stop_token_ids=frozenset({9}), gamma=2)))
    assert drafter.sessions[0].spec == verifier.sessions[0].spec
    spec = verifier.sessions[0].spec
    assert (spec.sampling, spec.seed, spec.stop_token_ids, spec.vocab_size) == (sampling, 7, {0, 9}, VOCAB_SIZE)
    assert spec.tokenizer_fingerprint == verifier.info.tokenizer_fingerprint


async def test_a_text_that_takes_long_to_read_is_waited_for() -> None:
    """Its verifier has told what a forward takes."""
    hasty = replace(PATIENT, first_verdict_s=0.01, verdict_floor_s=0.01)
    for forward_us, num_lost in ((100_000, 0), (10, 1)):
        costs = (ForwardCost(1, forward_us),)
        async with (
            serving("verifier", partial(FakeVerifier, delay_s=0.1), forward_costs=costs) as verifier,
            connected([verifier], timeouts=replace(hasty, failover_s=0.1)) as orchestrator,
        ):
            generation = orchestrator.generate(replace(REQUEST, gamma=0))
            with nullcontext() if num_lost == 0 else pytest.raises(ServiceUnavailable):
                await run(generation)
            assert (generation.stats.verifier_failovers > 0) == (num_lost > 0)


async def test_the_longest_request_and_a_seed_that_nobody_chose() -> None:
    async with serving("verifier", context_length=43) as verifier, connected([verifier]) as orchestrator:
        await answered(orchestrator, replace(REQUEST, max_tokens=40))
        generations = [orchestrator.generate(replace(REQUEST, seed=None, max_tokens=2)) for _ in range(4)]
        for generation in generations:
            await run(generation)
            assert generation.stats.seed == verifier.sessions[-1].spec.seed
        assert len({generation.stats.seed for generation in generations}) == 4
        assert orchestrator.generate(replace(REQUEST, seed=0, max_tokens=2)).stats.seed == 0


async def test_end_of_sequence() -> None:
    model = FakeModel(eos_rate=0.2)
    async with pair(partial(FakeVerifier, model=model), partial(FakeDrafter, model=model)) as served:
        stopped = served.orchestrator.generate(REQUEST)
        assert await run(stopped) == expected(REQUEST, 0.2)
        assert stopped.finish_reason is FinishReason.STOP
        ignoring = replace(REQUEST, ignore_eos=True)
        assert await run(served.orchestrator.generate(ignoring)) == expected(ignoring, 0.2)


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
async def test_request_that_does_not_fit(served: Served, changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        served.orchestrator.generate(replace(REQUEST, **changes))
    assert caught.value.field == field
    assert not served.verifier.sessions


async def test_text_and_stop_strings(byte_level: TextTokenizer) -> None:
    """The fake model's ids, read by a tokenizer that has them all."""
    async with pair(tokenizer=byte_level, tokenizer_fingerprint={}) as served:
        whole = served.orchestrator.generate(REQUEST)
        text = "".join([delta.text async for delta in whole])
        assert text == whole.text == byte_level.decode(expected(REQUEST))
        stop = text[20:23]
        cut = served.orchestrator.generate(replace(REQUEST, stop=(stop,)))
        await run(cut)
        assert cut.text == text[: text.index(stop)]
        assert cut.finish_reason is FinishReason.STOP
        assert cut.token_ids == expected(REQUEST)[: len(cut.token_ids)]
        await served.freed()


@pytest.mark.parametrize(
    ("target", "draft", "info", "error", "words"),
    [
        ("verifier", "drafter", {"tokenizer_fingerprint": {"vocabulary": "x"}}, TokenizerMismatch, "vocabulary"),
        ("verifier", "drafter", {"proto_version": "specgate.v9"}, InvalidArgument, r"specgate\.v9"),
        ("drafter", "verifier", {}, InvalidArgument, "not a verifier"),
    ],
    ids=["tokenizers_differ", "another_contract", "mixed_up"],
)
async def test_services_that_do_not_fit_are_refused(
    target: str, draft: str, info: dict[str, Any], error, words: str
) -> None:
    async with serving(target) as first, serving(draft, **info) as second:
        with pytest.raises(error, match=words):
            async with connected([first], [second]):
                pass


async def test_tokenizer_of_another_model_is_refused(served: Served, byte_level: TextTokenizer) -> None:
    with pytest.raises(TokenizerMismatch, match="vocabulary"):
        async with connected([served.verifier], None, byte_level):
            pass


async def test_no_verifier() -> None:
    with pytest.raises(ServiceUnavailable, match="verifier"):
        await Orchestrator.connect(StaticPool([unused_endpoint()]), timeouts=Timeouts(connect_s=0.3))


async def test_drafter_that_comes_up_later(served: Served) -> None:
    _, verifier, drafter = served
    await drafter.stop()
    async with connected([verifier], [drafter], timeouts=Timeouts(connect_drafter_s=0.5)) as orchestrator:
        assert orchestrator.draft_info is None
        assert (await answered(orchestrator)).accepted == 0
        await drafter.restart()
        await asyncio.sleep(0.3)
        assert (await answered(orchestrator)).accepted > 0
        assert orchestrator.draft_info == drafter.info


def holding(num_tokens: int) -> Callable[[SessionSpec], FakeDrafter]:
    """Drafters that refuse what is too long for them, as real ones do."""

    def make(spec: SessionSpec) -> FakeDrafter:
        if len(spec.committed_token_ids) >= num_tokens:
            raise InvalidArgument("prompt_token_ids", "more than the draft model holds")
        return FakeDrafter(spec, FakeModel())

    return make


LONG = GenerationRequest(tuple(range(1, 31)), seed=7, max_tokens=20, gate=Gate.NONE)


async def test_a_drafter_that_holds_less_than_others(served: Served) -> None:
    _, verifier, drafter = served
    async with (
        serving("drafter", holding(24), context_length=24) as smaller,
        connected([verifier], [drafter, smaller]) as orchestrator,
    ):
        # Which of the two a session comes to is drawn.
        while not (drafter.sessions and smaller.sessions):
            await answered(orchestrator)
        for request in (LONG, REQUEST) * 8:
            assert (await answered(orchestrator, request)).drafter_failures == 0
        assert all(len(session.told) <= 24 for session in smaller.sessions)
        assert any(len(session.told) > 24 for session in drafter.sessions)


async def test_a_drafter_that_comes_back_with_less_memory(served: Served) -> None:
    drafter = served.drafter
    await answered(served.orchestrator)
    drafter.make, drafter.info = holding(24), replace(drafter.info, context_length=24)
    for request in (LONG, REQUEST):
        assert (await answered(served.orchestrator, request)).drafter_failures == 0
    assert len(drafter.sessions[-1].told) <= 24


async def test_a_later_endpoint_that_is_no_drafter(served: Served) -> None:
    async with serving("verifier") as other:
        await served.drafter.stop()
        await other.server.drain()
        await other.start(int(served.drafter.endpoint.rpartition(":")[2]))
        assert (await answered(served.orchestrator)).drafter_failures >= 1


# Whatever ends a generation, both services are free again.


async def test_leaving_early_frees_both(served: Served) -> None:
    generation = served.orchestrator.generate(REQUEST)
    async for _ in generation:
        with pytest.raises(RuntimeError, match="once"):
            await run(generation)
        break
    await served.freed()
    assert await run(generation) == ()
    assert generation.finish_reason is None
    assert len(served.verifier.sessions) == len(served.drafter.sessions) == 1
    async with served.orchestrator.generate(REQUEST) as generation:
        deltas = aiter(generation)
        await anext(deltas)
    await served.freed()
    assert await rest_of(deltas) == []


class Hanging(FakeVerifier):
    async def verify(self, request):
        await asyncio.Event().wait()
        yield


@pytest.mark.parametrize("closes", ["generation", "orchestrator"])
async def test_closing_it_from_another_task_ends_one_that_waits(closes: str) -> None:
    async with pair(Hanging) as served:
        generation = served.orchestrator.generate(REQUEST)
        task = asyncio.create_task(run(generation))
        await asyncio.sleep(0.1)
        close = generation.aclose if closes == "generation" else served.orchestrator.close
        await close()
        assert await task == ()
        await served.freed()
        await close()


async def test_a_learner_that_breaks_keeps_no_session_open(served: Served) -> None:
    class Breaking(Costs):
        breaks = True

        def leave(self, session: int) -> None:
            if self.breaks:
                raise ZeroDivisionError

    served.orchestrator.learner.costs = costs = Breaking(MeasuredCosts)
    generation = served.orchestrator.generate(REQUEST)
    deltas = aiter(generation)
    await anext(deltas)
    with pytest.raises(ZeroDivisionError):
        await generation.aclose()
    await served.freed()
    costs.breaks = False
    assert await rest_of(deltas) == []


async def test_auto_learns_from_the_rounds_of_all_requests_and_those_that_broke_off_are_no_load(served: Served) -> None:
    for _ in range(6):
        async with served.orchestrator.generate(REQUEST) as generation:
            async for _ in generation:
                if len(generation.token_ids) > 9:
                    break
    for gate in (Gate.NONE, Gate.AUTO, Gate.AUTO):
        await answered(served.orchestrator, replace(REQUEST, gate=gate, gamma=8, ignore_eos=True))
    prices = served.orchestrator.learner.costs.now()
    assert prices is not None
    # What the fake says of its forwards came over the wire.
    assert prices.forward_us(6) == pytest.approx(90, rel=0.2)
    assert prices.sessions == 1


async def test_requests_on_two_verifiers_do_not_share_one() -> None:
    async with serving("verifier") as one, serving("verifier") as other, connected([one, other]) as orchestrator:
        generations = [orchestrator.generate(REQUEST) for _ in range(4)]
        texts = [aiter(generation) for generation in generations]
        for text in texts:
            await anext(text)
        assert orchestrator.learner.costs.sessions == 2
        for generation in generations:
            await generation.aclose()
        assert orchestrator.learner.costs.sessions == 1


DEAR = (ForwardCost(1, 1000), ForwardCost(8, 1400))


@pytest.mark.parametrize(("gate", "num_sessions"), [(Gate.AUTO, 0), (Gate.NONE, 1)])
async def test_a_drafter_that_told_that_it_is_too_dear_reads_no_prompt(gate: Gate, num_sessions: int) -> None:
    async with pair(forward_costs=DEAR) as served:
        stats = await answered(served.orchestrator, replace(REQUEST, gate=gate))
        assert len(served.drafter.sessions) == num_sessions
        assert (stats.rounds > 0) == (num_sessions > 0)


def work(log: list[str]) -> Iterator[None]:
    for step in range(3):
        log.append(f"step {step}")
        yield
    log.append("end")


async def test_events_come_between_steps() -> None:
    log: list[str] = []
    between_events(work(log))
    assert log == []
    async with patience():
        while "end" not in log:
            log.append("event")
            await asyncio.sleep(0)
    steps = [log.index(f"step {step}") for step in range(3)]
    assert all("event" in log[early:late] for early, late in pairwise(steps))
