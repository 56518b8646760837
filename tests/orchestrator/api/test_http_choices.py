"""Answers of several choices: lists of prompts, ``n``, and what they hold of the request queue meanwhile."""

import asyncio
import hashlib
from typing import Any

import pytest

from orchestrator.api.choices import seed_of_choice
from tests.orchestrator.api.http_serving import (
    COMPLETIONS,
    TOKENIZER,
    Site,
    open_site,
    said,
    said_to,
    usage,
)
from tests.orchestrator.api.queues import Hanging
from tests.support.patience import PATIENCE_S, eventually

PROMPTS = [[5, 17, 3], [7, 7], [9]]
TEXTS = [TOKENIZER.decode(said(tuple(prompt), 30)) for prompt in PROMPTS]


def test_seed_of_a_choice_is_what_the_page_says() -> None:
    by_the_page = hashlib.sha256((7).to_bytes(8, "big") + (2).to_bytes(8, "big")).digest()[:8]
    assert seed_of_choice(7, 2) == int.from_bytes(by_the_page, "big")
    assert seed_of_choice(7, 0) == 7


async def test_a_choice_for_each_prompt_of_a_list(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPTS, max_tokens=30, seed=7, return_token_ids=True)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == list(enumerate(TEXTS))
    assert answer["prompt_token_ids"] == PROMPTS
    assert answer["usage"] == usage(6, 90)
    ours = answer["metrics"]["specgate"]
    assert ours["seed"] == 7
    assert ours["accepted_tokens"] + ours["target_forwards"] >= 90
    by_prompt = {session.spec.prompt_token_ids: session.spec.seed for session in site.room.verifier.sessions}
    assert by_prompt == {tuple(prompt): seed_of_choice(7, index) for index, prompt in enumerate(PROMPTS)}
    texts = await site.post(COMPLETIONS, prompt=["ab", "c"], max_tokens=5)
    assert [choice["text"] for choice in texts["choices"]] == [said_to("ab", 5), said_to("c", 5)]
    await site.room.freed()


@pytest.mark.parametrize("seed", [11, None])
async def test_n_choices_of_each_prompt_have_seeds_of_their_own(site: Site, seed: int | None) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPTS[:2], n=3, max_tokens=30, seed=seed)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert [choice["text"] for choice in answer["choices"]] == [text for text in TEXTS[:2] for _ in range(3)]
    assert answer["usage"] == usage(5, 180)
    own = answer["metrics"]["specgate"]["seed"]
    assert seed in (None, own)
    seeds = {session.spec.seed for session in site.room.verifier.sessions}
    assert seeds == {seed_of_choice(own, index) for index in range(6)}
    assert len(seeds) == 6


async def test_choices_of_a_stream_come_side_by_side(site: Site) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await site.stream(COMPLETIONS, prompt=PROMPTS, max_tokens=30, stream_options=options, logprobs=0)
    assert chunks.pop() == "[DONE]"
    last = chunks.pop()
    assert last["usage"] == usage(6, 90)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, text in enumerate(TEXTS):
        own = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in own) == text
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["length"]
        offsets = [offset for choice in own if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
        assert (len(offsets), offsets[:5]) == (30, [0, 1, 2, 3, 4])
    first_end = next(i for i, choice in enumerate(choices) if choice["finish_reason"])
    assert {choice["index"] for choice in choices[:first_end]} == {0, 1, 2}
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks][-1] == 90


async def test_more_choices_than_may_run_take_turns_and_others_get_theirs() -> None:
    async with open_site(max_running=2, max_queued=20) as site:
        many = {"prompt": PROMPTS[0], "n": 16, "max_tokens": 30}
        answers = await asyncio.gather(
            site.post(COMPLETIONS, **many),
            site.stream(COMPLETIONS, prompt=PROMPTS[1], n=3, max_tokens=30),
            site.post(COMPLETIONS, prompt=PROMPTS[2], max_tokens=30),
        )
        assert [choice["text"] for choice in answers[0]["choices"]] == [TEXTS[0]] * 16
        assert answers[1][-1] == "[DONE]"
        assert answers[2]["choices"][0]["text"] == TEXTS[2]
        await site.room.freed()
        assert site.room.request_queue.num_running == 0


async def test_room_for_all_choices_or_for_none() -> None:
    # More tokens than two verdicts may bring, after which the target hangs.
    body: dict[str, Any] = {"model": "fake", "prompt": PROMPTS[0], "max_tokens": 60}
    async with open_site(Hanging, max_running=2, max_queued=1) as site:
        response = await site.client.post(COMPLETIONS, json=body | {"n": 4})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
        running = asyncio.create_task(site.client.post(COMPLETIONS, json=body | {"n": 2}))
        await eventually(lambda: site.room.request_queue.num_running == 2)
        # One that is let in by mistake hangs.
        response = await site.client.post(COMPLETIONS, json=body | {"n": 2}, timeout=PATIENCE_S)
        assert (response.status_code, site.room.request_queue.num_inside) == (429, 2)
        # Who leaves frees all, and those that still wait for their turn.
        waiting = asyncio.create_task(site.client.post(COMPLETIONS, json=body))
        await eventually(lambda: site.room.request_queue.num_inside == 3)
        running.cancel()
        waiting.cancel()
        await site.room.freed()
