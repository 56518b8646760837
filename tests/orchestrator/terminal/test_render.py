"""Coloured tokens, the statistics line, and the JSON objects."""

import io
from statistics import median
from typing import Any

import pytest
from rich.console import Console
from rich.segment import Segment

from orchestrator.decode.output_text import OutputText
from orchestrator.decode.request import Delta, GenerationStats
from orchestrator.decode.text import TextTokenizer
from orchestrator.terminal.render import (
    STYLES,
    Painter,
    legend,
    output_console,
    statistics_line,
    write,
)
from orchestrator.terminal.results import Collector, Result, error_object, result_object
from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate.types import FinishReason, TokenLogprobs, TokenSource

ACCEPTED, RECOVERED, BONUS, SOLO = TokenSource
FOX = "🦊"


def painted(painter: Painter, delta: Delta) -> list[tuple[str, TokenSource]]:
    source_of = {style: source for source, style in STYLES.items()}
    return [(segment.text, source_of[segment.style]) for segment in painter.paint(delta) if segment.style is not None]


def deltas_of(
    tokenizer: TextTokenizer, groups: list[tuple[tuple[int, ...], tuple[TokenSource, ...]]], *stop: str
) -> list[Delta]:
    """Make deltas as a session does, so that their text waits and ends as it really does."""
    output = OutputText(tokenizer.incremental(), stop)
    deltas = []
    for index, (token_ids, sources) in enumerate(groups):
        text, kept = output.push(token_ids)
        if index == len(groups) - 1 and not output.stopped:
            text += output.finish()
        deltas.append(Delta(token_ids[:kept], sources[:kept], text))
    return deltas


def test_each_token_has_the_colour_of_its_source(byte_level: TextTokenizer) -> None:
    token_ids = [byte_level.encode(text)[0] for text in "abc"]
    (delta,) = deltas_of(byte_level, [(tuple(token_ids), (ACCEPTED, ACCEPTED, RECOVERED))])
    assert painted(Painter(byte_level.incremental()), delta) == [
        ("a", ACCEPTED),
        ("b", ACCEPTED),
        ("c", RECOVERED),
    ]


def byte_ids(tokenizer: TextTokenizer, text: str) -> tuple[int, ...]:
    """Return one token a byte of ``text``."""
    ((spelled, _),) = tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)
    return tuple(tokenizer.backend.token_to_id(character) for character in spelled)


def test_a_character_has_the_colour_of_the_token_that_completes_it(byte_level: TextTokenizer) -> None:
    fox = byte_ids(byte_level, FOX)
    groups = [(fox[:2], (ACCEPTED, RECOVERED)), (fox[2:], (ACCEPTED, BONUS))]
    painter = Painter(byte_level.incremental())
    assert [painted(painter, delta) for delta in deltas_of(byte_level, groups)] == [[], [(FOX, BONUS)]]


def test_text_held_back_for_a_stop_string_keeps_its_colours(byte_level: TextTokenizer) -> None:
    a, b, c = (byte_level.encode(text)[0] for text in "abc")
    groups = [((a, b), (ACCEPTED, RECOVERED)), ((a, c), (SOLO, BONUS))]
    painter = Painter(byte_level.incremental())
    first, second = (painted(painter, delta) for delta in deltas_of(byte_level, groups, "bb"))
    assert first == [("a", ACCEPTED)]
    assert second == [("b", RECOVERED), ("a", SOLO), ("c", BONUS)]


def test_nothing_is_shown_of_a_stop_string(byte_level: TextTokenizer) -> None:
    a, b = (byte_level.encode(text)[0] for text in "ab")
    painter = Painter(byte_level.incremental())
    (delta,) = deltas_of(byte_level, [((a, b, b), (ACCEPTED, ACCEPTED, BONUS))], "bb")
    assert painted(painter, delta) == [("a", ACCEPTED)]


def test_an_unfinished_character_at_the_end_is_shown(byte_level: TextTokenizer) -> None:
    first_byte = byte_ids(byte_level, FOX)[0]
    painter = Painter(byte_level.incremental())
    (delta,) = deltas_of(byte_level, [((first_byte,), (SOLO,))])
    assert delta.text == "\ufffd"
    assert painted(painter, delta) == [("\ufffd", SOLO)]


def test_without_a_tokenizer_ids_are_shown() -> None:
    delta = Delta((5, 6), (ACCEPTED, BONUS))
    assert painted(Painter(None), delta) == [("5 ", ACCEPTED), ("6 ", BONUS)]


def written(text: str, **settings: Any) -> str:
    stream = io.StringIO()
    write(Console(file=stream, **settings), [Segment(text, STYLES[ACCEPTED])])
    return stream.getvalue()


def test_piped_text_is_left_as_it_is() -> None:
    text = "\tlong " * 50 + "\r\n\x1b[31m  "
    assert written(text, force_terminal=False, width=20) == text


def test_a_terminal_is_not_steered_by_a_model() -> None:
    shown = written("\x1b]0;title\x07\x9b1m\tok\n", force_terminal=True, no_color=True)
    assert shown == "␛]0;title␇\ufffd1m\tok\n"


def test_colours_and_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert written("a", force_terminal=True, color_system="standard") == "\x1b[32ma\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert written("a", force_terminal=True, color_system="standard") == "a"


def test_the_legend_names_every_source() -> None:
    assert all(source.value.split("_")[0] in legend().plain for source in TokenSource)


def test_piped_tables_have_room() -> None:
    assert output_console().width == 120


STATS = GenerationStats(
    seed=9,
    prompt_tokens=3,
    completion_tokens=8,
    rounds=3,
    drafted=5,
    accepted=4,
    solo_tokens=2,
    target_forwards=4,
    near_ties=1,
    drafter_failures=1,
    verifier_failovers=2,
    prepared=[True, False, True],
    draft_us=[100, 200, 300],
    verify_us=[1000, 1000, 1500],
    round_us=[1150, 1300, 2000],
)


def collected() -> Result:
    collector = Collector()
    collector.add(Delta((1, 2), (ACCEPTED, BONUS), "ab", (TokenLogprobs(-0.5, ((1, -0.5),)),)), 10.0)
    collector.add(Delta((3, 4, 5), (SOLO, SOLO, SOLO), "cde", finish_reason=FinishReason.STOP), 11.5)
    return collector.result(STATS)


def test_the_rate_leaves_the_first_delta_out() -> None:
    assert collected().tokens_per_s == pytest.approx(2.0)
    assert Collector().result(STATS).tokens_per_s is None


def test_a_result_as_json() -> None:
    told = result_object(collected())
    assert told["text"] == "abcde"
    assert told["token_ids"] == [1, 2, 3, 4, 5]
    assert told["sources"] == ["accepted", "bonus", "solo", "solo", "solo"]
    assert told["finish_reason"] == "stop"
    assert told["logprobs"] == [{"logprob": -0.5, "top": [{"token_id": 1, "logprob": -0.5}]}]
    stats = told["stats"]
    assert (stats["seed"], stats["prompt_tokens"], stats["completion_tokens"]) == (9, 3, 8)
    assert (stats["acceptance_rate"], stats["tokens_per_forward"], stats["solo_share"]) == (0.8, 2.0, 0.25)
    assert (stats["draft_us"], stats["verify_us"], stats["overhead_us"]) == (200, 1000, 100)
    assert (stats["run_ahead_hit_rate"], stats["hit_draft_share"]) == (2 / 3, median([100 / 1150, 300 / 2000]))
    assert (stats["drafter_failures"], stats["verifier_failovers"], stats["near_ties"]) == (1, 2, 1)


def test_the_statistics_line() -> None:
    line = statistics_line(collected()).plain
    for part in ("8 tokens", "2.0 tokens/s", "acceptance 80%", "2.00 tokens per target forward", "solo 25%"):
        assert part in line
    assert "near ties 1 · failures survived 3 · seed 9" in line


def test_an_error_as_json() -> None:
    assert error_object(InvalidArgument("top_k", "is bad")) == {
        "error": {"reason": "INVALID_ARGUMENT", "message": "top_k: is bad", "field": "top_k"}
    }
    assert error_object(ServiceUnavailable("gone")) == {"error": {"reason": "SERVICE_UNAVAILABLE", "message": "gone"}}
