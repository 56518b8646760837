"""Whole answers of the HTTP door, over real gRPC services with the fake model behind them."""

import pytest

import specgate
from orchestrator.api import readiness
from specgate.errors import ServiceUnavailable
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, MESSAGES, PROMPT, TOKENIZER, TURN, Site, said


async def test_completion(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=30, seed=7)
    text = TOKENIZER.decode(said((5, 17, 3), 30))
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "fake")
    assert answer["created"] > 1_700_000_000
    assert answer["choices"] == [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33}
    assert site.room.verifier.sessions[0].spec.seed == 7
    await site.room.freed()


async def test_metrics_of_an_answer(site: Site) -> None:
    gated = {"gamma": 4, "gate": "target_confidence"}
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=60, seed=(1 << 64) - 1, **gated)
    metrics = answer["metrics"]
    told, ours = metrics["speculative_decoding"], metrics["specgate"]
    assert ours["seed"] == (1 << 64) - 1
    assert (ours["gamma"], ours["gate"], ours["gate_threshold"]) == (4, "target_confidence", 0.5)
    assert ours["verification"] == "shared_noise"
    assert told["num_spec_steps"] == ours["rounds"] == sum(told["acceptance_histogram"]) > 0
    assert told["num_accepted_draft_tokens"] == ours["accepted_tokens"] > 0
    assert ours["solo_tokens"] > 0
    assert ours["target_forwards"] == ours["rounds"] + ours["solo_tokens"]
    assert told["num_spec_tokens"] == 4
    assert len(told["acceptance_histogram"]) == 5
    assert metrics["time_to_first_token_ms"] > 0
    assert metrics["tokens_per_second"] > 0


async def test_target_alone_has_no_speculative_metrics(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=5, gamma=0)
    assert answer["metrics"]["speculative_decoding"] is None
    assert answer["metrics"]["specgate"]["solo_tokens"] == 5
    assert not site.room.drafter.sessions


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [66, 67], [[66, 67]]], ids=str)
async def test_ways_to_give_a_prompt(site: Site, prompt: object) -> None:
    answer = await site.post(COMPLETIONS, prompt=prompt, max_tokens=4, return_token_ids=True)
    assert answer["prompt_token_ids"] == [66, 67]
    assert tuple(answer["choices"][0]["token_ids"]) == said((66, 67), 4)


async def test_what_a_request_says_reaches_the_services(site: Site) -> None:
    values = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 9,
        "min_p": 0.05,
        "repetition_penalty": 1.25,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
    }
    await site.post(
        COMPLETIONS,
        prompt=PROMPT,
        max_tokens=9,
        logit_bias={"5": -100},
        stop_token_ids=[9],
        ignore_eos=True,
        cache_salt="ours",
        verification="rejection",
        gamma=0,
        **values,
    )
    spec = site.room.verifier.sessions[0].spec
    assert {name: getattr(spec.sampling, name) for name in values} == pytest.approx(values)
    assert dict(spec.sampling.logit_bias) == {5: -100.0}
    assert (spec.stop_token_ids, spec.max_tokens, spec.verification) == ({9}, 9, "rejection")
    assert spec.cache_salt == "ours"


async def test_null_is_not_said(site: Site) -> None:
    nulls = dict.fromkeys(("temperature", "top_p", "top_k", "n", "stop", "logit_bias", "user", "gamma", "stream"))
    await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=3, **nulls)
    sampling = site.room.verifier.sessions[0].spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)


async def test_values_of_unsupported_fields_that_change_nothing(site: Site) -> None:
    common = {"n": 1, "user": "u", "top_k": -1, "max_tokens": 2}
    await site.post(COMPLETIONS, prompt="a", best_of=1, echo=False, suffix=None, **common)
    await site.post(
        CHAT,
        messages=[*MESSAGES, {"role": "assistant", "content": "a", "refusal": None, "tool_calls": []}],
        store=False,
        metadata=None,
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=True,
        response_format={"type": "text"},
        modalities=["text"],
        **common,
    )


async def test_length_left_open_is_the_default_or_what_the_context_has_left(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT)
    assert answer["usage"]["completion_tokens"] == 128
    answer = await site.post(COMPLETIONS, prompt=[1] * 500)
    assert answer["usage"]["completion_tokens"] == 12


async def test_a_threshold_belongs_to_its_gate(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=2, gate="draft_confidence")
    assert answer["metrics"]["specgate"]["gate_threshold"] == 0.4
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=2, gate="target_confidence", gate_threshold=0.75)
    assert answer["metrics"]["specgate"]["gate_threshold"] == 0.75


async def test_auto_chooses_up_to_a_gamma_of_its_own(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=30, gate="auto")
    assert answer["choices"][0]["text"] == TOKENIZER.decode(said((5, 17, 3), 30))
    ours = answer["metrics"]["specgate"]
    assert (ours["gamma"], ours["gate"], ours["gate_threshold"]) == (8, "auto", 0.0)


async def test_stop_string(site: Site) -> None:
    text = TOKENIZER.decode(said((5, 17, 3), 40))
    for stop in (text[20:23], [text[20:23], "no such text"]):
        answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=40, stop=stop)
        choice = answer["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(text[20:23])], "stop")


async def test_sources_of_tokens(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=60, return_sources=True)
    sources = answer["choices"][0]["sources"]
    assert len(sources) == 60
    assert sources.count("accepted") == answer["metrics"]["specgate"]["accepted_tokens"]
    assert sources.count("solo") == answer["metrics"]["specgate"]["solo_tokens"]
    assert set(sources) <= {"accepted", "recovered", "bonus", "solo"}


async def test_log_probabilities_of_a_completion(site: Site) -> None:
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=12, logprobs=1)
    tokens = [TOKENIZER.token_text(one) for one in said((5, 17, 3), 12)]
    told = answer["choices"][0]["logprobs"]
    assert told["tokens"] == tokens
    assert told["token_logprobs"] == [-1.5] * 12
    assert told["text_offset"] == list(range(12))
    likeliest = TOKENIZER.token_text(7)
    assert told["top_logprobs"] == [{token: -1.5, likeliest: -0.25} for token in tokens]


async def test_log_probabilities_of_a_chat(site: Site) -> None:
    answer = await site.post(CHAT, messages=MESSAGES, max_completion_tokens=5, logprobs=True, top_logprobs=1)
    likeliest = TOKENIZER.token_text(7)
    top = [{"token": likeliest, "logprob": -0.25, "bytes": list(likeliest.encode())}]
    for token, told in zip(
        answer["choices"][0]["message"]["content"], answer["choices"][0]["logprobs"]["content"], strict=True
    ):
        assert told == {"token": token, "logprob": -1.5, "bytes": [ord(token)], "top_logprobs": top}


async def test_chat(site: Site) -> None:
    answer = await site.post(
        CHAT,
        messages=[
            {"role": "developer", "content": "Be kind"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
        max_tokens=20,
        return_token_ids=True,
    )
    prompt = TOKENIZER.encode(f"{TURN}system:Be kind{TURN}user:Hi{TURN}assistant:", add_special_tokens=False)
    assert tuple(answer["prompt_token_ids"]) == prompt
    content = TOKENIZER.decode(said(prompt, 20))
    assert (answer["object"], answer["id"][:9]) == ("chat.completion", "chatcmpl-")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": content, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == len(prompt)


async def test_last_message_goes_on(site: Site) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    for flags, prompt in (
        ({"continue_final_message": True}, f"{TURN}user:Hi{TURN}assistant:Well, "),
        ({"add_generation_prompt": False}, f"{TURN}user:Hi{TURN}assistant:Well, "),
        ({}, f"{TURN}user:Hi{TURN}assistant:Well, {TURN}assistant:"),
    ):
        answer = await site.post(CHAT, messages=messages, max_tokens=1, return_token_ids=True, **flags)
        assert tuple(answer["prompt_token_ids"]) == TOKENIZER.encode(prompt, add_special_tokens=False)


async def test_model_without_a_tokenizer_takes_and_gives_token_ids(site: Site) -> None:
    site.room.request_queue.orchestrator.tokenizer = None
    answer = await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=3, return_token_ids=True, logprobs=0)
    ids = said((5, 17, 3), 3)
    assert tuple(answer["choices"][0]["token_ids"]) == ids
    assert answer["choices"][0]["text"] == ""
    assert answer["choices"][0]["logprobs"]["tokens"] == [f"token_id:{one}" for one in ids]
    response = await site.client.post(CHAT, json={"model": "fake", "messages": MESSAGES})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages")


async def test_a_long_prompt_is_encoded_too(site: Site) -> None:
    response = await site.client.post(COMPLETIONS, json={"model": "fake", "prompt": "a" * 100_000})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "100000 prompt tokens" in response.json()["error"]["message"]


async def test_models(site: Site) -> None:
    listed = (await site.client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["fake"]
    assert (await site.client.get("/v1/models/fake")).json() == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == 512
    response = await site.client.get("/v1/models/some/other")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_alive_and_version(site: Site) -> None:
    assert (await site.client.get("/healthz")).status_code == 200
    assert (await site.client.get("/version")).json() == {"version": specgate.__version__}


async def test_ready_while_a_verifier_answers(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH_S", 0.0)
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_S", 0.5)
    assert (await site.client.get("/readyz")).status_code == 200
    await site.room.verifier.stop()
    response = await site.client.get("/readyz")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "service_unavailable")
    assert response.headers["retry-after"] == "1"
    assert (await site.client.get("/healthz")).status_code == 200


async def test_one_look_at_the_verifiers_serves_many(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await site.client.get("/readyz")).status_code == 200
    monkeypatch.setattr(readiness, "FRESH_S", 3600.0)
    await site.room.verifier.stop()
    assert (await site.client.get("/readyz")).status_code == 200


async def test_verifiers_that_were_just_heard_are_not_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check_verifiers(timeout_s: float) -> None:
        raise ServiceUnavailable("asked")

    monkeypatch.setattr(site.room.request_queue.orchestrator, "check_verifiers", check_verifiers)
    await site.post(COMPLETIONS, prompt=PROMPT, max_tokens=2)
    monkeypatch.setattr(readiness, "HEARD_S", 3600.0)
    assert (await site.client.get("/readyz")).status_code == 200
    monkeypatch.setattr(readiness, "HEARD_S", 0.0)
    assert (await site.client.get("/readyz")).status_code == 503


async def test_not_ready_while_draining(site: Site) -> None:
    assert await site.room.request_queue.drain(0.0)
    for response in (
        await site.client.get("/readyz"),
        await site.client.post(COMPLETIONS, json={"model": "fake", "prompt": "a"}),
    ):
        assert response.status_code == 503
        assert "draining" in response.json()["error"]["message"]
