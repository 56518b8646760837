"""Coloured tokens, what of them reaches a terminal or a pipe, and the JSON objects."""

import asyncio
import contextlib
import io
import os
from statistics import median
from typing import Any

import pytest
from rich.console import Console
from rich.segment import Segment

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import Delta, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.terminal.render import STYLES, Painter, output_console, until_writable, write
from orchestrator.terminal.results import Collector, error_object, result_object
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.types import FinishReason, TokenLogprobs, TokenSource
from tests.support.patience import patience

ACCEPTED, RECOVERED, BONUS, SOLO, *_ = TokenSource
FOX = "🦊"


def painted(painter: Painter, delta: Delta) -> list[tuple[str, TokenSource]]:
    source_of = {style: source for source, style in STYLES.items()}
    return [(segment.text, source_of[segment.style]) for segment in painter.paint(delta) if segment.style is not None]


def byte_ids(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    """Return one token a byte of ``text``."""
    ((spelled, _),) = tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)
    return tuple(tokenizer.backend.token_to_id(character) for character in spelled)


@pytest.mark.parametrize(
    ("text", "sources", "shown"),
    [
        ("abc", [(ACCEPTED, ACCEPTED, RECOVERED)], [[("a", ACCEPTED), ("b", ACCEPTED), ("c", RECOVERED)]]),
        # A character has the colour of the token that completes it.
        (FOX, [(ACCEPTED, RECOVERED), (ACCEPTED, BONUS)], [[], [(FOX, BONUS)]]),
        (FOX, [(SOLO,)], [[("\ufffd", SOLO)]]),
        # A "b" waits until it is no stop string, and keeps its colour; of a stop string nothing is shown.
        ("aba", [(ACCEPTED, RECOVERED), (SOLO,)], [[("a", ACCEPTED)], [("b", RECOVERED), ("a", SOLO)]]),
        ("abb", [(ACCEPTED, ACCEPTED, BONUS)], [[("a", ACCEPTED)]]),
    ],
    ids=["by source", "whole character", "unfinished character", "held back", "stop string"],
)
def test_each_token_has_the_colour_of_its_source(
    byte_level: TextTokenizer, text: str, sources: list[tuple[TokenSource, ...]], shown: list[Any]
) -> None:
    painter, output = Painter(byte_level.incremental()), OutputText(byte_level.incremental(), ("bb",))
    ids = iter(byte_ids(byte_level, text))
    for group, expected in zip(sources, shown, strict=True):
        # As a session makes deltas, so that their text waits and ends as it really does.
        token_ids = tuple(next(ids) for _ in group)
        readable, kept = output.push(token_ids)
        if group is sources[-1] and not output.stopped:
            readable += output.finish()
        assert painted(painter, Delta(token_ids[:kept], group[:kept], readable)) == expected


def test_without_a_tokenizer_ids_are_shown() -> None:
    delta = Delta((5, 6), (ACCEPTED, BONUS))
    assert painted(Painter(None), delta) == [("5 ", ACCEPTED), ("6 ", BONUS)]


def written(text: str, **settings: Any) -> str:
    stream = io.StringIO()
    write(Console(file=stream, **settings), [Segment(text, STYLES[ACCEPTED])])
    return stream.getvalue()


def test_piped_text_is_left_as_it_is_and_piped_tables_have_room() -> None:
    text = "\tlong " * 50 + "\r\n\x1b[31m  "
    assert written(text, force_terminal=False, width=20) == text
    assert output_console().width == 120


def test_a_terminal_is_not_steered_by_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = written("\x1b]0;title\x07\x9b1m\tok\n", force_terminal=True, no_color=True)
    assert shown == "␛]0;title␇\ufffd1m\tok\n"
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert written("a", force_terminal=True, color_system="standard") == "\x1b[32ma\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert written("a", force_terminal=True, color_system="standard") == "a"


def test_a_result_as_json() -> None:
    collector = Collector()
    collector.add(Delta((1, 2), (ACCEPTED, BONUS), "ab", (TokenLogprobs(-0.5, ((1, -0.5),)),)), 10.0)
    collector.add(Delta((3, 4, 5), (SOLO, SOLO, SOLO), "cde", finish_reason=FinishReason.STOP), 11.5)
    stats = GenerationStats(
        seed=9, prompt_tokens=3, completion_tokens=8, rounds=3, drafted=5, accepted=4, solo_tokens=2,
        target_forwards=4, near_ties=1, drafter_failures=1, verifier_failovers=2, prepared=[True, False, True],
        draft_us=[100, 200, 300], verify_us=[1000, 1000, 1500], round_us=[1150, 1300, 2000],
    )  # fmt: skip
    told = result_object(collector.result(stats))
    assert told["text"] == "abcde"
    assert told["token_ids"] == [1, 2, 3, 4, 5]
    assert told["sources"] == ["accepted", "bonus", "solo", "solo", "solo"]
    assert told["finish_reason"] == "stop"
    assert told["logprobs"] == [{"logprob": -0.5, "top": [{"token_id": 1, "logprob": -0.5}]}]
    figures = {
        "seed": 9, "prompt_tokens": 3, "completion_tokens": 8, "acceptance_rate": 0.8, "tokens_per_forward": 2.0,
        "solo_share": 0.25, "draft_us": 200, "verify_us": 1000, "overhead_us": 100, "run_ahead_hit_rate": 2 / 3,
        "hit_draft_share": median([100 / 1150, 300 / 2000]), "drafter_failures": 1, "verifier_failovers": 2,
        "near_ties": 1,
    }  # fmt: skip
    assert {name: told["stats"][name] for name in figures} == figures
    # The first delta is no part of the rate.
    assert collector.result(stats).tokens_per_s == pytest.approx(2.0)
    assert Collector().result(stats).tokens_per_s is None


def test_an_error_as_json() -> None:
    named, plain = error_object(InvalidArgument("top_k", "is bad")), error_object(ServiceUnavailable("gone"))
    assert named["error"] == {"reason": "INVALID_ARGUMENT", "message": "top_k: is bad", "field": "top_k"}
    assert plain["error"] == {"reason": "SERVICE_UNAVAILABLE", "message": "gone"}


async def test_a_pager_that_is_not_scrolled_does_not_hold_up_the_event_loop() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b" " * 4096)
    with open(reader, "rb", 0) as pager, open(writer, "w") as output:  # noqa: ASYNC230
        waiting = asyncio.create_task(until_writable(Console(file=output)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        pager.read(1 << 16)
        async with patience():
            await waiting
