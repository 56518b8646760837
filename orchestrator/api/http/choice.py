"""One choice of an answer, whole and in chunks, in the shapes of both endpoints."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.api.http.logprobs import (
    CompletionLogprobs,
    TokenTexts,
    chat_logprobs,
    prompt_logprobs,
    trimmed,
)
from orchestrator.api.http.metrics import round_entry
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.decode.request import Delta
from specgate.types import FinishReason, TokenLogprobs

Body = dict[str, Any]
NOTHING = Delta((), ())


class AnswerChoice:
    """One choice as it grows. Subclasses define the form of its content.

    Args:
        params: the client's request.
        prompt_token_ids: of its prompt.
        prompt_text: what its text begins with: the prompt if that is echoed, else nothing.
        text_of: names tokens beside their log-probabilities.
    """

    def __init__(
        self,
        index: int,
        params: GenerateRequest,
        prompt_token_ids: Sequence[int],
        prompt_text: str,
        text_of: TokenTexts,
    ) -> None:
        self.num_sent = 0
        """Tokens in the chunks so far."""
        self._index = index
        self._params = params
        self._prompt_token_ids = prompt_token_ids
        self._prompt_text = prompt_text
        self._text_of = text_of
        self._held: list[Delta] = []
        self._has_opened = False

    def whole(self, deltas: Sequence[Delta]) -> Body:
        """Return it in one piece."""
        delta = self._wanted(_joined(deltas))
        self.num_sent += len(delta.token_ids)
        content = self._whole_content(self._prompt_text + delta.text)
        body = self._entry(content, delta, self._reason(delta.finish_reason), delta)
        return body | self._prompt_extras(delta)

    def chunks(self, delta: Delta) -> Iterator[Body]:
        """Yield the chunks that ``delta`` completes. Tokens without text yet wait for the next delta or the end."""
        delta = self._wanted(delta)
        if not self._has_opened:
            self._has_opened = True
            yield from self._opening(delta)
        self._held.append(delta)
        contents = list(self._contents(delta))
        if not contents and self._params.return_token_ids and delta.token_ids:
            contents = [self._chunk_content("")]
        for content in contents:
            yield self._release(content)
        if delta.finish_reason is not None:
            yield self._release(self._chunk_content(""), self._reason(delta.finish_reason))

    def _wanted(self, delta: Delta) -> Delta:
        """Return ``delta`` without its one token if the client wants the prompt only."""
        if not self._params.emits_nothing:
            return delta
        reason = None if delta.finish_reason is None else FinishReason.LENGTH
        return replace(NOTHING, finish_reason=reason, prompt_logprobs=delta.prompt_logprobs)

    def _contents(self, delta: Delta) -> Iterator[Body]:
        """Yield the contents of the chunks that a delta's text completes."""
        if delta.text:
            yield self._chunk_content(delta.text)

    def _reason(self, reason: str | None) -> str | None:
        """Return the finish reason to send; ``reason`` is the decoder's."""
        return reason

    def _release(self, content: Body, finish_reason: str | None = None) -> Body:
        delta = _joined(self._held)
        self._held.clear()
        self.num_sent += len(delta.token_ids)
        return self._entry(content, delta, finish_reason)

    def _entry(self, content: Body, delta: Delta, finish_reason: str | None, first: Delta | None = None) -> Body:
        """Return a choice's entry. ``first`` has the prompt's log-probabilities, if they come first."""
        return {
            "index": self._index,
            **content,
            "logprobs": self._logprobs(delta, first),
            "finish_reason": finish_reason,
            **self._extras(delta),
        }

    def _extras(self, delta: Delta) -> Body:
        extras: Body = {}
        if self._params.return_token_ids:
            extras["token_ids"] = delta.token_ids
        if self._params.return_sources:
            extras["sources"] = delta.sources
        if self._params.return_rounds:
            extras["rounds"] = [round_entry(record) for record in delta.records]
        return extras

    def _opening(self, delta: Delta) -> Iterator[Body]:
        """Yield what precedes the first delta's chunk."""
        if self._params.return_token_ids:
            yield self._entry(self._chunk_content(""), NOTHING, None)

    def _prompt_extras(self, delta: Delta) -> Body:
        """Return what a whole choice reports of its prompt beside its text."""
        return {}

    def _whole_content(self, text: str) -> Body:
        raise NotImplementedError

    def _chunk_content(self, text: str) -> Body:
        raise NotImplementedError

    def _logprobs(self, delta: Delta, first: Delta | None) -> Body | None:
        raise NotImplementedError


class CompletionChoice(AnswerChoice):
    """A choice of a ``text_completion``, whole and in chunks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._completion_logprobs = CompletionLogprobs(
            self._text_of, () if self._params.echoes else self._prompt_token_ids
        )

    def _whole_content(self, text: str) -> Body:
        return {"text": text}

    def _chunk_content(self, text: str) -> Body:
        return {"text": text}

    def _opening(self, delta: Delta) -> Iterator[Body]:
        if self._params.echoes:
            yield self._entry({"text": self._prompt_text}, NOTHING, None, delta)
        else:
            yield from super()._opening(delta)

    def _prompt_extras(self, delta: Delta) -> Body:
        if self._params.prompt_logprobs is None:
            return {}
        logprobs = trimmed(delta.prompt_logprobs, self._params.prompt_logprobs)
        return {"prompt_logprobs": prompt_logprobs(self._prompt_token_ids, logprobs, self._text_of)}

    def _logprobs(self, delta: Delta, first: Delta | None) -> Body | None:
        token_ids: tuple[int, ...] = delta.token_ids
        logprobs: tuple[TokenLogprobs | None, ...] = delta.logprobs
        if self._params.echoes and self._params.num_top_logprobs is not None and first is not None:
            token_ids = (*self._prompt_token_ids, *token_ids)
            logprobs = (None, *trimmed(first.prompt_logprobs, self._params.num_top_logprobs), *logprobs)
        return self._completion_logprobs.next(token_ids, logprobs)


class ChatChoice(AnswerChoice):
    """A choice of a ``chat.completion`` and its chunks. The first chunk names the role."""

    def _opening(self, delta: Delta) -> Iterator[Body]:
        yield self._entry({"delta": {"role": "assistant", "content": ""}}, NOTHING, None)

    def _whole_content(self, text: str) -> Body:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _chunk_content(self, text: str) -> Body:
        return {"delta": {"content": text} if text else {}}

    def _logprobs(self, delta: Delta, first: Delta | None) -> Body | None:
        return chat_logprobs(delta, self._text_of)


def _joined(deltas: Sequence[Delta]) -> Delta:
    """Return all of ``deltas`` as one."""
    return Delta(
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        sources=tuple(source for delta in deltas for source in delta.sources),
        text="".join(delta.text for delta in deltas),
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        finish_reason=deltas[-1].finish_reason if deltas else None,
        prompt_logprobs=tuple(one for delta in deltas for one in delta.prompt_logprobs),
        records=tuple(record for delta in deltas for record in delta.records),
    )
