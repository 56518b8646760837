"""``/v1/responses`` with OpenAI's own client, and what is refused there."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from orchestrator.api.failures import OUT_OF_REACH
from tests.orchestrator.api.http_serving import RESPONSES, TURN, TURNS, Site, check_described, open_site, said_to
from tests.orchestrator.api.queues import PATIENT, dying_after

TEXT = said_to(TURNS, 20)


@pytest.fixture
async def client(site: Site) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_whole(client: openai.AsyncOpenAI) -> None:
    response = await client.responses.create(model="fake", input="Hi", max_output_tokens=20, temperature=0.0, top_p=0.5)
    assert response.output_text == TEXT
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "incomplete")
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (response.temperature, response.top_p, response.model_dump()["store"]) == (0.0, 0.5, False)
    assert (response.usage.output_tokens, response.usage.total_tokens) == (20, 20 + response.usage.input_tokens)
    response = await client.responses.create(model="fake", input="Hi", extra_body={"stop": TEXT[6], "gamma": 2})
    assert (response.status, response.incomplete_details) == ("completed", None)
    assert response.output_text == TEXT[: TEXT.index(TEXT[6])]


async def test_conversation_with_instructions_and_an_answer_that_is_sent_back(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="fake", input="Hi", max_output_tokens=5)
    conversation: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        *(item.model_dump() for item in first.output),
        {"role": "user", "content": "So?"},
    ]
    second = await client.responses.create(
        model="fake", instructions="Be kind", input=conversation, max_output_tokens=5, store=False
    )
    text = f"{TURN}system:Be kind{TURN}user:Hi{TURN}assistant:{first.output_text}{TURN}user:So?{TURN}assistant:"
    assert second.output_text == said_to(text, 5)
    assert second.instructions == "Be kind"


async def test_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="fake", input="Hi", stream=True, extra_body={"stop": TEXT[10]})
    events = [event async for event in stream]
    text = TEXT[: TEXT.index(TEXT[10])]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert ("".join(deltas), len(deltas) > 2) == (text, True)
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    last = events[-1].response
    assert (last.output_text, last.status, last.id) == (text, "completed", events[0].response.id)
    # The client's own helper puts it together, too.
    async with client.responses.stream(model="fake", input="Hi", extra_body={"stop": TEXT[10]}) as helped:
        assert (await helped.get_final_response()).output_text == text
    stream = await client.responses.create(model="fake", input="Hi", stream=True, max_output_tokens=5)
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_failure_in_mid_stream_is_an_event_and_the_last_one() -> None:
    async with (
        open_site(dying_after(5), timeouts=replace(PATIENT, failover_s=0.5)) as site,
        openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await client.responses.create(model="fake", input="Hi", stream=True, max_output_tokens=200)
        with pytest.raises(openai.APIError, match=OUT_OF_REACH) as failed:
            _ = [event async for event in stream]
        assert isinstance(failed.value.body, dict)
        assert failed.value.body["last_token_index"] > 0


def test_bodies_of_the_client_are_described() -> None:
    check_described(RESPONSES, {"model": "fake", "input": "Hi", "max_output_tokens": 5, "metadata": {}})
    check_described(RESPONSES, {"model": "fake", "input": [{"role": "user", "content": "Hi"}], "text": {}})


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": "a"}]}, "input"),
        ({"input": "a" * 200_000}, "input"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content.type"),
        ({"input": 5}, "input"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"temperature": 1e9}, "temperature"),
        ({"model": "gpt-4"}, "model"),
    ],
    ids=str,
)
async def test_refused_by_name(site: Site, changes: dict[str, Any], param: str) -> None:
    response = await site.client.post(RESPONSES, json={"model": "fake", "input": "Hi"} | changes)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == param
    assert site.room.request_queue.num_inside == 0
