"""Where and how a server listens."""

from dataclasses import dataclass

from specgate.rpc.channel import FLOW_OPTIONS, KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES
from specgate.rpc.endpoint import MAX_PORT, check_exposure
from specgate.rpc.tls import TlsFiles
from specgate.types import check_range

MIN_PING_INTERVAL_MS = 5_000
"""Half of what our channels send: a client at their pace is never taken for a flood."""
MAX_STREAMS = 1024
"""On one connection at a time."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where and how a server listens. ``port`` 0 takes a free one.

    ``drain_s`` is how long running sessions may go on after a stop is asked for. An engine is taken for dead
    after ``max_engine_age_s`` without a heartbeat. A message of more than ``max_request_bytes`` is refused unread, with
    RESOURCE_EXHAUSTED. With ``reuse_port`` other servers that say so too may share the port, and the kernel deals out
    the connections.

    Raises:
        InvalidArgument: a value is outside its range, or the host is beyond loopback with neither ``tls`` nor
            ``insecure``.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: TlsFiles | None = None
    insecure: bool = False
    reuse_port: bool = False
    max_request_bytes: int = MAX_MESSAGE_BYTES
    drain_s: float = 30.0
    max_engine_age_s: float = 30.0

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, MAX_PORT)
        check_range("drain_s", self.drain_s, 0.0, 86_400.0)
        check_range("max_engine_age_s", self.max_engine_age_s, 0.01, 86_400.0)
        check_exposure(self.host, has_tls=self.tls is not None, insecure=self.insecure)


def channel_arguments(options: ServerOptions) -> tuple[tuple[str, int], ...]:
    """Return gRPC's options for a server that our channels talk to."""
    return (
        *FLOW_OPTIONS,
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", options.max_request_bytes),
        # gRPC's default is on: two servers could bind one port by accident, and each would get a part of the calls.
        ("grpc.so_reuseport", int(options.reuse_port)),
    )
