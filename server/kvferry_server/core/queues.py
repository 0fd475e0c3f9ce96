"""Waiting chunks: loads before stores, a share for stores, turns for sessions."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from .states import ChunkState
from .tables import Chunk, Session
from .types import JobKind

LOADS_PER_STORE = 7
"""While both kinds wait, one start in eight is a store's."""
PRUNE_SLACK = 1024
"""Dead entries that a queue may hold beyond the number of its live ones."""
_Entry = tuple[int, int, int, Chunk]


class ChunkQueue:
    """Queued chunks of one kind; sessions take turns, priority rules within a session.

    Chunks that left the state QUEUED are passed over, so cancelling needs no search.
    """

    def __init__(self) -> None:
        self._by_session: OrderedDict[Session, list[_Entry]] = OrderedDict()
        self._delayed: list[tuple[float, int, Chunk]] = []
        self._order = 0
        self._entries = 0

    def __len__(self) -> int:
        """Entries held, those to be passed over included."""
        return self._entries

    def push(self, chunk: Chunk) -> None:
        """Let a chunk wait for its turn."""
        self._order += 1
        self._entries += 1
        job = chunk.job
        entry = (job.spec.context.priority, job.order, self._order, chunk)
        heapq.heappush(self._by_session.setdefault(job.session, []), entry)

    def push_later(self, chunk: Chunk, not_before: float) -> None:
        """Let a chunk wait until a time, then for its turn."""
        self._order += 1
        self._entries += 1
        heapq.heappush(self._delayed, (not_before, self._order, chunk))

    def wake(self, now: float) -> None:
        """Queue the delayed chunks whose time has come."""
        while self._delayed and self._delayed[0][0] <= now:
            chunk = heapq.heappop(self._delayed)[2]
            self._entries -= 1
            if chunk.state is ChunkState.QUEUED:
                self.push(chunk)

    def next_wakeup(self) -> float | None:
        """When the first delayed chunk is due."""
        return self._delayed[0][0] if self._delayed else None

    def pop(self) -> Chunk | None:
        """The next chunk whose turn it is; it stays QUEUED until the caller starts it."""
        while self._by_session:
            session, heap = self._by_session.popitem(last=False)
            while heap:
                chunk = heapq.heappop(heap)[3]
                self._entries -= 1
                if chunk.state is ChunkState.QUEUED:
                    if heap:
                        self._by_session[session] = heap
                    return chunk
        return None

    def waiting(self) -> Iterator[Chunk]:
        """All queued chunks, delayed ones included, in no particular order."""
        for heap in self._by_session.values():
            for entry in heap:
                if entry[3].state is ChunkState.QUEUED:
                    yield entry[3]
        for _, _, chunk in self._delayed:
            if chunk.state is ChunkState.QUEUED:
                yield chunk

    def forget(self, session: Session) -> None:
        """Drop the entries of a session that has ended."""
        self._by_session.pop(session, None)
        self._delayed = [entry for entry in self._delayed if entry[2].job.session is not session]
        heapq.heapify(self._delayed)
        self._count()

    def prune(self, live: int) -> None:
        """Drop entries that left the queue otherwise, once they outnumber the live ones.

        Args:
            live: how many queued chunks of this kind there are.
        """
        if len(self) <= 2 * live + PRUNE_SLACK:
            return
        self._delayed = [e for e in self._delayed if e[2].state is ChunkState.QUEUED]
        heapq.heapify(self._delayed)
        for session, heap in list(self._by_session.items()):
            heap[:] = [entry for entry in heap if entry[3].state is ChunkState.QUEUED]
            heapq.heapify(heap)
            if not heap:
                del self._by_session[session]
        self._count()

    def _count(self) -> None:
        self._entries = len(self._delayed) + sum(map(len, self._by_session.values()))


class TransferQueue:
    """Both kinds together with the rule that picks the next one to start.

    No more stores run than their limit says; loads leave one start in eight to stores.
    """

    def __init__(self) -> None:
        self.kinds = {kind: ChunkQueue() for kind in JobKind}
        self._loads_in_a_row = 0

    def pop(self, active_stores: int, most_stores: int) -> Chunk | None:
        """The next chunk to start, or None if none may start now."""
        kinds = [JobKind.LOAD]
        if active_stores < most_stores:
            at = 0 if self._loads_in_a_row >= LOADS_PER_STORE else 1
            kinds.insert(at, JobKind.STORE)
        for kind in kinds:
            chunk = self.kinds[kind].pop()
            if chunk is not None:
                self._loads_in_a_row = self._loads_in_a_row + 1 if kind is JobKind.LOAD else 0
                return chunk
        return None
