"""Plays AWS's token service: gives keys for a web identity token."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class TokenService:
    """What it gives, and which tokens came.

    Args:
        keys: access key, secret key and session token of the next answer.
        expiration: of these keys, ISO 8601.
        status: of the next answers; an error's body repeats `error_text`.
    """

    keys: tuple[str, str, str] = ("ASIA1", "s", "t")
    expiration: str = "2099-01-01T00:00:00Z"
    status: int = 200
    error_text: str = ""
    port: int = 0
    tokens: list[str] = field(default_factory=list)

    def environment(self, token_file: str) -> dict[str, str]:
        """The variables that make an AWS SDK ask here."""
        return {
            "AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{self.port}",
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/store",
            "AWS_WEB_IDENTITY_TOKEN_FILE": token_file,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def answer(self, token: str) -> str:
        """The body for one request."""
        self.tokens.append(token)
        if self.status != 200:
            error = f"<Code>InvalidIdentityToken</Code><Message>{self.error_text}</Message>"
            return f"<ErrorResponse><Error>{error}</Error></ErrorResponse>"
        access_key, secret_key, session_token = self.keys
        keys = (
            f"<AccessKeyId>{access_key}</AccessKeyId>"
            f"<SecretAccessKey>{secret_key}</SecretAccessKey>"
            f"<SessionToken>{session_token}</SessionToken>"
            f"<Expiration>{self.expiration}</Expiration>"
        )
        name = "AssumeRoleWithWebIdentity"
        result = f"<{name}Result><Credentials>{keys}</Credentials></{name}Result>"
        return f"<{name}Response>{result}</{name}Response>"


@contextlib.contextmanager
def token_service() -> Iterator[TokenService]:
    """A token service on loopback, ended at the end."""
    service = TokenService()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            answer = service.answer(body["WebIdentityToken"][0])
            self.send_response(service.status)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
