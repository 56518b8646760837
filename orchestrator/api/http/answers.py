"""The answers of both endpoints, whole and in chunks, as plain dictionaries in OpenAI's shapes."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from orchestrator.api.http.choice import AnswerChoice, Body, ChatChoice, CompletionChoice
from orchestrator.api.http.logprobs import TokenTexts, prompt_logprobs
from orchestrator.api.http.metrics import usage
from orchestrator.api.http.requests import GenerateRequest
from orchestrator.decode.request import Delta

Prompt = tuple[Sequence[int], str]
"""Its token ids, and the text that its choices begin with."""


class OpenAIAnswer:
    """One request's answer: ``n`` choices for each of its prompts, in that order.

    Args:
        params: what the client asked for, extras included.
        text_of: names tokens beside their log-probabilities.
        choice: makes a choice in place of the class's own.
    """

    id_prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]
    choice: ClassVar[type[AnswerChoice]]
    ends_with_done: ClassVar[bool] = True

    def __init__(
        self,
        params: GenerateRequest,
        prompts: Sequence[Prompt],
        text_of: TokenTexts,
        choice: Callable[..., AnswerChoice] | None = None,
    ) -> None:
        self._params = params
        self._prompts = prompts
        self._text_of = text_of
        copies = [prompt for prompt in prompts for _ in range(params.num_copies)]
        make = choice or self.choice
        self._choices = [make(index, params, *prompt, text_of) for index, prompt in enumerate(copies)]
        self._has_begun = False
        self._cached_tokens = 0
        """Those of each prompt's first choice. A later choice may share what the first has computed."""
        self._root = {
            "id": self.id_prefix + secrets.token_hex(12),
            "created": int(time.time()),
            "model": params.model,
        }

    @property
    def num_sent(self) -> int:
        """Tokens in the answer so far, of all choices."""
        return sum(choice.num_sent for choice in self._choices)

    def whole(self, deltas: Sequence[Sequence[Delta]], metrics: Mapping[str, Any]) -> Body:
        """Return the answer in one piece; ``deltas`` are each choice's."""
        choices = [choice.whole(own) for choice, own in zip(self._choices, deltas, strict=True)]
        self._cached_tokens = sum(own[0].cached_tokens for own in deltas[:: self._params.num_copies])
        body = self._body(self.whole_object, choices) | {"usage": self._usage(), "metrics": metrics}
        return self._with_prompts(body) | self._prompt_extras(deltas)

    def chunks(self, index: int, delta: Delta) -> Iterator[Body]:
        """Yield the chunks that a delta of choice ``index`` completes."""
        if index % self._params.num_copies == 0:
            self._cached_tokens += delta.cached_tokens
        for choice in self._choices[index].chunks(delta):
            body = self._body(self.chunk_object, [choice])
            if self._params.include_usage:
                body["usage"] = self._usage() if self._params.continuous_usage else None
            yield body if self._has_begun else self._with_prompts(body)
            self._has_begun = True

    def closing(self, metrics: Mapping[str, Any]) -> Iterator[Body]:
        """Yield what follows the last delta's chunks: usage and metrics, if the client wants them."""
        if self._params.include_usage:
            yield self._body(self.chunk_object, []) | {"usage": self._usage(), "metrics": metrics}

    def failure(self, error: Body) -> Body:
        """Return the event of an ``error`` in mid-stream."""
        return error

    def _usage(self) -> Body:
        return usage(sum(len(token_ids) for token_ids, _ in self._prompts), self.num_sent, self._cached_tokens)

    def _body(self, kind: str, choices: list[Body]) -> Body:
        return {**self._root, "object": kind, "choices": choices}

    def _with_prompts(self, body: Body) -> Body:
        """Add the prompt's token ids if they are wanted: a list of lists for several prompts."""
        if not self._params.return_token_ids:
            return body
        token_ids = [token_ids for token_ids, _ in self._prompts]
        return body | {"prompt_token_ids": token_ids[0] if len(token_ids) == 1 else token_ids}

    def _prompt_extras(self, deltas: Sequence[Sequence[Delta]]) -> Body:
        """Return what a whole answer reports of its one prompt."""
        return {}


class CompletionAnswer(OpenAIAnswer):
    """``text_completion``, whole and in chunks."""

    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"
    choice = CompletionChoice


class ChatAnswer(OpenAIAnswer):
    """``chat.completion`` and its chunks."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    choice = ChatChoice

    def _prompt_extras(self, deltas: Sequence[Sequence[Delta]]) -> Body:
        if self._params.prompt_logprobs is None:
            return {}
        logprobs = [one for delta in deltas[0] for one in delta.prompt_logprobs]
        return {"prompt_logprobs": prompt_logprobs(self._prompts[0][0], logprobs, self._text_of)}
