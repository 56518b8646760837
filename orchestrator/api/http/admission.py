"""From a client's request to a ``GenerationRequest``: encode the prompt, fill in defaults, refuse in its own words."""

from dataclasses import replace
from functools import partial

from orchestrator.api.http.chat import ChatRequest
from orchestrator.api.http.errors import ApiError, in_words_of
from orchestrator.api.http.requests import CompletionRequest, GenerateRequest
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate.types import SamplingParams

SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)


async def admissible(params: CompletionRequest | ChatRequest, request_queue: RequestQueue) -> GenerationRequest:
    """Return what the request queue is asked for.

    Raises:
        ApiError: 404 for another model's name, 400 where prompt and answer pass the context length.
        InvalidArgument: a value is out of its range, or the answer's grammar cannot be used; the field is named as the
            client names it.
        TooManySessions, ServiceUnavailable: the request queue takes nobody now; before anything is encoded.
    """
    if params.model != request_queue.model_name:
        problem = f"the model {params.model!r} is not served here; {request_queue.model_name!r} is"
        raise ApiError(404, problem, param="model", code="model_not_found")
    request_queue.check_room()
    try:
        grammar = await request_queue.checked(params.grammar)
        prompt = await encode(params, request_queue)
        max_tokens = _length(params, len(prompt), request_queue)
        return replace(_generation_request(params, prompt, max_tokens, request_queue), grammar=grammar)
    except InvalidArgument as error:
        raise in_words_of(error, params.names) from None


async def encode(params: CompletionRequest | ChatRequest, request_queue: RequestQueue) -> tuple[int, ...]:
    """Return the prompt's token ids.

    Raises:
        InvalidArgument: see ``RequestQueue.encode``; or there is no chat template, or it refuses the messages.
    """
    field = params.prompt_field
    if isinstance(params, ChatRequest):
        num_characters = sum(len(message.content) for message in params.messages)
        return await request_queue.encode(partial(_encode_chat, params), num_characters, field)
    if isinstance(params.prompt, str):
        return await request_queue.encode(partial(_encode_text, params), len(params.prompt), field)
    return tuple(params.prompt)


def _encode_chat(params: ChatRequest, tokenizer: TextTokenizer) -> tuple[int, ...]:
    continued = bool(params.continue_final_message)
    begin = not continued if params.add_generation_prompt is None else params.add_generation_prompt
    messages = [message.for_template() for message in params.messages]
    return tokenizer.encode_chat(messages, add_generation_prompt=begin, continue_final_message=continued)


def _encode_text(params: CompletionRequest, tokenizer: TextTokenizer) -> tuple[int, ...]:
    return tokenizer.encode(str(params.prompt), add_special_tokens=params.add_special_tokens is not False)


def _length(params: GenerateRequest, num_prompt_tokens: int, request_queue: RequestQueue) -> int:
    """Return how many tokens may be emitted: what the client says, else the default as far as the context reaches."""
    context_length = request_queue.target_info.context_length
    field, wanted = params.length or (params.prompt_field, request_queue.default_max_tokens(num_prompt_tokens))
    if num_prompt_tokens + wanted <= context_length:
        return wanted
    raise ApiError(
        400,
        f"{field}: {num_prompt_tokens} prompt tokens and {wanted} more pass the context length of {context_length}",
        param=field,
        code="context_length_exceeded",
    )


def _generation_request(
    params: GenerateRequest, prompt: tuple[int, ...], max_tokens: int, request_queue: RequestQueue
) -> GenerationRequest:
    defaults = request_queue.defaults
    said = {name: value for name in SAMPLING_FIELDS if (value := getattr(params, name)) is not None}
    gate = defaults.gate if params.gate is None else params.gate
    # A threshold belongs to its gate: the default one says nothing to another gate.
    threshold = defaults.gate_threshold if gate is defaults.gate else None
    return GenerationRequest(
        prompt_token_ids=prompt,
        sampling=SamplingParams(**said),
        max_tokens=max_tokens,
        seed=params.seed,
        stop=tuple(params.stop or ()),
        stop_token_ids=frozenset(params.stop_token_ids or ()),
        ignore_eos=bool(params.ignore_eos),
        gamma=defaults.gamma if params.gamma is None else params.gamma,
        gate=gate,
        gate_threshold=threshold if params.gate_threshold is None else params.gate_threshold,
        verification=params.verification or defaults.verification,
        logprobs=params.num_top_logprobs,
        cache_salt=params.cache_salt or "",
    )
