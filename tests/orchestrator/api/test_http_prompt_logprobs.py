"""What answers tell of their prompts: echo, with log-probabilities and without, and vLLM's ``prompt_logprobs``."""

from typing import Any

import pytest

from tests.orchestrator.api.http_serving import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PROMPT,
    TOKENIZER,
    TURNS,
    Site,
    Telling,
    open_site,
    said,
    said_to,
    usage,
)
from tests.support.fakes import Fault

IDS = said(tuple(PROMPT), 10)
TEXT, PROMPT_TEXT = TOKENIZER.decode(IDS), TOKENIZER.decode(PROMPT)
LIKELIEST = TOKENIZER.token_text(7)


async def test_echo(site: Site) -> None:
    for prompt, expected in ((PROMPT, PROMPT_TEXT + TEXT), ("ab", "ab" + said_to("ab", 10))):
        (choice,) = (await site.post(COMPLETIONS, prompt=prompt, echo=True, max_tokens=10))["choices"]
        assert (choice["text"], choice["logprobs"]) == (expected, None)
        chunks = (await site.stream(COMPLETIONS, prompt=prompt, echo=True, max_tokens=10))[:-1]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert [session.spec.prompt_logprobs for session in site.room.verifier.sessions] == [None] * 4


async def test_echo_with_log_probabilities(site: Site) -> None:
    asked: dict[str, Any] = {"prompt": [PROMPT, [9]], "echo": True, "max_tokens": 10, "logprobs": 1}
    first, second = (await site.post(COMPLETIONS, **asked))["choices"]
    tokens = [TOKENIZER.token_text(one) for one in (*PROMPT, *IDS)]
    assert first["logprobs"] == {
        "tokens": tokens,
        "token_logprobs": [None, -0.5, -1.5] + [-1.5] * 10,
        "text_offset": list(range(13)),
        "top_logprobs": [
            None,
            {tokens[1]: -0.5, LIKELIEST: -0.25},
            {tokens[2]: -1.5, LIKELIEST: -0.25},
            *({token: -1.5, LIKELIEST: -0.25} for token in tokens[3:]),
        ],
    }
    assert second["logprobs"]["token_logprobs"] == [None] + [-1.5] * 10
    chunks = (await site.stream(COMPLETIONS, **asked | {"prompt": PROMPT}))[:-1]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        assert [one for logprobs in told if logprobs for one in logprobs[name]] == first["logprobs"][name]


async def test_nothing_but_the_prompt(site: Site) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "echo": True, "max_tokens": 0, "logprobs": 0, "return_token_ids": True}
    answer = await site.post(COMPLETIONS, **asked)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == (PROMPT_TEXT, "length", [])
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -1.5]
    assert answer["usage"] == usage(3, 0)
    chunks = (await site.stream(COMPLETIONS, **asked))[:-1]
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [PROMPT_TEXT, ""]
    # No draft was asked for.
    assert not site.room.drafter.sessions
    for others in ({"echo": False}, {"max_tokens": -1}):
        response = await site.client.post(COMPLETIONS, json={"model": "fake"} | asked | others)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize("num_verdicts", [0, 3])
async def test_they_are_told_once_whenever_a_verifier_is_lost(num_verdicts: int) -> None:
    faults = iter([{num_verdicts: Fault.DIE}])
    async with open_site(lambda spec: Telling(spec, faults=next(faults, {}))) as site:
        asked = {"prompt": PROMPT, "max_tokens": 10, "echo": True, "logprobs": 0, "gamma": 0}
        (choice,) = (await site.post(COMPLETIONS, **asked))["choices"]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -1.5] + [-1.5] * 10
        assert [one.spec.num_prompt_logprobs for one in site.room.verifier.sessions] == [2, 0 if num_verdicts else 2]


async def test_prompt_logprobs_by_token_id(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=2, prompt_logprobs=1, echo=True, logprobs=2)
    names = {one: TOKENIZER.token_text(one) for one in (7, *PROMPT)}
    likeliest = {"7": {"logprob": -0.25, "rank": 1, "decoded_token": names[7]}}
    (choice,) = answer["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {"17": {"logprob": -0.5, "rank": None, "decoded_token": names[17]}} | likeliest,
        {"3": {"logprob": -1.5, "rank": None, "decoded_token": names[3]}} | likeliest,
    ]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:3]] == [2, 2]
    answer = await site.post(CHAT, messages=MESSAGES, max_tokens=2, prompt_logprobs=2)
    ids = TOKENIZER.encode(TURNS, add_special_tokens=False)
    assert [None, *({str(one), "7"} for one in ids[1:])] == [one and set(one) for one in answer["prompt_logprobs"]]
    assert answer["prompt_logprobs"][1][str(ids[1])]["rank"] == 2


@pytest.mark.parametrize(("changes", "code"), [({"stream": True}, 400), ({"prompt_logprobs": 21}, 400)])
async def test_refused(site: Site, changes: dict[str, Any], code: int) -> None:
    body = {"model": "fake", "messages": MESSAGES, "prompt_logprobs": 1} | changes
    response = await site.client.post(CHAT, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (code, "prompt_logprobs")
