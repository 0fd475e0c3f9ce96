"""obstore (the Rust crate object_store), asynchronously, one request a chunk."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import obstore
from obstore.store import S3Store

from .contestant import IN_FLIGHT, Contestant
from .protocol import serve


class ObstoreAsync(Contestant):
    """See the module's docstring."""

    label: ClassVar[str] = "obstore"

    def __init__(self, **where: str) -> None:
        super().__init__(**where)
        self._store = S3Store(
            self.bucket,
            endpoint=self.endpoint_url,
            region=self.region,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )
        self._loop = asyncio.new_event_loop()

    def write(self, keys: list[str]) -> None:
        self._loop.run_until_complete(self._all(keys, self._put))

    def read(self, keys: list[str]) -> None:
        self._loop.run_until_complete(self._all(keys, self._get))

    def close(self) -> None:
        self._loop.close()

    async def _all(self, keys: list[str], move: object) -> None:
        assert callable(move)
        waiting = iter(enumerate(keys))

        async def one_after_another() -> None:
            for number, key in waiting:
                await move(number, key)

        await asyncio.gather(*(one_after_another() for _ in range(IN_FLIGHT)))

    async def _put(self, number: int, key: str) -> None:
        data = self.slots[number]
        await obstore.put_async(self._store, key, data, use_multipart=False)

    async def _get(self, number: int, key: str) -> None:
        found = await obstore.get_async(self._store, key)
        self.slots[number][:] = memoryview(await found.bytes_async())


if __name__ == "__main__":
    serve(ObstoreAsync)
