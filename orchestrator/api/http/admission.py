"""From a client's request to a ``GenerationRequest``: encode the prompt, add defaults, refuse by the client's field."""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from orchestrator.api.choices import check_num_choices, choices_of
from orchestrator.api.http.chat import ChatRequest, Message
from orchestrator.api.http.errors import ApiError, with_client_field
from orchestrator.api.http.requests import CompletionRequest, GenerateRequest
from orchestrator.api.http.responses_request import ResponsesRequest
from orchestrator.api.http.tool_request import Tool
from orchestrator.api.http.tool_use import ToolUse
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_token_ids
from specgate.types import Grammar, ModelInfo, SamplingParams

Asked = CompletionRequest | ChatRequest | ResponsesRequest


async def admissible(
    params: Asked, request_queue: RequestQueue, tool_use: ToolUse | None = None
) -> list[GenerationRequest]:
    """Return the requests for the queue: for each prompt, in order, as many choices as the client wants.

    Raises:
        ApiError: 404 for another model's name, 400 where prompt and answer pass the context length, or see
            ``ToolUse.grammar``.
        InvalidArgument: a value is out of its range, or the answer's grammar cannot be used; the field is named as the
            client names it.
        TooManySessions, ServiceUnavailable: the request queue takes no request now; before anything is encoded.
    """
    check_model(params.model, request_queue)
    try:
        num_prompts = len(params.prompt) if isinstance(params, CompletionRequest) else 1
        check_num_choices(num_prompts, params.num_copies)
        request_queue.check_room(num_prompts * params.num_copies)
        if tool_use is None:
            grammar = await request_queue.beside(lambda: params.grammar, params.num_bytes)
            grammar = await request_queue.checked(grammar)
        else:
            grammar = await tool_use.grammar()
        prompts = await encode(params, request_queue)
        shown = frozenset[int]() if tool_use is None else tool_use.shown_token_ids
        requests = [_generation_request(params, prompt, grammar, shown, request_queue) for prompt in prompts]
        return choices_of(requests, params.num_copies)
    except InvalidArgument as error:
        raise with_client_field(error, params.names) from None


def check_model(name: str | None, request_queue: RequestQueue) -> None:
    """Raise ApiError, 404, unless ``name`` is the served model's, or None."""
    if name not in (None, request_queue.model_name):
        problem = f"the model {name!r} is not served here; {request_queue.model_name!r} is"
        raise ApiError(404, problem, param="model", code="model_not_found")


async def encode(params: Asked, request_queue: RequestQueue) -> list[tuple[int, ...]]:
    """Return each prompt's token ids.

    Raises:
        InvalidArgument: see ``RequestQueue.read``; or there is no chat template, or it refuses the messages.
    """
    if not isinstance(params, CompletionRequest):
        tools = params.offered_tools if isinstance(params, ChatRequest) else ()
        return [await request_queue.read(partial(encode_chat, params, tools), params.num_bytes, params.prompt_field)]
    texts = [prompt for prompt in params.prompt if isinstance(prompt, str)]
    lists = [prompt for prompt in params.prompt if not isinstance(prompt, str)]
    if texts:
        encode_all = partial(_encode_texts, texts, params.add_special_tokens is not False)
        return await request_queue.read(encode_all, params.num_bytes, "prompt")
    return await request_queue.beside(partial(_known_ids, lists, request_queue.target_info), params.num_bytes)


def _encode_texts(texts: Sequence[str], adds: bool, tokenizer: TextTokenizer) -> list[tuple[int, ...]]:
    return [tokenizer.encode(text, add_special_tokens=adds) for text in texts]


def _known_ids(lists: Sequence[Sequence[int]], target: ModelInfo) -> list[tuple[int, ...]]:
    """Return prompts of ids, checked: their echo decodes them before anything else checks them."""
    for token_ids in lists:
        check_token_ids("prompt", token_ids, target.vocab_size)
    return [tuple(token_ids) for token_ids in lists]


class ChatFields(Protocol):
    """The fields of a conversation, whatever the endpoint."""

    @property
    def messages(self) -> Sequence[Message] | None: ...

    @property
    def add_generation_prompt(self) -> bool | None: ...

    @property
    def continue_final_message(self) -> bool | None: ...


def encode_chat(chat: ChatFields, tools: Sequence[Tool], tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Return the ids of a chat. An assistant's turn begins after it, unless its last message is to be continued."""
    continued = bool(chat.continue_final_message)
    return tokenizer.encode_chat(
        [message.for_template() for message in chat.messages or ()],
        [tool.for_template() for tool in tools],
        add_generation_prompt=not continued if chat.add_generation_prompt is None else chat.add_generation_prompt,
        continue_final_message=continued,
    )


def _length(params: GenerateRequest, num_prompt_tokens: int, request_queue: RequestQueue) -> int:
    """Return how many tokens may be emitted: what the client wants, else the default as far as the context reaches."""
    context_length = request_queue.target_info.context_length
    field, wanted = params.length or (params.prompt_field, request_queue.default_max_tokens(num_prompt_tokens))
    # For an answer without tokens one is decoded, and not sent.
    room = max(wanted, 1)
    if num_prompt_tokens + room <= context_length:
        return wanted
    raise ApiError(
        400,
        f"{field}: {num_prompt_tokens} prompt tokens and {room} more pass the context length of {context_length}",
        param=field,
        code="context_length_exceeded",
    )


def _generation_request(
    params: GenerateRequest,
    prompt: tuple[int, ...],
    grammar: Grammar | None,
    shown_token_ids: frozenset[int],
    request_queue: RequestQueue,
) -> GenerationRequest:
    # One token is always decoded. If the client wants none, the answer leaves it out.
    max_tokens = _length(params, len(prompt), request_queue) + params.emits_nothing
    defaults = request_queue.defaults
    gate = defaults.gate if params.gate is None else params.gate
    threshold, draft_threshold = defaults.thresholds_of(gate)
    return GenerationRequest(
        prompt_token_ids=prompt,
        sampling=SamplingParams.from_fields_of(params),
        max_tokens=max_tokens,
        seed=params.seed,
        stop=tuple(params.stop or ()),
        stop_token_ids=frozenset(params.stop_token_ids or ()),
        ignore_eos=bool(params.ignore_eos),
        gamma=defaults.gamma if params.gamma is None else params.gamma,
        gate=gate,
        gate_threshold=threshold if params.gate_threshold is None else params.gate_threshold,
        draft_threshold=draft_threshold if params.draft_threshold is None else params.draft_threshold,
        verification=params.verification or defaults.verification,
        logprobs=params.num_top_logprobs,
        cache_salt=params.cache_salt or "",
        min_tokens=params.min_tokens or 0,
        prompt_logprobs=params.num_prompt_logprobs,
        include_stop=bool(params.include_stop_str_in_output),
        skip_special_tokens=params.skips_special_tokens,
        shown_token_ids=shown_token_ids,
        grammar=grammar,
    )


async def echoed_texts(params: Asked, prompts: Sequence[Sequence[int]], request_queue: RequestQueue) -> list[str]:
    """Return what the text of each prompt's choices begins with: the prompt, if it is to be echoed."""
    tokenizer = request_queue.orchestrator.tokenizer
    if not isinstance(params, CompletionRequest) or not params.echoes or tokenizer is None:
        return [""] * len(prompts)
    # An unfinished character at the prompt's end is the prompt's if no answer completes it.
    text_of = tokenizer.decode if params.emits_nothing else tokenizer.prompt_text
    read = partial(text_of, skip_special_tokens=params.skips_special_tokens)

    def texts() -> list[str]:
        given = zip(params.prompt, prompts, strict=True)
        return [prompt if isinstance(prompt, str) else read(token_ids) for prompt, token_ids in given]

    return await request_queue.beside(texts, params.num_bytes)
