"""HOST:PORT, and the rule on plain text."""

import pytest

from specgate.errors import InvalidArgument
from specgate.rpc.endpoint import check_exposure, is_loopback, join_endpoint, split_endpoint


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051),
        ("[::1]:1", "::1", 1),
        ("gpu-1.local:65535", "gpu-1.local", 65535),
    ],
)
def test_an_endpoint_is_split_and_joined(endpoint: str, host: str, port: int) -> None:
    assert split_endpoint(endpoint) == (host, port)
    assert join_endpoint(host, port) == endpoint


@pytest.mark.parametrize(
    "endpoint",
    ["", "host", ":1", "host:", "host:http", "host:-1", "::1:50051", "host:65536", "host:²", "unix:/x"],
)
def test_anything_else_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^endpoint: "):
        split_endpoint(endpoint)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_consent(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, has_tls=False, insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "192.168.1.1", "gpu-1", "", "localhost.lan"])
def test_beyond_loopback_needs_tls_or_consent(host: str) -> None:
    with pytest.raises(InvalidArgument, match="--insecure"):
        check_exposure(host, has_tls=False, insecure=False)
    check_exposure(host, has_tls=True, insecure=False)
    check_exposure(host, has_tls=False, insecure=True)
