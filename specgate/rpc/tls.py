"""TLS files to gRPC credentials. The files are tried here, because gRPC's own errors do not name them."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from specgate.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's PEM files. With ``client_ca`` only clients whose certificate it signed are let in (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ClientTlsFiles:
    """A client's PEM files.

    ``ca`` is who signed the server's certificate (absent: the system's roots), ``certificate`` and ``key``
    are the client's own for mTLS, ``server_name`` is the name in the server's certificate where it is not the
    endpoint's.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials for a server.

    Raises:
        InvalidArgument: a file cannot be read, or the key does not belong to the certificate.
    """
    _check_pair(files.certificate, files.key)
    client_ca = _read_ca("tls.client_ca", files.client_ca)
    pair = (_read("tls.key", files.key), _read("tls.certificate", files.certificate))
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a server that is not gRPC's. Raises as ``server_credentials`` does."""
    _check_pair(files.certificate, files.key)
    _read_ca("tls.client_ca", files.client_ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def channel_credentials(files: ClientTlsFiles) -> grpc.ChannelCredentials:
    """Return credentials for a channel.

    Raises:
        InvalidArgument: a file cannot be read, or a key without its certificate, or the other way round.
    """
    ca = _read_ca("tls.ca", files.ca)
    if files.certificate is None or files.key is None:
        if files.certificate is not files.key:
            raise InvalidArgument("tls.certificate", "certificate and key are given together or not at all")
        return grpc.ssl_channel_credentials(ca)
    _check_pair(files.certificate, files.key)
    return grpc.ssl_channel_credentials(ca, _read("tls.key", files.key), _read("tls.certificate", files.certificate))


def _check_pair(certificate: Path, key: Path) -> None:
    _read("tls.certificate", certificate)
    _read("tls.key", key)
    try:
        # An encrypted key would ask for its password on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        raise InvalidArgument("tls.certificate", f"{certificate} with key {key}: {error.reason}") from error


def _read_ca(field: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    pem = _read(field, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise InvalidArgument(field, f"{path} holds no certificate: {error.reason}") from error
    return pem


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(field, f"{path} cannot be read: {error.strerror}") from error
