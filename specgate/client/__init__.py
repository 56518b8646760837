"""An asyncio client of GenerationService, with its requests and answers. It needs gRPC only."""

from specgate.client.client import Client
from specgate.client.values import Answer, Chat, ChatMessage, Delta, Params, Prompt, Stats

__all__ = ["Answer", "Chat", "ChatMessage", "Client", "Delta", "Params", "Prompt", "Stats"]
