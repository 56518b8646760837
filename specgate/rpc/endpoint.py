"""HOST:PORT, and which hosts stay on this machine."""

import ipaddress

from specgate.errors import InvalidArgument

MAX_PORT = 65535


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPV6]:PORT``.

    Raises:
        InvalidArgument: it has another form, or the port is above 65535.
    """
    host, colon, port = endpoint.rpartition(":")
    bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
    if not colon or not host or bare_ipv6 or not (port.isascii() and port.isdigit()):
        raise InvalidArgument("endpoint", f"{endpoint!r} is not HOST:PORT")
    if int(port) > MAX_PORT:
        raise InvalidArgument("endpoint", f"port {port} is outside [0, {MAX_PORT}]")
    return host.strip("[]"), int(port)


def join_endpoint(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``. A name other than localhost counts as beyond."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def check_exposure(
    host: str,
    *,
    has_tls: bool,
    insecure: bool,
    field: str = "host",
    hint: str = "give a certificate and key, or --insecure for plain text",
) -> None:
    """Raise InvalidArgument, of ``field``, where plain text would leave this machine without a word of consent."""
    if not (has_tls or insecure or is_loopback(host)):
        raise InvalidArgument(field, f"{host!r} is beyond loopback and there is no TLS; {hint}")
