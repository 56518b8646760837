"""The tools of one chat, and how the served model calls them."""

import asyncio
import json

from orchestrator.api.http.chat import ChatRequest
from orchestrator.api.http.errors import ApiError, with_client_field
from orchestrator.api.http.tool_request import Function, NamedTool
from orchestrator.api.http.tools.calls import CallReader
from orchestrator.api.http.tools.formats import format_of
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate.types import FinishReason, Grammar, GrammarKind

MAX_CHECK_S = 10.0
"""For all functions of a chat together. A simple one takes milliseconds."""


def _tokenizer(request_queue: RequestQueue) -> TextTokenizer:
    try:
        return request_queue.tokenizer
    except InvalidArgument as error:
        raise InvalidArgument("messages", error.problem) from None


class ToolUse:
    """How the answers to one chat may call tools.

    Args:
        params: with at least one tool that may be called.

    Raises:
        InvalidArgument: the served model cannot call tools.
    """

    def __init__(self, params: ChatRequest, request_queue: RequestQueue) -> None:
        tokenizer = _tokenizer(request_queue)
        self._request_queue = request_queue
        self._num_bytes = params.num_bytes
        self._choice = params.tool_choice
        self._functions = [tool.function for tool in params.offered_tools]
        self._parallel = params.parallel_tool_calls is not False
        self._format = format_of(tokenizer.chat_template(with_tools=True), request_queue.tool_call_format)
        self._marker_ids = tokenizer.added_token_ids(self._format.markers)
        self.new_id = self._format.new_id

    @property
    def shown_token_ids(self) -> frozenset[int]:
        """Tokens that readers of the text must see, also where they are special."""
        return frozenset(self._marker_ids.values())

    @property
    def _called(self) -> list[tuple[int, Function]]:
        """The functions that may be called if a call is required, with their places among the tools."""
        numbered = list(enumerate(self._functions))
        if isinstance(self._choice, NamedTool):
            return [(i, one) for i, one in numbered if one.name == self._choice.function.name]
        return numbered if self._choice == "required" else []

    async def grammar(self) -> Grammar | None:
        """Return what answers must follow, as services take it; None if no call is required.

        Raises:
            ApiError: 400, no answer can follow a function's parameters; names the place in them.
        """
        if not self._called:
            return None
        try:
            async with asyncio.timeout(MAX_CHECK_S):
                return await self._whole_grammar()
        except TimeoutError:
            raise ApiError(400, f"tools: take more than {MAX_CHECK_S:g} s to check", param="tools") from None

    async def _whole_grammar(self) -> Grammar | None:
        schemas, text = await self._request_queue.beside(self._texts, self._num_bytes)
        for (index, _), schema in zip(self._called, schemas, strict=True):
            await self._checked(GrammarKind.JSON_SCHEMA, schema, f"tools[{index}].function.parameters")
        return await self._checked(GrammarKind.LARK, text, "tools")

    def _texts(self) -> tuple[list[str], str]:
        """Return the schema of each function that may be called, and the grammar of all of them."""
        schemas = {function.name: function.schema_of_arguments for _, function in self._called}
        parallel = self._parallel and self._choice == "required"
        grammar = self._format.spelling.grammar(schemas, self._marker_ids, parallel=parallel)
        return [json.dumps(schema) for schema in schemas.values()], grammar

    async def _checked(self, kind: GrammarKind, text: str, name: str) -> Grammar | None:
        try:
            return await self._request_queue.checked(Grammar(kind, text))
        except InvalidArgument as error:
            place = with_client_field(error, {f"grammar.{kind}": name})
            raise ApiError(400, str(place), param=place.field, code="invalid_value") from None

    def reader(self) -> CallReader:
        """Return a reader for one answer."""
        if self._called:
            return self._format.required()
        return self._format.free({function.name for function in self._functions}, parallel=self._parallel)

    def finish_reason(self, reason: str, reader: CallReader, num_calls: int) -> str:
        """Return OpenAI's finish reason: calls, unless the answer was cut or had to call one function."""
        is_named = isinstance(self._choice, NamedTool)
        ends_with_calls = reason == FinishReason.STOP and num_calls and not reader.is_in_call and not is_named
        return "tool_calls" if ends_with_calls else reason
