"""Generate text from a Python program: both services run on this machine and end with the program.

``python examples/embed.py`` uses the bundled pair; ``python examples/embed.py TARGET DRAFT`` two models of your own.
"""

import asyncio
import sys

from orchestrator import Gate, GenerationRequest, SamplingParams, open_orchestrator


async def main() -> None:
    """Print a text as it comes, then what the draft brought."""
    async with open_orchestrator(*sys.argv[1:3]) as orchestrator:
        greedy = SamplingParams(temperature=0.0)
        request = GenerationRequest(orchestrator.encode("def main():"), greedy, max_tokens=48, gamma=4, gate=Gate.NONE)
        generation = orchestrator.generate(request)
        async for delta in generation:
            print(delta.text, end="", flush=True)
        print(f"\n{generation.stats.tokens_per_forward:.1f} tokens per target forward")


asyncio.run(main())
