"""Whether an S3 endpoint can be reached at all: name, TCP, TLS, each within seconds.

Owns: the first step of the preflight. Standard library and core only.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from urllib.parse import urlsplit

CONNECT_SECONDS = 2.0
"""For all addresses of the host together, so that one dropped SYN can't stall a start."""
HANDSHAKE_SECONDS = 2.0

_PORTS = {"http": 80, "https": 443}


class EndpointUnreachable(Exception):
    """The endpoint can't be used; the text says why and what to change."""


def reach_endpoint(url: str, ca_bundle: str) -> str:
    """Blocking: connect to the endpoint and close again.

    Returns:
        In words, what answered.

    Raises:
        EndpointUnreachable: it can't be reached, or its certificate is not trusted.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or _PORTS[parts.scheme]
    with contextlib.closing(_connect(host, port)) as connection:
        address = connection.getpeername()[0]
        if parts.scheme == "https":
            return f"{address} port {port}, {_handshake(connection, host, ca_bundle)}"
    return f"{address} port {port}, plain http"


def _connect(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise EndpointUnreachable(
            f"the host name {host!r} is not known: correct AWS_ENDPOINT_URL_S3, AWS_REGION or DNS"
        ) from None
    end = time.monotonic() + CONNECT_SECONDS
    last: OSError = TimeoutError()
    for *_, address in addresses:
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection((str(address[0]), port), timeout=left)
        except OSError as error:
            last = error
    raise EndpointUnreachable(_why(last, host, port)) from None


def _why(error: OSError, host: str, port: int) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens on {host} port {port}: start it or correct AWS_ENDPOINT_URL_S3"
    if isinstance(error, TimeoutError):
        return (
            f"{host} port {port} does not accept a connection within {CONNECT_SECONDS:g} s: "
            "check AWS_ENDPOINT_URL_S3, firewall and network"
        )
    return (
        f"{host} port {port} can't be reached ({error.strerror}): "
        "check AWS_ENDPOINT_URL_S3 and the network"
    )


def _handshake(connection: socket.socket, host: str, ca_bundle: str) -> str:
    connection.settimeout(HANDSHAKE_SECONDS)
    try:
        context = ssl.create_default_context(cafile=ca_bundle or None)
        with context.wrap_socket(connection, server_hostname=host) as tls:
            return tls.version() or "TLS"
    except ssl.SSLCertVerificationError as error:
        raise EndpointUnreachable(
            f"the certificate of {host} is not trusted ({error.verify_message}): "
            "set AWS_CA_BUNDLE to its CA's certificate"
        ) from None
    except ssl.SSLError:
        raise EndpointUnreachable(
            f"{host} does not speak TLS: use http:// in AWS_ENDPOINT_URL_S3, or correct its port"
        ) from None
    except OSError:
        raise EndpointUnreachable(
            f"{host} breaks off the TLS handshake: correct the port in AWS_ENDPOINT_URL_S3"
        ) from None
