"""How many keys of a prefix are asked for at first."""

from kvferry_server.core.effects import StartProbe
from kvferry_server.core.first_wave import FirstWave

from .world import ABSENT, PRESENT, UNKNOWN, World


def world():
    made = World(max_active_chunks=4, probe_wave=32, probe_batch=1000)
    made.open()
    return made


def first_waves(w, *verdicts):
    """How many keys a new prefix asks for at first; its first keys are answered so."""
    sizes = []
    for verdict in verdicts:
        number = w.counters["probed_keys"]
        _, done = w.start_lookup(" ".join(f"{number}-{at}" for at in range(200)))
        sizes.append(sum(len(probe.refs) for probe in done.of(StartProbe)))
        w.probed(verdict)
        while w.probing:
            w.probed(UNKNOWN)
    return sizes


def test_absences_make_it_smaller_and_a_presence_larger():
    w = world()
    absent = first_waves(w, *[ABSENT] * 8)
    assert absent == [32, 32, 16, 8, 4, 2, 1, 1]
    assert first_waves(w, *[PRESENT] * 5) == [1, 4, 16, 32, 32]


def test_a_single_absence_changes_nothing():
    w = world()
    assert first_waves(w, *[ABSENT, PRESENT] * 3) == [32] * 6
    assert first_waves(w, ABSENT, UNKNOWN, ABSENT, UNKNOWN) == [32, 32, 32, 16]


def test_it_does_not_grow_beyond_its_bound():
    wave = FirstWave(10)
    for first in (ABSENT, ABSENT, PRESENT):
        wave.learn(first)
    assert wave.keys == 10


def test_failures_known_keys_and_keys_without_order_teach_nothing():
    w = world()
    assert first_waves(w, UNKNOWN, UNKNOWN) == [32, 32]
    w.learn("a", ABSENT)
    assert first_waves(w, ABSENT, UNKNOWN) == [32, 16]
    w.start_lookup("a")
    w.start_lookup("bc", prefix=False)
    w.probed(ABSENT)
    assert first_waves(w, UNKNOWN) == [16]


def test_a_prefix_teaches_once_by_the_first_key_that_was_probed():
    w = world()
    assert first_waves(w, ABSENT, ABSENT, ABSENT) == [32, 32, 16]
    assert first_waves(w, [PRESENT] + [ABSENT] * 7, UNKNOWN) == [8, 32]
    w.learn("a", PRESENT)
    w.start_lookup("abc")
    w.probed([ABSENT, ABSENT])
    assert first_waves(w, ABSENT, UNKNOWN) == [32, 16]
