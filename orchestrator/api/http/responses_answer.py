"""The answer of ``/v1/responses``, whole and as events, in OpenAI's shapes."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from orchestrator.api.http.choice import Body
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.decode.request import Delta
from specgate.types import FinishReason


class ResponsesAnswer:
    """An answer of one message."""

    ends_with_done: ClassVar[bool] = False

    def __init__(self, params: ResponsesRequest, prompt_token_ids: Sequence[int]) -> None:
        self.num_sent = 0
        """Tokens in the events so far."""
        self._params = params
        self._num_prompt_tokens = len(prompt_token_ids)
        self._num_cached_tokens = 0
        self._num_tokens = 0
        self._finish_reason: FinishReason | None = None
        self._text: list[str] = []
        self._id = "resp_" + secrets.token_hex(12)
        self._item_id = "msg_" + secrets.token_hex(12)
        self._created_at = int(time.time())
        self._num_events = 0

    def whole(self, deltas: Sequence[Sequence[Delta]], metrics: Mapping[str, Any]) -> Body:
        """Return the answer in one piece."""
        for delta in deltas[0]:
            self._take(delta)
        self.num_sent = self._num_tokens
        return self._ended() | {"metrics": metrics}

    def chunks(self, index: int, delta: Delta) -> Iterator[Body]:
        """Yield the events that a delta completes."""
        if not self._num_events:
            yield from self._opening()
        self._take(delta)
        if delta.text:
            self.num_sent = self._num_tokens
            yield self._of_part("response.output_text.delta", delta=delta.text, logprobs=[])

    def closing(self, metrics: Mapping[str, Any]) -> Iterator[Body]:
        """Yield the events that follow the last delta's."""
        self.num_sent = self._num_tokens
        part = _part(self._whole_text)
        yield self._of_part("response.output_text.done", text=self._whole_text, logprobs=[])
        yield self._of_part("response.content_part.done", part=part)
        yield self._event("response.output_item.done", output_index=0, item=self._item(self._status, [part]))
        yield self._event(f"response.{self._status}", response=self._ended() | {"metrics": metrics})

    def failure(self, error: Body) -> Body:
        """Return the event of an ``error`` in mid-stream: OpenAI's, with the shape of all other errors in it."""
        fields = error["error"]
        return self._event("error", **{name: fields[name] for name in ("code", "message", "param")}, **error)

    def _opening(self) -> Iterator[Body]:
        begun = self._response("in_progress", [])
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        yield self._event("response.output_item.added", output_index=0, item=self._item("in_progress", []))
        yield self._of_part("response.content_part.added", part=_part(""))

    def _take(self, delta: Delta) -> None:
        self._num_cached_tokens += delta.cached_tokens
        self._num_tokens += len(delta.token_ids)
        self._text.append(delta.text)
        self._finish_reason = delta.finish_reason

    @property
    def _whole_text(self) -> str:
        return "".join(self._text)

    @property
    def _status(self) -> str:
        return "incomplete" if self._finish_reason is FinishReason.LENGTH else "completed"

    def _event(self, kind: str, **content: Any) -> Body:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **content}

    def _of_part(self, kind: str, **content: Any) -> Body:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **content)

    def _item(self, status: str, content: list[Body]) -> Body:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _ended(self) -> Body:
        output = [self._item(self._status, [_part(self._whole_text)])]
        is_cut = self._status == "incomplete"
        changes = {
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "completed_at": None if is_cut else int(time.time()),
            "usage": self._usage(),
        }
        return self._response(self._status, output) | changes

    def _usage(self) -> Body:
        return {
            "input_tokens": self._num_prompt_tokens,
            # OpenAI counts here the tokens of prompts that clients ask to keep. That is not possible here.
            "input_tokens_details": {"cached_tokens": self._num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": self._num_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._num_prompt_tokens + self._num_tokens,
        }

    def _response(self, status: str, output: list[Body]) -> Body:
        params, format_ = self._params, self._params.format
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": params.instructions,
            "max_output_tokens": params.max_output_tokens,
            "max_tool_calls": None,
            "metadata": {},
            "model": params.model,
            "output": output,
            "parallel_tool_calls": params.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": 1.0 if params.temperature is None else params.temperature,
            "text": {"format": format_.model_dump(by_alias=True, exclude_none=True) if format_ else {"type": "text"}},
            "tool_choice": params.tool_choice or "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0 if params.top_p is None else params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": params.user,
        }


def _part(text: str) -> Body:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
