"""A soak's books: which texts count as differing; and a short one, from the command to its picture."""

import json
import random
from pathlib import Path

import pytest
from specgate_lab.soak.asks import Ask, Way, catalogue, draw
from specgate_lab.soak.options import SoakOptions

from orchestrator.terminal.model_options import ModelOptions
from specgate.errors import InternalError
from specgate_lab.soak.clients import Expected, Tally
from specgate_lab.soak.command import NOTHING, check_soak, run_soak
from specgate_lab.soak.samples import Log, Sample
from tests.support.orchestrating import Cli

EXPECTED = Expected((1, 2, 3), near_ties=0)
TEXT, REQUEST = catalogue()[0]


def counted(*token_ids: int, leaves_after: int | None = None, expected: Expected = EXPECTED) -> Tally:
    tally = Tally()
    tally.add(Ask(0, TEXT, REQUEST, Way.GRPC_STREAM, leaves_after), token_ids, expected)
    return tally


def test_a_text_differs_by_a_token_or_by_its_length() -> None:
    assert counted(1, 2, 3).differing == []
    assert len(counted(1, 2, 4).differing) == len(counted(1, 2).differing) == len(counted(1, 2, 3, 4).differing) == 1


def test_who_leaves_compares_what_came_until_then() -> None:
    assert counted(1, 2, leaves_after=1).differing == []
    assert len(counted(1, 3, leaves_after=1).differing) == len(counted(1, leaves_after=1).differing) == 1


def test_a_near_tie_excuses_a_text() -> None:
    tally = counted(1, 2, 4, expected=Expected((1, 2, 3), near_ties=1))
    assert (tally.differing, tally.near_ties) == ([], 1)
    assert len(counted(1, 2, expected=Expected((1, 2, 3), near_ties=1)).differing) == 1


def test_a_soak_fails_for_no_answer_for_a_text_that_differs_and_for_what_is_not_known_to_be_free() -> None:
    log = Log(samples=[Sample(1.0, (), NOTHING, 1, 1)])
    check_soak(counted(1, 2, 3), log)
    with pytest.raises(InternalError, match="1 texts differed"):
        check_soak(counted(1, 2, 4), log)
    with pytest.raises(InternalError, match="nothing was answered"):
        check_soak(Tally(), log)
    for held in (NOTHING._replace(sessions=1), NOTHING._replace(replicas=2)):
        log.samples.append(Sample(2.0, (), held, 1, 1))
        with pytest.raises(InternalError, match="nothing is held"):
            check_soak(counted(1, 2, 3), log)


def test_every_kind_of_request_is_drawn_and_each_has_its_own_answer() -> None:
    asked = catalogue()
    drawn = [draw(random.Random(0), asked)] + [draw(random.Random(seed), asked) for seed in range(500)]
    assert {ask.way for ask in drawn} == set(Way)
    assert {ask.number for ask in drawn} == set(range(len(asked)))
    assert any(ask.leaves_after is not None for ask in drawn)
    assert len(
        {(text, request.max_tokens, request.seed, request.sampling.temperature) for text, request in asked}
    ) == len(asked)


def test_what_is_asked_for_wrongly_is_refused_by_name(orchestrator: Cli) -> None:
    for flags, told in (
        (("--soak", "0"), "--soak"),
        (("--out", "x"), "--out"),
        (("--soak", "1", "--rate", "1"), "--soak"),
    ):
        code, _, errors = orchestrator("bench", *flags)
        assert (code, errors.startswith(f"orchestrator: {told}: ")) == (2, True), errors


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
