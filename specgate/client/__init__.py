"""A client of GenerationService for asyncio: ``Client``, what it is asked, and what it answers. It needs gRPC alone."""

from specgate.client.client import Client
from specgate.client.values import Answer, Chat, ChatMessage, Delta, Params, Prompt, Stats

__all__ = ["Answer", "Chat", "ChatMessage", "Client", "Delta", "Params", "Prompt", "Stats"]
