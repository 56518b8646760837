"""Required calls over real services: the bundled pair knows nothing of tools, and makes valid ones under the mask."""

import shutil
from pathlib import Path
from typing import Any

import openai
import pytest

from orchestrator.api.request_queue import RequestQueue
from orchestrator.api.settings.settings import Defaults, GatewaySettings
from tests.orchestrator.api.http_serving import MESSAGES, serving_http
from tests.support.orchestrating import connected
from tests.support.services import PAIR, running
from tests.support.tool_calls import TOOLS, template, valid


@pytest.mark.timeout(300)
async def test_required_calls_are_valid_in_both_modes(tmp_path: Path) -> None:
    target = shutil.copytree(PAIR / "target", tmp_path / "target")
    (target / "chat_template.jinja").write_text(template("hermes"))
    with running("drafter", PAIR / "draft") as drafter, running("verifier", target) as verifier:
        async with connected([drafter], [verifier], tokenizer=target) as orchestrator:
            request_queue = RequestQueue(orchestrator, GatewaySettings(), Defaults(), "pair")
            async with (
                serving_http(request_queue) as url,
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
            ):
                asked: dict[str, Any] = {"model": "pair", "messages": MESSAGES, "max_tokens": 200, "seed": 3}
                asked |= {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
                for verification in ("shared_noise", "rejection"):
                    extras = {"verification": verification, "gate": "none", "gamma": 4}
                    async with client.chat.completions.stream(**asked, extra_body=extras) as stream:
                        (choice,) = (await stream.get_final_completion()).choices
                    assert choice.finish_reason == "tool_calls"
                    (call,) = choice.message.tool_calls
                    assert valid(call.function.name, call.function.arguments)
                    if verification == "shared_noise":
                        whole = await client.chat.completions.create(**asked, extra_body={"gamma": 0})
                        alone = whole.choices[0].message.tool_calls[0].function
                        assert (alone.name, alone.arguments) == (call.function.name, call.function.arguments)
