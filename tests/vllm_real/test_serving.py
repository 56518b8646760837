"""vLLM's OpenAI API while things happen to the drafter: no request fails, and the same text comes."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest
from transformers import AutoTokenizer

from tests.real import pair as smollm2
from tests.support.fake_services import FakeService, unused_endpoint
from tests.support.fake_services import serving as serving_fake
from tests.support.loop_thread import LoopThread
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running
from tests.vllm_real.conftest import AddRow
from tests.vllm_real.engine import Server, drafting, serving, speculation

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

NUM_TOKENS, HARM_AT, NUM_STREAMS = 900, 100, 3
NUM_REQUESTS, KILL_EVERY_S = 200, 20.0
LONGEST_GAP_MS = 1000.0
LEAST_RATIO = 0.9
"""Of a few streams on a machine with neighbours; the figure itself is in the table."""
ON_CORE_1 = ("taskset", "-c", "1")
Act = Callable[[Service], None]


@pytest.fixture(scope="module", autouse=True)
def on_the_drafters_core() -> Iterator[None]:
    """Keep this process, which reads streams and serves fakes, off vLLM's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {1})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    return [list(tokenizer(text)["input_ids"]) for text in HELD_OUT_PROMPTS]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM with a proposer that drafts nothing, beside the others: what a fault's rate is compared with."""
    nothing = {"speculative_config": speculation("proposers.Empty")}
    with serving(tmp_path_factory.mktemp("empty"), PAIR / "target", nothing) as server:
        yield server


class Watched(NamedTuple):
    """A stream: its tokens, its longest gap, and its rate from a second behind token 100 on."""

    ids: list[int]
    gap_ms: float
    tokens_per_s: float


def watch(server: Server, prompt: list[int], harm: Callable[[], object] = lambda: None) -> Watched:
    """Read a stream; at its token 100 the harm begins."""
    ids: list[int] = []
    pieces: list[tuple[float, int]] = []
    with ThreadPoolExecutor(1) as beside:
        for at_s, new in server.stream(prompt, NUM_TOKENS):
            if len(ids) < HARM_AT <= len(ids) + len(new):
                beside.submit(harm)
            ids += new
            pieces.append((at_s, len(ids)))
    gap_ms = max(later - sooner for (sooner, _), (later, _) in pairwise(pieces)) * 1000
    begun_s = next(at_s for at_s, number in pieces if number >= HARM_AT) + 1.0
    (first_s, first), *_, (last_s, last) = (one for one in pieces if one[0] >= begun_s)
    return Watched(ids, gap_ms, (last - first) / (last_s - first_s))


def check(
    name: str, server: Server, empty: Server, prompts: Sequence[list[int]], row: AddRow, *harm: Callable[[], object]
) -> None:
    """Compare streams with vLLM that has no drafts, each right after one on the same core. The first one is harmed."""
    found, ratios = [], []
    for number, prompt in enumerate(prompts[:NUM_STREAMS]):
        one, expected = watch(server, prompt, *(harm if number == 0 else ())), watch(empty, prompt)
        assert one.ids == expected.ids
        found.append(one)
        ratios.append(one.tokens_per_s / expected.tokens_per_s)
    gap_ms = max(one.gap_ms for one in found)
    row(f"fault: {name}", gap_ms=gap_ms, ratio_to_empty=median(ratios), text_equal=f"{len(found)} of {NUM_STREAMS}")
    assert gap_ms < LONGEST_GAP_MS
    assert median(ratios) > LEAST_RATIO


def restart(drafter: Service) -> None:
    drafter.kill()
    drafter.start()


FAULTS: dict[str, Act] = {
    "none": lambda _: None,
    "frozen": lambda drafter: drafter.signal(signal.SIGSTOP),
    "killed": Service.kill,
    "killed and started again": restart,
}


@contextmanager
def slow() -> Iterator[Service]:
    """Each forward takes a tenth of a second."""
    module = ("tests.support.slow_service", "drafter", "100000")
    with running("drafter", PAIR / "draft", module=module, prefix=ON_CORE_1) as service:
        yield service


@contextmanager
def of_another_model() -> Iterator[FakeService]:
    """Its token ids mean something else, and it does not say so."""
    with LoopThread() as loop, loop.entered(serving_fake("drafter")) as service:
        yield service


@contextmanager
def talking_nonsense() -> Iterator[FakeService]:
    """It sends a token that nobody has."""

    def answer(response: Any) -> Any:
        response.proposal.draft_token_ids[:] = [1 << 20]
        return response

    with of_another_model() as service:
        service.answer = answer
        yield service


@contextmanager
def of_another_tokenizer() -> Iterator[Service]:
    """It refuses."""
    if not smollm2.DRAFT.exists():
        pytest.skip("no real pair: run scripts/real_model")
    with running("drafter", smollm2.DRAFT, prefix=ON_CORE_1) as service:
        yield service


@pytest.mark.parametrize("drafter", [slow, of_another_model, talking_nonsense, of_another_tokenizer])
def test_a_drafter_that_is_no_help(
    drafter: Callable[[], Any], prompts: list[list[int]], empty: Server, row: AddRow, tmp_path: Path
) -> None:
    with drafter() as service, serving(tmp_path, PAIR / "target", drafting(service.endpoint)) as server:
        watch(server, prompts[3])
        check(f"a drafter {drafter.__name__.replace('_', ' ')}", server, empty, prompts, row)


def test_faults_under_a_stream(prompts: list[list[int]], empty: Server, row: AddRow, tmp_path: Path) -> None:
    """The second address is nobody's."""
    with running("drafter", PAIR / "draft", prefix=ON_CORE_1) as drafter:
        llm = drafting(drafter.endpoint, unused_endpoint())
        with serving(tmp_path, PAIR / "target", llm) as server:
            watch(server, prompts[3])
            for name, harm in FAULTS.items():
                check(name, server, empty, prompts, row, partial(harm, drafter))
                drafter.signal(signal.SIGCONT)
                if not drafter.pid:
                    drafter.start()
                comes_back(server, prompts[0])


def comes_back(server: Server, prompt: list[int]) -> None:
    """Wait until drafts are accepted again."""
    give_up_at_s = time.monotonic() + 60
    while True:
        before = accepted(server)
        watch(server, prompt)
        if accepted(server) > before + NUM_TOKENS // 2:
            return
        assert time.monotonic() < give_up_at_s


def accepted(server: Server) -> float:
    lines = server.get("/metrics")[1].splitlines()
    return sum(
        float(one.rsplit(" ", 1)[1]) for one in lines if one.startswith("vllm:spec_decode_num_accepted_tokens_total")
    )


def test_no_request_fails_while_drafters_are_killed(prompts: list[list[int]], row: AddRow, tmp_path: Path) -> None:
    stats, done, kills = tmp_path / "stats.json", threading.Event(), 0

    def ask(number: int) -> int:
        pieces = server.stream(prompts[number % len(prompts)], 32 + number % 64)
        return sum(len(new) for _, new in pieces) - (32 + number % 64)

    def kill() -> None:
        nonlocal kills
        while not done.wait(KILL_EVERY_S):
            drafter.kill()
            drafter.start()
            kills += 1

    with (
        running("drafter", PAIR / "draft", prefix=ON_CORE_1) as drafter,
        serving(tmp_path, PAIR / "target", drafting(drafter.endpoint, stats=str(stats))) as server,
    ):
        killing = threading.Thread(target=kill)
        killing.start()
        try:
            with ThreadPoolExecutor(8) as pool:
                missing = list(pool.map(ask, range(NUM_REQUESTS)))
                # As many more as it takes for a kill to happen.
                while not kills:
                    missing += pool.map(ask, range(40))
        finally:
            done.set()
            killing.join()
    counted = json.loads(stats.read_text())
    num_failed = sum(one != 0 for one in missing)
    row("served: a drafter killed every 20 s", answers=len(missing), num_failed=num_failed, kills=kills)
    assert num_failed == 0
    assert counted["sessions"] > 0
