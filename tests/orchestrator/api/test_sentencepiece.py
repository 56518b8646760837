"""Both doors over a tokenizer of Llama 2's kind: prompt and completion are one text, its first space included."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orchestrator.decode.text import TextTokenizer
from specgate.types import SessionSpec
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, RESPONSES, Site, Telling, open_site
from tests.support.fakes import Fault
from tests.support.sentencepiece import BEGIN, END, TURN, ids_of, sentencepiece_tokenizer
from tests.support.tool_calls import Script

TOKENIZER = TextTokenizer(sentencepiece_tokenizer())
PROMPT = "The capital of France is"
PROMPT_IDS = list(TOKENIZER.encode(PROMPT))
FOX = ("<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>")
ANSWER = ("▁Paris", ".", "▁The", *FOX, END)
TEXT = " Paris. The🦊"


def saying(*tokens: str, **fields: Any) -> Callable[[SessionSpec], Telling]:
    """A target that says these, whatever it is asked."""
    answer = ids_of(TOKENIZER, tokens or ANSWER)

    def make(spec: SessionSpec) -> Telling:
        model: Any = Script(answer, len(spec.prompt_token_ids))
        return Telling(spec, model=model, **fields)

    return make


@asynccontextmanager
async def opened(*tokens: str) -> AsyncIterator[Site]:
    async with open_site(saying(*tokens), TOKENIZER) as site:
        yield site


async def completed(site: Site, **body: Any) -> list[str]:
    """Return the texts of a completion's choices, which must be the same whole and in a stream."""
    whole = [choice["text"] for choice in (await site.post(COMPLETIONS, **body))["choices"]]
    chunks = (await site.stream(COMPLETIONS, **body))[:-1]
    streamed = [""] * len(whole)
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        streamed[choice["index"]] += choice["text"]
    assert streamed == whole
    return whole


async def test_completions() -> None:
    async with opened() as site:
        assert await completed(site, prompt=PROMPT) == [TEXT]
        assert await completed(site, prompt=[PROMPT_IDS, [*PROMPT_IDS, 300]], n=2) == [TEXT] * 4
        # No text is before these.
        assert await completed(site, prompt=["", BEGIN]) == [TEXT[1:]] * 2
        for stop, include, text in (
            (" Paris", False, ""),
            (" Paris", True, " Paris"),
            (" ", False, ""),
            # Of the prompt's text nothing counts.
            (["is Paris", "s Paris"], False, TEXT),
        ):
            asked = {"prompt": PROMPT, "stop": stop, "include_stop_str_in_output": include}
            assert await completed(site, **asked) == [text]
        assert await completed(site, prompt=PROMPT, stop=" Paris", min_tokens=1) == [TEXT]


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [
        (PROMPT, ANSWER, PROMPT + TEXT),
        (PROMPT_IDS, ANSWER, PROMPT + TEXT),
        # What the answer completes, and what it leaves as it is; a character that says so itself.
        ([*PROMPT_IDS, *ids_of(TOKENIZER, FOX[:2])], (*FOX[2:], "▁Paris", END), f"{PROMPT}🦊 Paris"),
        ([*PROMPT_IDS, *ids_of(TOKENIZER, FOX[:2])], ("▁Paris", END), f"{PROMPT}�� Paris"),
        (f"{PROMPT}�", ("▁Paris", END), f"{PROMPT}� Paris"),
    ],
    ids=["text", "ids", "completed", "broken off", "replacement character"],
)
async def test_echo(prompt: str | list[int], answer: Sequence[str], text: str) -> None:
    async with opened(*answer) as site:
        assert await completed(site, prompt=prompt, echo=True) == [text]
        (alone,) = (await site.post(COMPLETIONS, prompt=prompt, echo=True, max_tokens=0))["choices"]
        assert alone["text"] == (prompt if isinstance(prompt, str) else TOKENIZER.decode(prompt))


@pytest.mark.parametrize("prompt", [PROMPT, "", BEGIN])
@pytest.mark.parametrize("echo", [False, True])
async def test_names_of_tokens_add_up_to_the_text_and_offsets_are_places_in_it(prompt: str, echo: bool) -> None:
    async with opened("▁Paris", ".", "▁is", END) as site:
        asked = {"prompt": prompt, "echo": echo, "logprobs": 1, "return_sources": True}
        (choice,) = (await site.post(COMPLETIONS, **asked))["choices"]
        chunks = (await site.stream(COMPLETIONS, **asked))[:-1]
    told, text = choice["logprobs"], choice["text"]
    if echo and prompt != PROMPT:
        # It is echoed as it was written.
        text = text.removeprefix(prompt)
    names = [name for name in told["tokens"] if name not in (BEGIN, END)]
    assert "".join(names) == text
    places = [place for name, place in zip(told["tokens"], told["text_offset"], strict=True) if name in names]
    assert [text[place:][: len(name)] for name, place in zip(names, places, strict=True)] == names
    assert all(name in top for name, top in zip(told["tokens"], told["top_logprobs"], strict=True) if top)
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name in ("tokens", "text_offset", "top_logprobs"):
        assert [one for part in parts if part for one in part[name]] == told[name]


async def test_another_verifier_goes_on_with_the_text() -> None:
    faults = iter([{0: Fault.DIE}, {2: Fault.DIE}])
    async with open_site(lambda spec: saying(faults=next(faults, {}))(spec), TOKENIZER) as site:
        (choice,) = (await site.post(COMPLETIONS, prompt=PROMPT, gamma=0))["choices"]
        assert (choice["text"], len(site.room.verifier.sessions)) == (TEXT, 3)


async def test_chats() -> None:
    """Behind a mark that shows no text an answer reads as in the text of both."""
    messages = [{"role": "user", "content": PROMPT}]
    async with opened() as site:
        (choice,) = (await site.post(CHAT, messages=messages, logprobs=True))["choices"]
        assert choice["message"]["content"] == TEXT
        assert choice["logprobs"]["content"][0]["token"] == " Paris"
        chunks = (await site.stream(CHAT, messages=messages))[:-1]
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT
        (item,) = (await site.post(RESPONSES, input=PROMPT))["output"]
        assert item["content"][0]["text"] == TEXT
        spec = site.room.verifier.sessions[-1].spec
    assert TOKENIZER.token_strings(spec.prompt_token_ids)[-1] == TURN
    ids = (*spec.prompt_token_ids, *ids_of(TOKENIZER, ANSWER))
    assert TOKENIZER.decode(ids).endswith(PROMPT + TEXT)
