"""Whether an S3 endpoint can be reached at all: name, TCP, TLS, HTTP, each within seconds.

Owns: the first steps of the preflight and of the doctor. Standard library and core only.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .findings import Cause, Problem

CONNECT_SECONDS = 2.0
"""For all addresses of the host together, so that one dropped SYN can't stall a start."""
HANDSHAKE_SECONDS = 2.0
ANSWER_SECONDS = 3.0

_PORTS = {"http": 80, "https": 443}
_MAX_HEAD_BYTES = 16 << 10

Addresses = Sequence[tuple[Any, ...]]
"""What `getaddrinfo` found."""


class EndpointUnreachable(Problem):
    """The endpoint can't be used; the text says why and what to change."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    host: str
    port: int
    tls: bool

    @classmethod
    def of(cls, url: str) -> Endpoint:
        """Of an `http(s)://host[:port]`."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return cls(parts.hostname or "", parts.port or _PORTS[parts.scheme], tls)


class Certificate(NamedTuple):
    """What a TLS server showed: protocol version, and Unix time of its certificate's end."""

    version: str
    expires_at: float


class Greeting(NamedTuple):
    """An answer to a request without credentials: HTTP status, and Unix time of its Date header."""

    status: int
    date: float | None


def reach_endpoint(url: str, ca_bundle: str) -> str:
    """Blocking: connect to the endpoint and close again.

    Returns:
        In words, what answered.

    Raises:
        EndpointUnreachable: it can't be reached, or its certificate is not trusted.
    """
    endpoint = Endpoint.of(url)
    with contextlib.closing(connect(endpoint, look_up(endpoint))) as connection:
        address = connection.getpeername()[0]
        if endpoint.tls:
            with shake_hands(connection, endpoint.host, ca_bundle) as tls:
                return f"{address} port {endpoint.port}, {tls.version() or 'TLS'}"
    return f"{address} port {endpoint.port}, plain http"


def look_up(endpoint: Endpoint) -> Addresses:
    """Blocking: the addresses of the host.

    Raises:
        EndpointUnreachable: the name is not known.
    """
    try:
        return socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise EndpointUnreachable(
            Cause.DNS,
            f"the host name {endpoint.host!r} is not known",
            "correct AWS_ENDPOINT_URL_S3, AWS_REGION or DNS",
        ) from None


def connect(endpoint: Endpoint, addresses: Addresses) -> socket.socket:
    """Blocking: a connection to the first address that takes one.

    Raises:
        EndpointUnreachable: none does.
    """
    end = time.monotonic() + CONNECT_SECONDS
    last: OSError = TimeoutError()
    for *_, address in addresses:
        left = end - time.monotonic()
        if left <= 0:
            break
        try:
            return socket.create_connection((str(address[0]), endpoint.port), timeout=left)
        except OSError as error:
            last = error
    raise _unreachable(last, endpoint) from None


def _unreachable(error: OSError, endpoint: Endpoint) -> EndpointUnreachable:
    place = f"{endpoint.host} port {endpoint.port}"
    if isinstance(error, ConnectionRefusedError):
        return EndpointUnreachable(
            Cause.CONNECT,
            f"nothing listens on {place}",
            "start it or correct AWS_ENDPOINT_URL_S3",
        )
    if isinstance(error, TimeoutError):
        return EndpointUnreachable(
            Cause.CONNECT,
            f"{place} does not accept a connection within {CONNECT_SECONDS:g} s",
            "check AWS_ENDPOINT_URL_S3, firewall and network",
        )
    return EndpointUnreachable(
        Cause.CONNECT,
        f"{place} can't be reached ({error.strerror})",
        "check AWS_ENDPOINT_URL_S3 and the network",
    )


def shake_hands(connection: socket.socket, host: str, ca_bundle: str) -> ssl.SSLSocket:
    """Blocking: begin TLS on a connection.

    Raises:
        EndpointUnreachable: the CA bundle, the certificate or the protocol is wrong.
    """
    connection.settimeout(HANDSHAKE_SECONDS)
    try:
        context = ssl.create_default_context(cafile=ca_bundle or None)
    except OSError as error:
        why = "" if isinstance(error, ssl.SSLError) else f" ({error.strerror})"
        raise EndpointUnreachable(
            Cause.TLS,
            f"the file that AWS_CA_BUNDLE names holds no certificate that can be read{why}",
            "name a PEM file that this user can read",
        ) from None
    try:
        return context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise EndpointUnreachable(
            Cause.TLS,
            f"the certificate of {host} is not trusted ({error.verify_message})",
            "set AWS_CA_BUNDLE to its CA's certificate",
        ) from None
    except ssl.SSLError:
        raise EndpointUnreachable(
            Cause.TLS,
            f"{host} does not speak TLS",
            "use http:// in AWS_ENDPOINT_URL_S3, or correct its port",
        ) from None
    except OSError:
        raise EndpointUnreachable(
            Cause.TLS,
            f"{host} breaks off the TLS handshake",
            "use http:// in AWS_ENDPOINT_URL_S3, or correct its port",
        ) from None


def certificate(tls: ssl.SSLSocket) -> Certificate:
    """What the server showed."""
    shown: Any = tls.getpeercert() or {}
    ends = shown.get("notAfter", "")
    return Certificate(tls.version() or "TLS", ssl.cert_time_to_seconds(ends) if ends else 0.0)


def greet(connection: socket.socket, host: str) -> Greeting | None:
    """Blocking: send a request without credentials; None if the answer isn't HTTP."""
    connection.settimeout(ANSWER_SECONDS)
    request = f"HEAD / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    answer = b""
    try:
        connection.sendall(request.encode())
        while b"\r\n\r\n" not in answer and len(answer) < _MAX_HEAD_BYTES:
            piece = connection.recv(4096)
            if not piece:
                break
            answer += piece
    except TimeoutError:
        raise EndpointUnreachable(
            Cause.ENDPOINT,
            f"{host} accepts connections but does not answer within {ANSWER_SECONDS:g} s",
            "look at the server",
        ) from None
    except OSError:
        return None
    first, *lines = answer.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if not first.startswith("HTTP/1.") or len(words) == 1 or not words[1].isdigit():
        return None
    dates = [line.partition(":")[2] for line in lines if line.lower().startswith("date:")]
    return Greeting(int(words[1]), _time(dates[0].strip()) if dates else None)


def speaks_tls(endpoint: Endpoint, addresses: Addresses) -> bool:
    """Blocking: whether the port is one of TLS, whatever its certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with connect(endpoint, addresses) as connection:
            connection.settimeout(HANDSHAKE_SECONDS)
            context.wrap_socket(connection, server_hostname=endpoint.host).close()
    except (OSError, EndpointUnreachable):
        return False
    return True


def _time(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
