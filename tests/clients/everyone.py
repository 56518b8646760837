"""All clients, and what each runs: completions on the bundled pair; chats, objects and tools on the real model."""

from typing import NamedTuple

from tests.support.clients import Client

OPENAI_PYTHON = Client(
    "openai-python", "openai", "", "run_openai", "completions, chats, streams; no responses, no parse"
)
OPENAI_NODE = Client("openai-node", "openai", "node", "run_openai", "not tried")
LITELLM = Client("litellm", "litellm", "openai", "run_litellm", "all but tools")
LANGCHAIN = Client(
    "langchain-openai",
    "langchain-openai",
    "openai",
    "run_langchain",
    "chat, stream, completion; lists of prompts, structured output and tools: 400",
)
INSTRUCTOR = Client("instructor", "instructor", "openai", "run_instructor", "MD_JSON; TOOLS, JSON and JSON_SCHEMA: 400")
AI_SDK = Client("AI SDK", "ai", "node", "run_ai_sdk", "text and stream; generateObject and tools: 400")
GUIDELLM = Client("GuideLLM", "guidellm", "guidellm", before="cannot run: no GET /health, no continuous_usage_stats")
AIPERF = Client("AIPerf", "aiperf", "aiperf", before="runs")
LM_EVAL = Client("lm-eval", "lm_eval", "lm-eval", before="generation; no loglikelihoods, no remote tokenizer")


class Cases(NamedTuple):
    """A client's cases on one system. Those of ``streams`` run again through the proxies."""

    client: Client
    names: tuple[str, ...]
    streams: tuple[str, ...] = ()


_COMPLETIONS = ("completion", "list_of_prompts", "several_choices", "logprobs", "echo", "bad_request", "unknown_model")
_COMPLETION_STREAMS = ("completion_stream", "wide_completion_stream")
_CHAT_STREAMS = ("chat_stream", "wide_chat_stream", "response_stream")

ON_THE_PAIR = (
    Cases(OPENAI_PYTHON, (*_COMPLETIONS, "cancelled_stream", "models"), _COMPLETION_STREAMS),
    Cases(OPENAI_NODE, (*_COMPLETIONS, "cancelled_stream"), _COMPLETION_STREAMS),
    Cases(LITELLM, ("completion",), ("completion_stream",)),
    Cases(LANGCHAIN, ("completion", "list_of_prompts"), ("completion_stream",)),
    Cases(AI_SDK, ("completion",), ("completion_stream",)),
)
ON_THE_REAL_MODEL = (
    Cases(
        OPENAI_PYTHON,
        ("chat_whole", "chat_logprobs", "parsed", "response", "response_parsed"),
        (*_CHAT_STREAMS, "chat_stream_async"),
    ),
    Cases(OPENAI_NODE, ("chat_whole", "parsed", "response"), _CHAT_STREAMS),
    Cases(LITELLM, ("chat_whole", "bad_request"), ("chat_stream", "wide_chat_stream")),
    Cases(LANGCHAIN, ("chat_whole", "structured"), ("chat_stream", "wide_chat_stream")),
    Cases(INSTRUCTOR, ("json_mode", "json_schema", "md_json"), ("partial_stream",)),
    Cases(AI_SDK, ("generate_text", "generate_object"), ("stream_text", "wide_stream_text", "stream_object")),
)
WITH_TOOLS = (
    Cases(OPENAI_PYTHON, ("tools", "tool_result"), ("tools_stream",)),
    Cases(OPENAI_NODE, ("tools",), ("tools_stream",)),
    Cases(LITELLM, ("tools",)),
    Cases(LANGCHAIN, ("tools",), ("tools_stream",)),
    Cases(INSTRUCTOR, ("tools",)),
    Cases(AI_SDK, ("tools",), ("tools_stream",)),
)
