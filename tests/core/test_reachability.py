"""Nothing in the tables is there for nothing: the engine reaches every line of them."""

from kvferry_server.core.events import SetPaused, StoreReadiness
from kvferry_server.core.states import OUTCOMES, TRANSITIONS, ChunkEvent
from kvferry_server.core.tables import Chunk
from kvferry_server.core.types import JobKind, Outcome, TransferStatus

from .world import LOAD, PRESENT, UNAVAILABLE, World, job


def world(**settings):
    made = World(**({"max_active_chunks": 1, "transfer_seconds": 15.0} | settings))
    made.open()
    return made


def end_by_transfer(kind):
    """Every way in which an attempt can end."""
    for status in TransferStatus:
        w = world(max_attempts=1)
        w.submit(kind, job(1, "a"))
        if kind is LOAD or status not in {
            TransferStatus.MISSING,
            TransferStatus.CORRUPT,
            TransferStatus.WRONG_SIZE,
        }:
            w.finish("a", status)


def end_without(kind):
    """Every way in which a queued chunk can end."""
    w = world()
    w.submit(kind, job(1, "abc"))
    w.drain()
    w = world()
    w.submit(kind, job(1, "abc"))
    w.now += 20
    w.tick()
    w = world(max_queued_store_bytes=100)
    w.submit(kind, job(1, "abc"))
    w.do(SetPaused(stores=True, loads=True))
    w = world()
    w.submit(kind, job(1, "abc"))
    w.do(StoreReadiness(ready=False))


def test_every_transition_and_outcome_of_the_tables_is_reached_through_the_engine(monkeypatch):
    seen = set()
    plain = Chunk.apply

    def noting(self, event, outcome=None):
        before = self.state
        plain(self, event, outcome)
        seen.add((before, event, self.job.kind, outcome))

    monkeypatch.setattr(Chunk, "apply", noting)
    for kind in JobKind:
        end_by_transfer(kind)
        end_without(kind)
        w = world()
        w.submit(kind, job(1, "a"))
        w.finish("a", UNAVAILABLE)
    w = world()
    w.learn("a", PRESENT)
    w.store(1, "a")
    w.store(2, "b")
    w.store(3, "b")

    expected = {
        (before, event, kind, outcome)
        for before, event in TRANSITIONS
        for kind in JobKind
        for outcome in OUTCOMES.get((kind, event), {None})
    }
    assert seen == expected
    assert {o for *_, o in seen if o} == set(Outcome)
    assert len(expected) == 2 * 2 + sum(map(len, OUTCOMES.values()))
    assert {event for _, event, *_ in seen} == set(ChunkEvent)
