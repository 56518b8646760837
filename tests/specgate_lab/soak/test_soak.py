"""A soak's tally: which texts count as differing; and a short one, from the command to its picture."""

import json
import random
from pathlib import Path

import pytest

from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InternalError
from specgate.types import Verification
from specgate_lab.soak.clients import Ask, Expected, Tally, Way, draw
from specgate_lab.soak.command import NOTHING, SoakOptions, check_soak, run_soak
from specgate_lab.soak.replicas import Held
from specgate_lab.soak.samples import HoldingSample, Log
from tests.support.orchestrating import Cli

REQUEST = GenerationRequest((), max_tokens=3, seed=1)


def counted(*token_ids: int, leaves_after: int | None = None, near_ties: int = 0) -> Tally:
    tally = Tally()
    tally.add(Ask("def f", REQUEST, Way.GRPC_STREAM, leaves_after), token_ids, Expected((1, 2, 3), near_ties))
    return tally


@pytest.mark.parametrize(
    ("token_ids", "leaves_after", "near_ties", "differs"),
    [
        ((1, 2, 3), None, 0, False),
        ((1, 2, 4), None, 0, True),
        ((1, 2), None, 0, True),
        ((1, 2, 3, 4), None, 0, True),
        # A client that leaves compares what came until then.
        ((1, 2), 1, 0, False),
        ((1, 3), 1, 0, True),
        ((1,), 1, 0, True),
        # A near tie excuses another text, but none that breaks off.
        ((1, 2, 4), None, 1, False),
        ((1, 2), None, 1, True),
    ],
)
def test_which_texts_differ(
    token_ids: tuple[int, ...], leaves_after: int | None, near_ties: int, differs: bool
) -> None:
    tally = counted(*token_ids, leaves_after=leaves_after, near_ties=near_ties)
    assert len(tally.differing) == differs
    assert tally.near_ties == (near_ties and not differs)


@pytest.mark.parametrize(
    ("token_ids", "leaves_after", "differs"),
    [((7, 8, 9), None, 0), ((7, 8), None, 1), ((7, 8, 9, 10), None, 1), ((7,), 0, 0), ((), 0, 1)],
)
def test_where_only_the_law_is_promised_an_answer_is_as_long_as_asked(
    token_ids: tuple[int, ...], leaves_after: int | None, differs: int
) -> None:
    tally = Tally()
    tally.add(Ask("def f", REQUEST, Way.GRPC_STREAM, leaves_after), token_ids, Expected((), 0, is_law=True))
    assert (len(tally.differing), tally.compared_tokens) == (differs, 0)


def with_errors(**counts: int) -> Tally:
    tally = counted(1, 2, 3)
    tally.whole = 100
    for name, count in counts.items():
        getattr(tally, name)["an error"] = count
    return tally


@pytest.mark.parametrize(
    ("tally", "held", "problem"),
    [
        (counted(1, 2, 4), NOTHING, "1 texts differed"),
        (Tally(), NOTHING, "0 were answered"),
        (with_errors(failed=1), NOTHING, "1 requests failed"),
        (with_errors(lost=2), NOTHING, "2 found no service"),
        (counted(1, 2, 3), NOTHING._replace(sessions=1), "nothing is held"),
        (counted(1, 2, 3), NOTHING._replace(replicas=2), "nothing is held"),
    ],
)
def test_what_fails_a_soak(tally: Tally, held: Held, problem: str) -> None:
    check_soak(with_errors(lost=1), Log(samples=[HoldingSample(1.0, (), NOTHING, 1, 1)]))
    with pytest.raises(InternalError, match=problem):
        check_soak(tally, Log(samples=[HoldingSample(1.0, (), held, 1, 1)]))


def test_requests_of_every_kind_are_drawn_and_hardly_one_twice() -> None:
    rng = random.Random(0)
    drawn = [draw(rng) for _ in range(500)]
    requests = [ask.request for ask in drawn]
    assert {ask.way for ask in drawn} == set(Way)
    assert {request.gate for request in requests} == set(Gate)
    assert {request.verification for request in requests} == set(Verification)
    assert {request.grammar is None for request in requests} == {True, False}
    assert {ask.leaves_after is None for ask in drawn} == {True, False}
    assert len({str(ask.kind) for ask in drawn}) > 450
    assert drawn[0] == draw(random.Random(0))


@pytest.mark.parametrize(
    ("flags", "flag"), [("--soak 0", "--soak"), ("--out x", "--out"), ("--soak 1 --rate 1", "--soak")]
)
def test_what_is_asked_for_wrongly_is_refused_by_name(orchestrator: Cli, flags: str, flag: str) -> None:
    code, _, errors = orchestrator("bench", *flags.split())
    assert (code, errors.startswith(f"orchestrator: {flag}: ")) == (2, True), errors


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    run_soak(ModelOptions(), SoakOptions(soak=0.5, out=tmp_path), kill_every_s=10.0)
    told = json.loads((tmp_path / "soak.json").read_text())
    (row,) = told["rows"]
    assert row["answers"] > 20
    assert told["differing"] == []
    assert {kill["role"] for kill in told["kills"]} == {"verifier", "drafter"}
    assert row["still_held"] == "0 sessions, 0 KV tokens"
    assert {one["role"] for one in told["samples"][0]["processes"]} == {"verifier", "drafter", "gateway"}
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    assert "still held: 0 sessions" in capsys.readouterr().out
