"""Readers of calls: what they find does not depend on where the text is cut, and nothing of it is lost."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.api.http.tools.calls import Arguments, CallReader
from tests.support.tool_calls import FORMATS, NAMES, Read, read, spelled

CITY = '{ "city": "Tai\\"pei}\\\\", "days": 3 }'
"""Its own spelling, with what looks like an end."""
MARKS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"]
PIECES = [
    *MARKS, "<tool", "_call>", "[TOOL", "weather", "now", "nowhere", "{", "}", "[", "]", ";", ",", ":", '"', "\\",
    " ", "\n", "é", "🦉", "text", '{"name": "now", "arguments": ', '{"name": "weather", "parameters": ', "{}", CITY,
    "{a}",     '"name": ', '"id": 5, ', "NaN", "1e999", "9" * 40,
    *(spelled(one, ("now", "{}"), ("weather", CITY)) for one in FORMATS.values()),
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)


def in_pieces(reader: CallReader, pieces: list[str]) -> Read:
    return read([*(event for piece in pieces for event in reader.push(piece)), *reader.finish()])


def free(name: str, *, parallel: bool = True) -> CallReader:
    return FORMATS[name].free(NAMES, parallel=parallel)


def cut(text: str, places: list[float]) -> list[str]:
    bounds = [0, *sorted(int(place * len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60)
@given(text=TEXTS, places=st.lists(st.floats(0, 1), max_size=6), parallel=st.booleans())
def test_any_text_reads_the_same_wherever_it_is_cut(name: str, text: str, places: list[float], parallel: bool) -> None:
    whole = in_pieces(free(name, parallel=parallel), [text])
    assert in_pieces(free(name, parallel=parallel), cut(text, places)) == whole
    assert in_pieces(free(name, parallel=parallel), list(text)) == whole
    assert len(whole.calls) <= 1 or parallel
    # Nothing is lost: what is left of the text without the calls' own words is content.
    left = whole.content + "".join(name + arguments for name, arguments in whole.calls)
    wanted = re.sub(r"\s", "", text)
    for letter in set(re.sub(r'[\s\w<>\[\]{}|/",:;]', "", text)):
        assert left.count(letter) == wanted.count(letter)
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("calls", [[("weather", CITY)], [("now", "{}"), ("weather", CITY), ("now", "{ }")]])
def test_calls_among_text(name: str, calls: list[tuple[str, str]]) -> None:
    written = spelled(FORMATS[name], *calls)
    assert in_pieces(free(name), list(written)) == Read("", calls)
    assert in_pieces(free(name), list(f" \n{written}\n")) == Read("", calls)
    assert in_pieces(free(name), list(f"{written}\nSo. ")) == Read("So. ", calls)
    if name == "llama3":
        assert in_pieces(free(name), list(f"I see. {written}")) == Read(f"I see. {written}", [])
        written = f"<|python_tag|>{spelled(FORMATS[name], calls[0])}"
        calls = calls[:1]
    assert in_pieces(free(name), list(f"I  see.\n {written} So, ")) == Read("I  see.So, ", calls)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("nowhere", "{}"),
        ("now", "{a}"),
        ("now", "[]"),
        ("now", '"{}"'),
        ("now", '{"a": NaN}'),
        ("now", '{"a": 1'),
        ("now", ""),
    ],
)
def test_what_is_no_call_is_content(name: str, function: str, arguments: str) -> None:
    text = f"{spelled(FORMATS[name], (function, arguments))} and on"
    assert in_pieces(free(name), list(text)) == Read(text, [])


def test_a_broken_call_hides_no_other_one() -> None:
    broken = '<tool_call>\n{"name": "weather", "arguments": {"city": "a"}\n</tool_call>'
    good = spelled(FORMATS["hermes"], ("now", "{}"))
    assert in_pieces(free("hermes"), list(f"{broken}\n{good}")) == Read(broken, [("now", "{}")])


def test_the_end_may_stand_for_the_closing_mark() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}'
    assert in_pieces(free("hermes"), [text]) == Read("", [("now", "{}")])
    assert in_pieces(free("hermes"), [f"{text}<tool_call>"]) == Read("<tool_call>", [("now", "{}")])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", FORMATS)
def test_thousands_of_marks_cost_little(name: str) -> None:
    text = "<tool_call>{[TOOL_CALLS]now[ARGS]{<|python_tag|>{" * 1000
    assert in_pieces(free(name), [text[i : i + 40] for i in range(0, len(text), 40)]) == Read(text, [])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=20)
@given(places=st.lists(st.floats(0, 1), max_size=6))
def test_required_calls_come_in_pieces_of_their_arguments(name: str, places: list[float]) -> None:
    calls = [("weather", CITY), ("now", "{}")][: 1 if name == "llama3" else 2]
    text = spelled(FORMATS[name], *calls)
    assert in_pieces(FORMATS[name].required(), cut(text, places)) == Read("", calls)
    reader = FORMATS[name].required()
    pieces = [event.text for letter in text for event in reader.push(letter) if isinstance(event, Arguments)]
    assert pieces == list("".join(arguments for _, arguments in calls))
    assert not reader.is_in_call


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_call_that_is_cut(name: str) -> None:
    text = spelled(FORMATS[name], ("weather", CITY))
    start, end = text.index(CITY), text.index(CITY) + len(CITY)
    for size in range(1, len(text)):
        reader = FORMATS[name].required()
        told = in_pieces(reader, list(text[:size]))
        if size < start:
            assert told == Read(text[:size], [])
        else:
            assert told == Read("", [("weather", text[start : min(size, end)])])
        assert reader.is_in_call == (start <= size < end)
