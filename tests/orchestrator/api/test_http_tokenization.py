"""What text is in tokens and back, in vLLM's shapes, as lm-eval's remote tokenizer asks."""

from typing import Any

import pytest

from tests.orchestrator.api.http_serving import CHAT_TEMPLATE, MESSAGES, TOKENIZER, TURN, TURNS, Site

TOOL = {"type": "function", "function": {"name": "f"}}


async def test_text_to_tokens_and_back(site: Site) -> None:
    text = f"Hi {TURN}<|end|>" * 500
    answer = (await site.client.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    ids = list(TOKENIZER.encode(text))
    assert (answer["count"], answer["max_model_len"], answer["tokens"]) == (len(ids), 512, ids)
    assert answer["token_strs"][:4] == ["H", "i", " ", TURN]
    body = {"model": "fake", "tokens": ids}
    assert (await site.client.post("/detokenize", json=body)).json() == {"prompt": text}
    short = (await site.client.post("/tokenize", json={"prompt": "", "add_special_tokens": False})).json()
    assert (short["tokens"], short["token_strs"]) == ([], None)


@pytest.mark.parametrize(
    ("flags", "text"), [({}, TURNS), ({"add_generation_prompt": False}, f"{TURN}user:Hi")], ids=str
)
async def test_chat_to_tokens(site: Site, flags: dict[str, Any], text: str) -> None:
    answer = (await site.client.post("/tokenize", json={"model": "fake", "messages": MESSAGES} | flags)).json()
    assert answer["tokens"] == list(TOKENIZER.encode(text))


async def test_tokenizer_info(site: Site) -> None:
    info = (await site.client.get("/tokenizer_info")).json()
    assert (info["eos_token"], info["bos_token"], info["chat_template"]) == ("<|end|>", None, CHAT_TEMPLATE)
    assert "Tokenizer" in info["tokenizer_class"]
    site.room.request_queue.orchestrator.tokenizer = None
    assert (await site.client.get("/tokenizer_info")).status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "a" * 1_179_649}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "tools": [TOOL]}, "tools"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"messages": MESSAGES, "tools": [TOOL, TOOL]}, "tools"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [97]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
    ids=str,
)
async def test_refused(site: Site, path: str, body: dict[str, Any], param: str) -> None:
    response = await site.client.post(path, json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param
