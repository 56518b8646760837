"""A chat's choice that may have calls, whole and in chunks, in OpenAI's form."""

from collections.abc import Iterator
from typing import Any

from orchestrator.api.http.choice import NOTHING, Body, ChatChoice
from orchestrator.api.http.tool_use import ToolUse
from orchestrator.api.http.tools.calls import CallStart, Content, Event
from orchestrator.decode.request import Delta


class ToolCallingChoice(ChatChoice):
    """A choice of a ``chat.completion`` and its chunks. Text is content, calls are ``tool_calls``."""

    def __init__(self, tool_use: ToolUse, *args: Any) -> None:
        super().__init__(*args)
        self._tool_use = tool_use
        self._reader = tool_use.reader()
        self._num_calls = 0

    def _opening(self, delta: Delta) -> Iterator[Body]:
        yield self._entry({"delta": {"role": "assistant", "content": None}}, NOTHING, None)

    def _contents(self, delta: Delta) -> Iterator[Body]:
        for event in self._events(delta.text, ends=delta.finish_reason is not None):
            yield {"delta": self._delta(event)}

    def _events(self, text: str, *, ends: bool) -> list[Event]:
        return [*self._reader.push(text), *(self._reader.finish() if ends else ())]

    def _delta(self, event: Event) -> Body:
        if isinstance(event, Content):
            return {"content": event.text}
        if isinstance(event, CallStart):
            self._num_calls += 1
            call = self._call(event.name) | {"index": self._num_calls - 1}
        else:
            call = {"index": self._num_calls - 1, "function": {"arguments": event.text}}
        return {"tool_calls": [call]}

    def _call(self, name: str) -> Body:
        return {"id": self._tool_use.new_id(), "type": "function", "function": {"name": name, "arguments": ""}}

    def _whole_content(self, text: str) -> Body:
        content, calls = "", list[Body]()
        for event in self._events(text, ends=True):
            if isinstance(event, Content):
                content += event.text
            elif isinstance(event, CallStart):
                calls.append(self._call(event.name))
            else:
                calls[-1]["function"]["arguments"] += event.text
        self._num_calls = len(calls)
        message = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        return {"message": message | ({"tool_calls": calls} if calls else {})}

    def _reason(self, reason: str | None) -> str | None:
        return reason and self._tool_use.finish_reason(reason, self._reader, self._num_calls)
