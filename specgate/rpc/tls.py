"""TLS files to gRPC credentials. The files are tried here, because gRPC's own errors do not name them.

Files that change are read again: a certificate is renewed without a restart, and no connection is lost. Files that
cannot be used, or are half written, leave things as they were until they change again.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from specgate.errors import InvalidArgument
from specgate.file_stamp import FileStamp, stamp_of

T = TypeVar("T")
_log = logging.getLogger(__name__)
Stamp = tuple[FileStamp | None, ...]
"""Changes with the content of files."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A server's PEM files. With ``client_ca`` only clients whose certificate it signed are let in (mTLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> Stamp:
        """Return what changes with the files."""
        return _stamp(self.certificate, self.key, self.client_ca)


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

    def stamp(self) -> Stamp:
        """Return what changes with the files."""
        return _stamp(self.ca, self.certificate, self.key)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials for a server; each handshake is made with the files as they are by then.

    Raises:
        InvalidArgument: a file cannot be read, or the key does not belong to the certificate.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        _check_pair(files.certificate, files.key)
        client_ca = _read_ca("tls.client_ca", files.client_ca)
        pair = (_read("tls.key", files.key), _read("tls.certificate", files.certificate))
        return grpc.ssl_server_certificate_configuration([pair], client_ca)

    first, renew = read(), _on_change(files, read)
    # None says that nothing has changed; the types do not know of it.
    return grpc.dynamic_ssl_server_credentials(first, cast(Any, renew), files.client_ca is not None)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context of a server that is not gRPC's, and renews itself too. Raises as ``server_credentials``.

    With ``client_ca`` it speaks TLS 1.3 only.
    """

    def read() -> ssl.SSLContext:
        _check_pair(files.certificate, files.key)
        _read_ca("tls.client_ca", files.client_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A resumed session shows no certificate: it would outlive the authority that was taken out of the file.
            # TLS 1.2 resumes by id too, which this module cannot switch off.
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.num_tickets = 0
        return context

    first = latest = read()
    renew = _on_change(files, read)

    def at_handshake(connection: ssl.SSLObject, name: str | None, used: ssl.SSLContext) -> None:
        nonlocal latest
        latest = renew() or latest
        connection.context = latest

    first.sni_callback = at_handshake
    return first


def _on_change(files: TlsFiles, read: Callable[[], T]) -> Callable[[], T | None]:
    """Return what reads files that have changed since they were read last; None: they have not, or cannot be used."""
    seen = files.stamp()

    def read_again() -> T | None:
        nonlocal seen
        now = files.stamp()
        if now == seen:
            return None
        seen = now
        try:
            renewed = read()
        except InvalidArgument as error:
            _log.error("the certificate stays as it was: %s", error)
            return None
        _log.info("the certificate in %s was renewed", files.certificate)
        return renewed

    return read_again


def client_context(files: ClientTlsFiles) -> ssl.SSLContext:
    """Return the context of a client that is not gRPC's. Raises as ``channel_credentials`` does."""
    channel_credentials(files)
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
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
        raise InvalidArgument("tls.certificate", f"{certificate} with key {key}: {_reason(error)}") from error


def _read_ca(field: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    pem = _read(field, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise InvalidArgument(field, f"{path} holds no certificate: {_reason(error)}") from error
    return pem


def _reason(error: ssl.SSLError) -> str:
    # OpenSSL gives none for a file that is no PEM, or half of one.
    return error.reason or "one of them is no whole PEM file"


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(field, f"{path} cannot be read: {error.strerror}") from error


def _stamp(*files: Path | None) -> Stamp:
    return tuple(None if file is None else stamp_of(file) for file in files)
