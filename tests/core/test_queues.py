from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry_server.core.queues import LOADS_PER_STORE, ChunkQueue, TransferQueue
from kvferry_server.core.states import ChunkEvent
from kvferry_server.core.tables import Chunk, Job, Session
from kvferry_server.core.types import JobKind, JobSpec, Outcome, RequestContext, SessionSpec

from .world import LOAD, STORE, key, ref


class Maker:
    """Makes chunks of sessions, in the order of acceptance."""

    def __init__(self):
        self.order = 0

    def session(self, name):
        return Session(SessionSpec(name, "e", "ns", 4, 100), opened_at=0.0)

    def chunk(self, session, kind=JobKind.LOAD, priority=0):
        self.order += 1
        spec = JobSpec(self.order, (key("a"),), (0,), RequestContext("", priority))
        job = Job(session, spec, kind, accepted_at=0.0, deadline=1.0, order=self.order)
        return Chunk(job, ref("a"), 0)


def drop(chunk):
    chunk.apply(ChunkEvent.DROP, Outcome.CANCELLED)


def taken(queue):
    out = []
    while (chunk := queue.pop()) is not None:
        out.append(chunk)
    return out


def test_sessions_take_turns():
    make, queue = Maker(), ChunkQueue()
    a, b = make.session("a"), make.session("b")
    for session in [a, a, a, b, b, b]:
        queue.push(make.chunk(session))
    assert [c.job.session.spec.session_id for c in taken(queue)] == list("ababab")


def test_a_session_that_joins_late_does_not_wait_for_the_others_backlog():
    make, queue = Maker(), ChunkQueue()
    a, b = make.session("a"), make.session("b")
    for _ in range(100):
        queue.push(make.chunk(a))
    queue.pop()
    queue.push(make.chunk(b))
    assert [queue.pop().job.session for _ in range(2)] == [a, b]


def test_priority_rules_within_a_session_and_order_within_a_priority():
    make, queue = Maker(), ChunkQueue()
    session = make.session("a")
    chunks = [make.chunk(session, priority=p) for p in [0, 5, -1, 0]]
    for chunk in chunks:
        queue.push(chunk)
    assert taken(queue) == [chunks[2], chunks[0], chunks[3], chunks[1]]


def test_cancelled_chunks_are_passed_over_and_not_listed():
    make, queue = Maker(), ChunkQueue()
    session, other = make.session("a"), make.session("b")
    chunks = [make.chunk(session) for _ in range(3)]
    gone = [make.chunk(other), make.chunk(other)]
    for chunk in [*gone, *chunks]:
        queue.push(chunk)
    queue.push_later(late := make.chunk(session), 1.0)
    queue.push_later(late_gone := make.chunk(session), 1.0)
    for chunk in [chunks[1], *gone, late_gone]:
        drop(chunk)
    assert set(queue.waiting()) == {chunks[0], chunks[2], late}
    assert taken(queue) == [chunks[0], chunks[2]]


def test_delayed_chunks_come_when_they_are_due():
    make, queue = Maker(), ChunkQueue()
    session = make.session("a")
    second, first, gone = (make.chunk(session) for _ in range(3))
    queue.push_later(second, 2.0)
    queue.push_later(first, 1.0)
    queue.push_later(gone, 1.0)
    drop(gone)
    assert queue.next_wakeup() == 1.0
    assert queue.pop() is None
    queue.wake(1.0)
    assert taken(queue) == [first]
    assert queue.next_wakeup() == 2.0
    queue.wake(2.0)
    assert taken(queue) == [second]
    assert queue.next_wakeup() is None


def test_forgetting_a_session_drops_its_entries_only():
    make, queue = Maker(), ChunkQueue()
    a, b = make.session("a"), make.session("b")
    queue.push(make.chunk(a))
    queue.push(kept := make.chunk(b))
    queue.push_later(make.chunk(a), 1.0)
    queue.push_later(kept_late := make.chunk(b), 1.0)
    queue.forget(a)
    queue.wake(1.0)
    assert taken(queue) == [kept, kept_late]


@settings(max_examples=10)
@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_pruning_keeps_what_is_queued(cancelled):
    make, queue = Maker(), ChunkQueue()
    sessions = [make.session(name) for name in "ab"]
    chunks = [make.chunk(sessions[at % 2]) for at in range(len(cancelled))]
    for at, chunk in enumerate(chunks):
        queue.push_later(chunk, 1.0) if at % 3 == 0 else queue.push(chunk)
    dead = [make.chunk(sessions[0]) for _ in range(1200)]
    for chunk in dead:
        queue.push(chunk)
        drop(chunk)
    for chunk, gone in zip(chunks, cancelled, strict=True):
        if gone:
            drop(chunk)
    live = {c for c, gone in zip(chunks, cancelled, strict=True) if not gone}
    queue.prune(len(live))
    assert len(queue) == len(live)
    assert set(queue.waiting()) == live


def test_loads_go_first_but_one_start_in_eight_is_a_stores():
    make, queue = Maker(), TransferQueue()
    session = make.session("a")
    for kind in JobKind:
        for _ in range(80):
            queue.kinds[kind].push(make.chunk(session, kind))
    order = [queue.pop(0, 8).job.kind for _ in range(80)]
    assert order[:8] == [LOAD] * LOADS_PER_STORE + [STORE]
    assert Counter(order) == {LOAD: 70, STORE: 10}


def test_no_more_stores_start_than_may_run():
    make, queue = Maker(), TransferQueue()
    session = make.session("a")
    queue.kinds[STORE].push(make.chunk(session, STORE))
    assert queue.pop(6, 6) is None
    assert queue.pop(5, 6) is not None


def test_without_stores_loads_are_never_held_back():
    make, queue = Maker(), TransferQueue()
    session = make.session("a")
    for _ in range(20):
        queue.kinds[LOAD].push(make.chunk(session))
    assert [queue.pop(0, 8).job.kind for _ in range(20)] == [LOAD] * 20
    assert queue.pop(0, 8) is None
