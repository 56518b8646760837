"""The flags of a service, as one frozen value."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from specgate import __version__
from specgate.errors import InvalidArgument
from specgate.types import MAX_RUN_AHEAD, Attention, Dtype, check_range, dtype_on

MAX_SESSIONS_LIMIT = 4096
DEFAULT_RUN_AHEAD = 4


@dataclass(frozen=True, slots=True)
class ServiceConfig:
    """One service: which model, where it listens, how much it may hold.

    ``slow_us`` is for measuring: what every forward waits besides, as if the model were that much larger.

    Raises:
        InvalidArgument: a value is outside its range; the message names the flag.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = 0
    device: str = "auto"
    dtype: str = Dtype.AUTO
    threads: int | None = None
    cpu: int | None = None
    max_sessions: int = 16
    kv_tokens: int | None = None
    max_batch_tokens: int = 2048
    prefill_chunk: int | None = None
    attention: str = Attention.AUTO
    cuda_graphs: bool = True
    cpu_graphs: bool = True
    run_ahead: int = DEFAULT_RUN_AHEAD
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    insecure: bool = False
    drain_s: float = 30.0
    json_events: bool = False
    exit_with_stdin: bool = False
    slow_us: int = 0

    def __post_init__(self) -> None:
        check_range("--port", self.port, 0, 65_535)
        check_range("--max-sessions", self.max_sessions, 1, MAX_SESSIONS_LIMIT)
        check_range("--kv-tokens", 16 if self.kv_tokens is None else self.kv_tokens, 16, 1 << 40)
        check_range("--max-batch-tokens", self.max_batch_tokens, 64, 1 << 20)
        check_range("--prefill-chunk", 1 if self.prefill_chunk is None else self.prefill_chunk, 1, 1 << 20)
        if self.attention not in list(Attention):
            raise InvalidArgument("--attention", f"{self.attention!r} is not one of {', '.join(Attention)}")
        dtype_on(self.dtype, self.device)
        check_range("--run-ahead", self.run_ahead, 0, MAX_RUN_AHEAD)
        check_range("--threads", self.threads if self.threads is not None else 1, 1, 1024)
        check_range("--drain-s", self.drain_s, 0.0, 86_400.0)
        check_range("--slow-us", self.slow_us, 0, 10_000_000)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidArgument("--tls-certificate", "and --tls-key go together; one of them is missing")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise InvalidArgument("--tls-client-ca", "needs --tls-certificate and --tls-key")


def parse_flags(role: str, argv: Sequence[str] | None) -> ServiceConfig:
    """Return the configuration that the command line asks for; exits with code 2 on a flag it does not know."""
    parser = argparse.ArgumentParser(
        prog=f"{role}-svc",
        description=f"Serve one HuggingFace model as a specgate {role} over gRPC.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--version", action="version", version=__version__)
    add("--model", required=True, help="folder or hub id of a HuggingFace causal language model")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--port", type=int, default=0, help="port to listen on; 0 picks a free one")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    dtype_help = "of weights and forward pass; auto: bfloat16 on CUDA, float32 on the CPU"
    add("--dtype", default="auto", choices=[*map(str, Dtype)], help=dtype_help)
    add("--threads", type=int, help="torch threads; torch's own choice where absent")
    add("--cpu", type=int, help="pin the process to this core")
    add("--max-sessions", type=int, default=16, help="sessions at the same time")
    add("--kv-tokens", type=int, help="tokens that the KV pages hold in all; as memory allows where absent")
    add("--max-batch-tokens", type=int, default=2048, help="tokens of all sessions in one forward pass")
    add("--prefill-chunk", type=int, help="tokens of prompts in one while others decode; 64 on the CPU, 512 on CUDA")
    attention_help = "varlen: one fused call, on CUDA in bfloat16 or float16; sdpa: any"
    add("--attention", default="auto", choices=[*map(str, Attention)], help=attention_help)
    graphs = argparse.BooleanOptionalAction
    add("--cuda-graphs", action=graphs, default=True, help="replay recorded forwards, where attention is varlen")
    add("--cpu-graphs", action=graphs, default=True, help="replay recorded forwards of few rows, on the CPU")
    if role == "drafter":
        help_text = "outcomes of the pending verdict to draft for side by side; 0 is off"
        add("--run-ahead", metavar="ROWS", type=int, default=DEFAULT_RUN_AHEAD, help=help_text)
    add("--tls-certificate", help="PEM file of the server's certificate chain")
    add("--tls-key", help="PEM file of its private key")
    add("--tls-client-ca", help="PEM file; clients must show a certificate signed by it")
    add("--insecure", action="store_true", help="allow an address beyond loopback without TLS")
    add("--drain-s", type=float, default=30.0, help="seconds that running sessions get on SIGTERM")
    add("--json-events", action="store_true", help="tell loading progress as JSON lines on stdout")
    add("--exit-with-stdin", action="store_true", help="exit when standard input ends: the parent is gone")
    add("--slow-us", type=int, default=0, help=argparse.SUPPRESS)
    return ServiceConfig(**vars(parser.parse_args(argv)))
