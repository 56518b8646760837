"""Whole answers of the HTTP door, over real gRPC services with the fake model behind them."""

from functools import partial
from itertools import accumulate
from typing import Any

import pytest

from orchestrator.api.settings.settings import Defaults
from orchestrator.policy.gates import Gate
from tests.orchestrator.api.http_serving import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    PROMPT,
    TOKENIZER,
    TURN,
    TURNS,
    Site,
    Telling,
    open_site,
    said,
    usage,
)
from tests.support.fakes import FakeModel

IDS = said((5, 17, 3), 60)
TEXT = TOKENIZER.decode(IDS)


async def test_completion(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=30, seed=7)
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "fake")
    assert answer["created"] > 1_700_000_000
    assert answer["choices"] == [{"index": 0, "text": TEXT[:30], "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == usage(3, 30)
    assert site.room.verifier.sessions[0].spec.seed == 7
    await site.room.freed()


async def test_metrics_and_sources_of_an_answer(site: Site) -> None:
    extras = {"gamma": 4, "gate": "target_confidence", "return_sources": True}
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=60, seed=(1 << 64) - 1, **extras)
    metrics = answer["metrics"]
    told, ours = metrics["speculative_decoding"], metrics["specgate"]
    assert ours["seed"] == (1 << 64) - 1
    assert (ours["gamma"], ours["gate"], ours["gate_threshold"]) == (4, "target_confidence", 0.5)
    assert ours["verification"] == "shared_noise"
    assert told["num_spec_steps"] == ours["rounds"] == sum(told["acceptance_histogram"]) > 0
    assert told["num_accepted_draft_tokens"] == ours["accepted_tokens"] > 0
    assert ours["target_forwards"] == ours["rounds"] + ours["solo_tokens"]
    assert told["num_spec_tokens"] == 4
    assert len(told["acceptance_histogram"]) == 5
    assert metrics["time_to_first_token_ms"] > 0
    assert metrics["tokens_per_second"] > 0
    alone = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=5, gamma=0)
    assert alone["metrics"]["speculative_decoding"] is None
    sources = answer["choices"][0]["sources"]
    assert len(sources) == 60
    assert sources.count("accepted") == ours["accepted_tokens"]
    assert sources.count("solo") == ours["solo_tokens"] > 0
    assert set(sources) <= {"accepted", "recovered", "bonus", "solo"}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_rounds_add_up_to_the_answer(site: Site, path: str) -> None:
    asked = {"max_tokens": 60, "gamma": 4, "gate": "target_confidence", "return_rounds": True, "return_sources": True}
    asked |= {"prompt": PROMPT} if path == COMPLETIONS else {"messages": MESSAGES}
    answer = await site.post(path, **asked)
    rounds, sources = (answer["choices"][0][name] for name in ("rounds", "sources"))
    ours = answer["metrics"]["specgate"]
    assert sum(one["tokens"] for one in rounds) == len(sources) == 60
    assert sum(one["accepted_tokens"] for one in rounds) == ours["accepted_tokens"] > 0
    assert sum(one["draft_tokens"] > 0 for one in rounds) == ours["rounds"]
    # Each round's tokens are those that it says.
    ends = list(accumulate(one["tokens"] for one in rounds))
    parts = [sources[end - one["tokens"] : end] for one, end in zip(rounds, ends, strict=True)]
    for one, part in zip(rounds, parts, strict=True):
        assert part.count("accepted") == one["accepted_tokens"] <= one["draft_tokens"] <= one["gamma"] <= 4
        assert (one["why_alone"] is None) == (one["draft_tokens"] > 0) == (one["drafted_by"] == "model")
        assert 0 <= one["confidence"] <= 1
    assert {one["why_alone"] for one in rounds} >= {None, "gate"}
    chunks = await site.stream(path, **asked)
    streamed = [one for chunk in chunks[:-1] for choice in chunk["choices"] for one in choice["rounds"]]
    told = ("round", "tokens", "draft_tokens", "accepted_tokens", "why_alone", "confidence")
    assert [[one[name] for name in told] for one in streamed] == [[one[name] for name in told] for one in rounds]


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [66, 67], [[66, 67]]], ids=str)
async def test_ways_to_give_a_prompt(site: Site, prompt: object) -> None:
    answer = await site.post(COMPLETIONS, prompt=prompt, max_tokens=4, return_token_ids=True)
    assert answer["prompt_token_ids"] == [66, 67]
    assert tuple(answer["choices"][0]["token_ids"]) == said((66, 67), 4)


async def test_what_a_request_says_reaches_the_services(site: Site) -> None:
    penalties = {"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.5}
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 9, "min_p": 0.05, **penalties}
    others = {"stop_token_ids": [9], "ignore_eos": True, "cache_salt": "ours", "verification": "rejection", "gamma": 0}
    await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=9, logit_bias={"5": -100}, **sampling, **others)
    spec = site.room.verifier.sessions[0].spec
    assert {name: getattr(spec.sampling, name) for name in sampling} == pytest.approx(sampling)
    assert dict(spec.sampling.logit_bias) == {5: -100.0}
    assert (spec.stop_token_ids, spec.max_tokens, spec.verification) == ({9}, 9, "rejection")
    assert spec.cache_salt == "ours"


async def test_what_is_null_or_not_said_is_the_default(site: Site) -> None:
    nulls = dict.fromkeys(("temperature", "top_p", "top_k", "n", "stop", "logit_bias", "user", "gamma", "stream"))
    answer = await site.post(COMPLETIONS, prompt=PROMPT, **nulls)
    sampling = site.room.verifier.sessions[0].spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert answer["usage"]["completion_tokens"] == 128
    # Or what the context has left.
    assert (await site.post(COMPLETIONS, prompt=[1] * 500))["usage"]["completion_tokens"] == 12


async def test_values_of_unsupported_fields_that_change_nothing(site: Site) -> None:
    common = {"n": 1, "user": "u", "top_k": -1, "max_tokens": 2}
    await site.post(COMPLETIONS, prompt="a", best_of=1, echo=False, suffix=None, **common)
    sent_back: dict[str, Any] = {"role": "assistant", "content": "a", "refusal": None, "tool_calls": []}
    nothing: dict[str, Any] = {
        "store": False,
        "metadata": None,
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    text = {"response_format": {"type": "text"}, "modalities": ["text"]}
    await site.post(CHAT, messages=[*MESSAGES, sent_back], **nothing, **text, **common)


async def test_gamma_and_threshold_belong_to_the_gate(site: Site) -> None:
    site.room.request_queue.defaults = Defaults(gate=Gate.TARGET_CONFIDENCE, gate_threshold=0.3, draft_threshold=0.2)
    for given, told in (
        ({}, ("target_confidence", 5, 0.3, 0.2)),
        ({"gate": "target_confidence"}, ("target_confidence", 5, 0.3, 0.2)),
        ({"gate_threshold": 0.75, "draft_threshold": 0.5}, ("target_confidence", 5, 0.75, 0.5)),
        ({"gate": "draft_confidence"}, ("draft_confidence", 5, 0.4, None)),
        ({"gate": "auto"}, ("auto", 8, 0.0, None)),
    ):
        answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=30, **given)
        ours = answer["metrics"]["specgate"]
        assert (ours["gate"], ours["gamma"], ours["gate_threshold"], ours["draft_threshold"]) == told
        assert answer["choices"][0]["text"] == TEXT[:30]


async def test_stop_string_in_the_answer_and_not_before_the_least_number_of_tokens(site: Site) -> None:
    end = TEXT[20:23]
    asked = {"prompt": PROMPT, "max_tokens": 40, "stop": [end, "no such text"]}
    answer = await site.post(COMPLETIONS, **asked, include_stop_str_in_output=True, min_tokens=22)
    assert answer["choices"][0]["text"] == TEXT[:23]
    # The token that completes it is one of those that end nothing.
    answer = await site.post(COMPLETIONS, **asked, min_tokens=23)
    assert answer["choices"][0]["text"] == TEXT[:40]
    assert [session.spec.min_tokens for session in site.room.verifier.sessions] == [22, 23]


async def test_special_tokens_where_they_are_asked_for() -> None:
    speaks = partial(Telling, model=FakeModel(eos_rate=0.3))
    async with open_site(speaks) as site:
        asked = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True}
        texts = [
            (await site.post(COMPLETIONS, **asked, skip_special_tokens=skips))["choices"][0]["text"]
            for skips in (True, False)
        ]
    assert "<|end|>" in texts[1]
    assert texts[1].replace("<|end|>", "") == texts[0]


async def test_log_probabilities(site: Site) -> None:
    likeliest = TOKENIZER.token_text(7)
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=12, logprobs=1)
    tokens = [TOKENIZER.token_text(one) for one in IDS[:12]]
    assert answer["choices"][0]["logprobs"] == {
        "tokens": tokens,
        "token_logprobs": [-1.5] * 12,
        "text_offset": list(range(12)),
        "top_logprobs": [{token: -1.5, likeliest: -0.25} for token in tokens],
    }
    answer = await site.post(CHAT, messages=MESSAGES, max_completion_tokens=5, logprobs=True, top_logprobs=1)
    top = [{"token": likeliest, "logprob": -0.25, "bytes": list(likeliest.encode())}]
    assert answer["choices"][0]["logprobs"]["content"] == [
        {"token": token, "logprob": -1.5, "bytes": [ord(token)], "top_logprobs": top}
        for token in answer["choices"][0]["message"]["content"]
    ]


async def test_chat(site: Site) -> None:
    parts = [{"type": "text", "text": "Hi"}]
    messages = [{"role": "developer", "content": "Be kind"}, {"role": "user", "content": parts}]
    answer = await site.post(CHAT, messages=messages, max_tokens=20, return_token_ids=True)
    prompt = TOKENIZER.encode(f"{TURN}system:Be kind{TURNS}", add_special_tokens=False)
    assert tuple(answer["prompt_token_ids"]) == prompt
    content = TOKENIZER.decode(said(prompt, 20))
    assert (answer["object"], answer["id"][:9]) == ("chat.completion", "chatcmpl-")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": content, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize(
    ("flags", "ending"),
    [({"continue_final_message": True}, ""), ({"add_generation_prompt": False}, ""), ({}, f"{TURN}assistant:")],
    ids=str,
)
async def test_last_message_goes_on(site: Site, flags: dict[str, bool], ending: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    answer = await site.post(CHAT, messages=messages, max_tokens=1, return_token_ids=True, **flags)
    prompt = TOKENIZER.encode(f"{TURNS}Well, {ending}", add_special_tokens=False)
    assert tuple(answer["prompt_token_ids"]) == prompt


async def test_model_without_a_tokenizer_takes_and_gives_token_ids(site: Site) -> None:
    site.room.request_queue.orchestrator.tokenizer = None
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=3, return_token_ids=True, logprobs=0)
    (choice,) = answer["choices"]
    assert (tuple(choice["token_ids"]), choice["text"]) == (IDS[:3], "")
    assert choice["logprobs"]["tokens"] == [f"token_id:{one}" for one in IDS[:3]]
    response = await site.client.post(CHAT, json={"model": "fake", "messages": MESSAGES})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")
