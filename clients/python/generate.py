"""Stream one generation. Needs grpcio and protobuf, and specgate/v1, which holds generated code alone.

PYTHONPATH=. python clients/python/generate.py "def fib(" --server 127.0.0.1:8001 --max-tokens 64
"""

import argparse
import sys

import grpc

from specgate.v1 import generation_service_pb2 as pb
from specgate.v1 import types_pb2
from specgate.v1.generation_service_pb2_grpc import GenerationServiceStub


def stream(args: argparse.Namespace) -> None:
    """Print text as it comes, then the statistics."""
    sampling = types_pb2.SamplingParams(temperature=args.temperature)
    params = pb.GenerationParams(sampling=sampling, max_tokens=args.max_tokens)
    with grpc.insecure_channel(args.server) as channel:
        stub = GenerationServiceStub(channel)
        # Leaving the loop early, Ctrl-C too, cancels the call, which frees both sessions.
        for delta in stub.GenerateStream(pb.GenerateStreamRequest(text=args.prompt, params=params)):
            print(delta.text, end="", flush=True)
    print(f"\n\n{delta.stats.completion_tokens} tokens, {delta.stats.accepted_tokens} of them from the draft")


def main() -> None:
    """Leave with 0, or with 1 and the server's words."""
    parser = argparse.ArgumentParser(description="Stream one generation from specgate's gRPC door.")
    parser.add_argument("prompt")
    parser.add_argument("--server", default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T")
    try:
        stream(parser.parse_args())
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")


if __name__ == "__main__":
    main()
