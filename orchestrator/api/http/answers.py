"""The answers of both endpoints, whole and in chunks, as plain dictionaries in OpenAI's shapes."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from orchestrator.api.http.logprobs import TokenText, chat_logprobs, completion_logprobs
from orchestrator.api.http.metrics import usage
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.decode.request import Delta

Body = dict[str, Any]


class OpenAIAnswer:
    """One request's answer. Its subclasses say what a choice looks like.

    Args:
        params: what the client asked for, extras included.
        prompt_token_ids: told where token ids are.
        text_of: names tokens beside their log-probabilities.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, params: GenerateRequest, prompt_token_ids: Sequence[int], text_of: TokenText) -> None:
        self._params = params
        self._prompt_token_ids = prompt_token_ids
        self._text_of = text_of
        self._root = {
            "id": self.id_prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": params.model,
        }
        self._held: list[Delta] = []
        self.num_sent = 0
        """Tokens in the chunks so far."""

    def whole(self, deltas: Sequence[Delta], usage: Mapping[str, int], metrics: Mapping[str, Any]) -> Body:
        """Return the answer in one piece."""
        delta = _joined(deltas)
        choice = {
            "index": 0,
            **self._whole_content(delta.text),
            "logprobs": self._logprobs(delta),
            "finish_reason": delta.finish_reason,
            **self._extras(delta),
        }
        body = self._body(self.whole_object, [choice]) | {"usage": usage, "metrics": metrics}
        return self._with_prompt(body)

    def opening(self) -> Iterator[Body]:
        """Yield what comes before the first delta's chunk."""
        if self._params.return_token_ids:
            yield self._with_prompt(self._chunk(Delta((), ())))

    def chunks(self, delta: Delta) -> Iterator[Body]:
        """Yield the chunks that ``delta`` completes; what has no text yet waits for the next one, or for the end."""
        self._held.append(delta)
        tells_ids = self._params.return_token_ids and delta.token_ids
        if delta.text or tells_ids:
            yield self._release()
        if delta.finish_reason is not None:
            yield self._release(delta.finish_reason)

    def closing(self, usage: Mapping[str, int], metrics: Mapping[str, Any]) -> Iterator[Body]:
        """Yield what comes after the last delta's chunks: usage and metrics, where the client wants them."""
        if self._params.include_usage:
            yield self._body(self.chunk_object, []) | {"usage": usage, "metrics": metrics}

    def _release(self, finish_reason: str | None = None) -> Body:
        delta = _joined(self._held)
        self._held.clear()
        self.num_sent += len(delta.token_ids)
        return self._chunk(delta, finish_reason)

    def _chunk(self, delta: Delta, finish_reason: str | None = None) -> Body:
        choice = {
            "index": 0,
            **self._chunk_content(delta.text),
            "logprobs": self._logprobs(delta),
            "finish_reason": finish_reason,
            **self._extras(delta),
        }
        body = self._body(self.chunk_object, [choice])
        return body | {"usage": self._usage_so_far()} if self._params.include_usage else body

    def _usage_so_far(self) -> Mapping[str, int] | None:
        return usage(len(self._prompt_token_ids), self.num_sent) if self._params.continuous_usage else None

    def _body(self, kind: str, choices: list[Body]) -> Body:
        return {**self._root, "object": kind, "choices": choices}

    def _extras(self, delta: Delta) -> Body:
        extras: Body = {}
        if self._params.return_token_ids:
            extras["token_ids"] = delta.token_ids
        if self._params.return_sources:
            extras["sources"] = delta.sources
        return extras

    def _with_prompt(self, body: Body) -> Body:
        return body | {"prompt_token_ids": self._prompt_token_ids} if self._params.return_token_ids else body

    def _whole_content(self, text: str) -> Body:
        raise NotImplementedError

    def _chunk_content(self, text: str) -> Body:
        raise NotImplementedError

    def _logprobs(self, delta: Delta) -> Body | None:
        raise NotImplementedError


class CompletionAnswer(OpenAIAnswer):
    """``text_completion``, whole and in chunks."""

    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, params: GenerateRequest, prompt_token_ids: Sequence[int], text_of: TokenText) -> None:
        super().__init__(params, prompt_token_ids, text_of)
        self._offset = 0

    def _whole_content(self, text: str) -> Body:
        return {"text": text}

    def _chunk_content(self, text: str) -> Body:
        return {"text": text}

    def _logprobs(self, delta: Delta) -> Body | None:
        told = completion_logprobs(delta, self._text_of, self._offset)
        if told is not None:
            self._offset += sum(map(len, told["tokens"]))
        return told


class ChatAnswer(OpenAIAnswer):
    """``chat.completion`` and its chunks: the first one names the role."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Iterator[Body]:
        """See ``OpenAIAnswer``."""
        first = self._chunk(Delta((), ()))
        first["choices"][0]["delta"] = {"role": "assistant", "content": ""}
        yield self._with_prompt(first)

    def _whole_content(self, text: str) -> Body:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _chunk_content(self, text: str) -> Body:
        return {"delta": {"content": text} if text else {}}

    def _logprobs(self, delta: Delta) -> Body | None:
        return chat_logprobs(delta, self._text_of)


def _joined(deltas: Sequence[Delta]) -> Delta:
    """Return all of ``deltas`` as one."""
    return Delta(
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        sources=tuple(source for delta in deltas for source in delta.sources),
        text="".join(delta.text for delta in deltas),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        finish_reason=deltas[-1].finish_reason if deltas else None,
    )
