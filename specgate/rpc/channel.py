"""Client channels. One a peer: made once, shared by its sessions."""

import grpc

from specgate.rpc.endpoint import join_endpoint, split_endpoint
from specgate.rpc.tls import ClientTlsFiles, channel_credentials

KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
MAX_MESSAGE_BYTES = 16 << 20

# Bandwidth probing answers each small message with a ping: 15 % of a round trip. A fixed window takes its place.
FLOW_OPTIONS = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4 << 20))

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *FLOW_OPTIONS,
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Services are addressed directly; an HTTP_PROXY in the environment is for other traffic.
    ("grpc.enable_http_proxy", 0),
    # Two channels to one peer are two connections: one that hangs does not take the other along.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # gRPC also takes this as the time that one attempt to connect may last; its default is 20 s.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def open_channel(
    endpoint: str, tls: ClientTlsFiles | None = None, credentials: grpc.ChannelCredentials | None = None
) -> grpc.aio.Channel:
    """Return a channel to ``endpoint`` (HOST:PORT), in plain text without ``tls``.

    It connects at its first call, and must be closed.

    Args:
        credentials: what was made of ``tls`` before; None makes them now.

    Raises:
        InvalidArgument: ``endpoint`` is not HOST:PORT, or a TLS file cannot be used.
    """
    target = join_endpoint(*split_endpoint(endpoint))
    if tls is None:
        return grpc.aio.insecure_channel(target, CHANNEL_OPTIONS)
    name = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
    return grpc.aio.secure_channel(target, credentials or channel_credentials(tls), (*CHANNEL_OPTIONS, *name))
