"""vLLM's OpenAI API while things happen to the drafter: no request fails, and the same text comes."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.fake_services import FakeService, unused_endpoint
from tests.support.fake_services import serving as serving_fake
from tests.support.loop_thread import LoopThread
from tests.support.services import HELD_OUT_PROMPTS, PAIR, Service, running
from tests.vllm_real.conftest import AddRow
from tests.vllm_real.engine import Server, drafting, offline, serving, speculation

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(3600)]

NUM_TOKENS, NUM_REQUESTS, KILL_EVERY_S = 300, 200, 20.0
LONGEST_GAP_MS = 1000.0
LEAST_RATIO = 0.9
"""Of a single run on a machine with neighbours; the figure itself is in the table."""
JOB = {"batch": 1, "temperature": 0.0, "max_tokens": NUM_TOKENS}
Act = Callable[[Service], None]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    return [list(tokenizer(text)["input_ids"]) for text in HELD_OUT_PROMPTS]


def watched(
    server: Server, prompt: list[int], at_100: Callable[[], object] = lambda: None
) -> tuple[list[int], float, float]:
    """Return a stream's tokens, its longest gap in ms, and its rate after the first second behind token 100."""
    pieces: list[tuple[float, int]] = []
    ids: list[int] = []
    for at_s, new in server.stream(prompt, NUM_TOKENS):
        if len(ids) < 100 <= len(ids) + len(new):
            at_100()
        ids += new
        pieces.append((at_s, len(ids)))
    gap_ms = max(later - sooner for (sooner, _), (later, _) in pairwise(pieces)) * 1000
    begun_s = next(at_s for at_s, number in pieces if number >= 100) + 1.0
    rest = [(at_s, number) for at_s, number in pieces if at_s >= begun_s]
    rate = (rest[-1][1] - rest[0][1]) / (rest[-1][0] - rest[0][0]) if len(rest) > 1 else float("nan")
    return ids, gap_ms, rate


def restart(drafter: Service) -> None:
    drafter.kill()
    drafter.start()


FAULTS: dict[str, Act] = {
    "frozen": lambda drafter: drafter.signal(signal.SIGSTOP),
    "killed": Service.kill,
    "restarted": restart,
}


@pytest.fixture(scope="module")
def empty(prompts: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a proposer that drafts nothing comes to."""
    folder, nothing = tmp_path_factory.mktemp("empty"), speculation("proposers.Empty")
    (found,) = offline(folder, PAIR / "target", prompts[:3], JOB, speculative_config=nothing)
    return found


@contextmanager
def slow() -> Iterator[Service]:
    """Each forward takes a tenth of a second."""
    module = ("tests.support.slow_service", "drafter", "100000")
    with running("drafter", PAIR / "draft", module=module, prefix=("taskset", "-c", "1")) as service:
        yield service


@contextmanager
def of_another_model() -> Iterator[FakeService]:
    """Its token ids mean something else, and it does not say so."""
    with LoopThread() as loop, loop.entered(serving_fake("drafter")) as service:
        yield service


@pytest.mark.parametrize("drafter", [slow, of_another_model])
def test_a_drafter_that_is_no_help(
    drafter: Callable[[], Any], prompts: list[list[int]], empty: dict[str, Any], row: AddRow, tmp_path: Path
) -> None:
    with drafter() as service:
        (found,) = offline(tmp_path, PAIR / "target", prompts[:3], JOB, **drafting(service.endpoint))
    ratio = found["tokens_per_s"] / empty["tokens_per_s"]
    is_same = found["texts"] == empty["texts"]
    row(f"fault: a drafter that is {drafter.__name__}", ratio_to_empty=ratio, text_equal=str(is_same))
    assert is_same
    assert ratio > LEAST_RATIO


def test_faults_under_a_stream(prompts: list[list[int]], empty: Any, row: AddRow, tmp_path: Path) -> None:
    with (
        running("drafter", PAIR / "draft", prefix=("taskset", "-c", "1")) as drafter,
        serving(
            tmp_path, PAIR / "target", drafter.endpoint, unused_endpoint(), stats=tmp_path / "stats.json"
        ) as server,
    ):
        watched(server, prompts[0])
        expected, gap_ms, _ = watched(server, prompts[0])
        row("fault: none", gap_ms=gap_ms)
        for name, harm in FAULTS.items():
            ids, gap_ms, rate = watched(server, prompts[0], partial(harm, drafter))
            drafter.signal(signal.SIGCONT)
            row(
                f"fault: {name}",
                gap_ms=gap_ms,
                ratio_to_empty=rate / empty["tokens_per_s"],
                text_equal=str(ids == expected),
            )
            assert ids == expected
            assert gap_ms < LONGEST_GAP_MS
            if not drafter.pid:
                drafter.start()
            comes_back(server, prompts[0])


def comes_back(server: Server, prompt: list[int]) -> None:
    """Wait until drafts are accepted again."""
    give_up_at_s = time.monotonic() + 60
    while True:
        before = accepted(server)
        watched(server, prompt)
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
        running("drafter", PAIR / "draft") as drafter,
        serving(tmp_path, PAIR / "target", drafter.endpoint, stats=stats) as server,
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
