"""The prompt of a request: a text, token ids, or a chat."""

from functools import partial

from orchestrator.api.chats import MAX_MESSAGES, MAX_NAME_CHARACTERS, ROLES, turn
from orchestrator.api.request_queue import RequestQueue
from orchestrator.decode.text import TextTokenizer
from specgate.errors import InvalidArgument
from specgate.rpc.validate import check_length, check_token_ids
from specgate.v1 import generation_service_pb2 as pb


async def encoded_prompt(
    request: pb.GenerateStreamRequest | pb.GenerateRequest, request_queue: RequestQueue
) -> tuple[int, ...]:
    """Return the prompt's token ids.

    Raises:
        InvalidArgument: it is missing, empty or too long, has an id outside the vocabulary, or is a chat that cannot
            be encoded; names the field.
    """
    most = max(1, request_queue.target_info.context_length - 1)
    match request.WhichOneof("prompt"):
        case "text":
            token_ids = await _encoded_text(request.text, request_queue)
            check_length("text (tokens)", token_ids, 1, most)
            return token_ids
        case "chat":
            token_ids = await _encoded_chat(request.chat, request_queue)
            check_length("chat (tokens)", token_ids, 1, most)
            return token_ids
        case "token_ids":
            ids = request.token_ids.ids
            check_length("token_ids", ids, 1, most)
            check_token_ids("token_ids", ids, request_queue.target_info.vocab_size)
            return tuple(ids)
    raise InvalidArgument("prompt", "is missing; give text, token_ids or chat")


async def _encoded_text(text: str, request_queue: RequestQueue) -> tuple[int, ...]:
    if not text:
        raise InvalidArgument("text", "is empty; at least 1 character is needed")
    return await request_queue.read(lambda tokenizer: tokenizer.encode(text), len(text.encode()), "text")


async def _encoded_chat(chat: pb.Chat, request_queue: RequestQueue) -> tuple[int, ...]:
    check_length("chat.messages", chat.messages, 1, MAX_MESSAGES)
    return await request_queue.read(partial(_encode_turns, chat), chat.ByteSize(), "chat")


def _turn(index: int, message: pb.ChatMessage) -> dict[str, str]:
    place = f"chat.messages[{index}]"
    if message.role not in ROLES:
        raise InvalidArgument(f"{place}.role", f"{message.role[:32]!r} is not one of {', '.join(ROLES)}")
    check_length(f"{place}.name", message.name, 0, MAX_NAME_CHARACTERS)
    return turn(message.role, message.content, message.name)


def _encode_turns(chat: pb.Chat, tokenizer: TextTokenizer) -> tuple[int, ...]:
    turns = [_turn(index, message) for index, message in enumerate(chat.messages)]
    continued = chat.continue_final_message
    try:
        return tokenizer.encode_chat(turns, add_generation_prompt=not continued, continue_final_message=continued)
    except InvalidArgument as error:
        raise InvalidArgument(f"chat.{error.field}", error.problem) from None
