"""HOST:PORT, and the rule on plain text."""

from pathlib import Path

import pytest

from specgate.errors import InvalidArgument
from specgate.rpc.channel import open_channel
from specgate.rpc.endpoint import join_endpoint, split_endpoint
from specgate.rpc.server_options import ServerOptions
from specgate.rpc.tls import TlsFiles


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "gpu-1.local"])
def test_an_endpoint_is_split_and_joined(host: str) -> None:
    endpoint = f"[{host}]:65535" if ":" in host else f"{host}:65535"
    assert split_endpoint(endpoint) == (host, 65535)
    assert join_endpoint(host, 65535) == endpoint


@pytest.mark.parametrize(
    "endpoint", ["", "host", ":1", "host:", "host:http", "host:-1", "::1:50051", "host:65536", "host:²", "unix:/x"]
)
def test_anything_else_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^endpoint: "):
        open_channel(endpoint)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_consent(host: str) -> None:
    assert ServerOptions(host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "gpu-1", "", "localhost.lan"])
def test_beyond_loopback_needs_tls_or_consent(host: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^host: .*--insecure"):
        ServerOptions(host)
    assert ServerOptions(host, insecure=True).host == host
    assert ServerOptions(host, tls=TlsFiles(Path("certificate"), Path("key"))).host == host
