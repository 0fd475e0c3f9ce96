"""boto3 in threads, one request a chunk."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import boto3
from botocore.config import Config

from .contestant import IN_FLIGHT, Contestant
from .protocol import serve


class Boto3Threads(Contestant):
    """See the module's docstring."""

    label: ClassVar[str] = "boto3"

    def __init__(self, **where: str) -> None:
        super().__init__(**where)
        self._client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                max_pool_connections=IN_FLIGHT,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                proxies={},
            ),
        )
        self._threads = ThreadPoolExecutor(IN_FLIGHT)

    def write(self, keys: list[str]) -> None:
        list(self._threads.map(self._put, range(len(keys)), keys))

    def read(self, keys: list[str]) -> None:
        list(self._threads.map(self._get, range(len(keys)), keys))

    def close(self) -> None:
        self._threads.shutdown()

    def _put(self, number: int, key: str) -> None:
        self._client.put_object(Bucket=self.bucket, Key=key, Body=io.BytesIO(self.slots[number]))

    def _get(self, number: int, key: str) -> None:
        body = self._client.get_object(Bucket=self.bucket, Key=key)["Body"]
        view = self.slots[number]
        while count := body.readinto(view):
            view = view[count:]
        body.close()


if __name__ == "__main__":
    serve(Boto3Threads)
