"""Stream one generation with ``specgate.client``.

PYTHONPATH=. python clients/python/generate.py "def fib(" --server 127.0.0.1:8001 --max-tokens 64
"""

import argparse
import asyncio
import os
import sys

from specgate.client import Client, Params
from specgate.errors import SpecgateError


async def stream(args: argparse.Namespace) -> None:
    """Print text as it comes, then the statistics."""
    params = Params(temperature=args.temperature, max_tokens=args.max_tokens)
    async with Client(args.server, key=os.environ.get("SPECGATE_KEY") or None) as client:
        # Leaving the loop early, Ctrl-C too, cancels the call, which frees both sessions.
        async for delta in client.stream(args.prompt, params):
            print(delta.text, end="", flush=True)
            if delta.stats is not None:
                told = f"{delta.stats.completion_tokens} tokens, {delta.stats.accepted_tokens} of them from the draft"
    print(f"\n\n{told}")


def main() -> None:
    """Leave with 0, or with 1 and the server's words, or with 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="Stream one generation from specgate's gRPC API.")
    parser.add_argument("prompt")
    parser.add_argument("--server", default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T")
    try:
        asyncio.run(stream(parser.parse_args()))
    except SpecgateError as error:
        sys.exit(f"{error.reason}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
