import tracemalloc
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.presence import PresenceTable
from kvferry_server.core.types import EngineSettings, ObjectRef

from .world import ABSENT, PRESENT, ref

SETTINGS = EngineSettings(
    present_seconds=100, absent_seconds=2, condemned_seconds=50, max_presence_entries=3
)


def test_present_ages_slowly_and_absent_fast():
    table = PresenceTable(SETTINGS)
    table.stored(ref("a"), 0.0)
    table.missing(ref("b"), 0.0)
    assert table.get(ref("a"), 99.9) is PRESENT
    assert table.get(ref("b"), 1.9) is ABSENT
    assert table.get(ref("b"), 2.0) is None
    assert table.get(ref("a"), 100.0) is None
    assert len(table) == 0


def test_a_probe_teaches_both_verdicts():
    table = PresenceTable(SETTINGS)
    assert table.probed(ref("a"), PRESENT, 0.0) is PRESENT
    assert table.get(ref("a"), 50.0) is PRESENT
    assert table.probed(ref("a"), ABSENT, 0.0) is ABSENT
    assert table.get(ref("a"), 1.0) is ABSENT


def test_a_condemned_object_stays_absent_whatever_a_probe_finds():
    table = PresenceTable(SETTINGS)
    table.stored(ref("a"), 0.0)
    table.condemn(ref("a"), 0.0)
    assert table.probed(ref("a"), PRESENT, 1.0) is ABSENT
    assert table.get(ref("a"), 49.9) is ABSENT
    table.stored(ref("a"), 49.9)
    assert table.get(ref("a"), 50.0) is PRESENT


def test_a_condemned_object_that_a_probe_no_longer_finds_is_just_absent():
    table = PresenceTable(SETTINGS)
    table.condemn(ref("a"), 0.0)
    assert table.probed(ref("a"), ABSENT, 1.0) is ABSENT
    assert table.get(ref("a"), 3.0) is None
    assert table.probed(ref("a"), PRESENT, 4.0) is PRESENT


def test_an_expired_condemnation_is_over():
    table = PresenceTable(SETTINGS)
    table.condemn(ref("a"), 0.0)
    assert table.probed(ref("a"), PRESENT, 50.0) is PRESENT


def test_the_least_recently_used_entry_goes_first():
    table = PresenceTable(SETTINGS)
    for name in "abc":
        table.stored(ref(name), 0.0)
    table.get(ref("a"), 1.0)
    table.stored(ref("d"), 1.0)
    assert table.get(ref("b"), 1.0) is None
    assert [table.get(ref(name), 1.0) for name in "acd"] == [PRESENT] * 3


def test_learning_a_thing_again_renews_it():
    table = PresenceTable(SETTINGS)
    for name in "abc":
        table.stored(ref(name), 0.0)
    table.stored(ref("a"), 1.0)
    table.stored(ref("d"), 1.0)
    assert table.get(ref("a"), 100.5) is PRESENT
    assert table.get(ref("b"), 1.0) is None


def test_a_key_takes_at_most_150_bytes_also_after_many_others():
    most = 100_000
    hashes = count()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = PresenceTable(EngineSettings(max_presence_entries=most))
        for number in range(3 * most):
            block_hash = next(hashes).to_bytes(32, "big")
            table.stored(ObjectRef("tenant/space", block_hash + bytes(4)), number / 1000)
            if number + 1 in {most, 2 * most, 3 * most}:
                taken = tracemalloc.get_traced_memory()[0] - before
                assert 0.9 * most < len(table) <= most
                assert taken / len(table) <= 150
    finally:
        tracemalloc.stop()


def test_many_keys_are_forgotten_in_the_order_of_use():
    most = 20_000
    table = PresenceTable(EngineSettings(max_presence_entries=most))
    for number in range(most // 2):
        table.stored(ref(str(number)), 0.0)
    for number in range(100):
        table.get(ref(str(number)), 1.0)
    for number in range(most // 2, most + most // 4):
        table.stored(ref(str(number)), 1.0)
    assert len(table) <= most
    kept = [number for number in range(most // 2) if table.get(ref(str(number)), 2.0)]
    assert kept[:100] == list(range(100))
    assert not [number for number in kept if 100 <= number < most // 8]
    assert sum(number >= most * 3 // 8 for number in kept) == most // 8


def test_two_spaces_share_nothing():
    table = PresenceTable(SETTINGS)
    table.stored(ref("a", "one"), 0.0)
    assert table.get(ref("a", "two"), 1.0) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stored", "missing", "condemn", "present", "absent", "get"]),
            st.sampled_from("abcdef"),
            st.integers(0, 40),
        ),
        max_size=60,
    )
)
def test_it_answers_as_a_plain_dict_would_or_has_forgotten(moves):
    table, model, now = PresenceTable(SETTINGS), {}, 0.0
    life = {"present": 100, "absent": 2, "condemned": 50}
    for move, name, wait in moves:
        now += wait / 4
        known = model.get(name)
        if known is not None and now >= known[1]:
            known = model.pop(name) and None
        if move == "get":
            seen = table.get(ref(name), now)
            if seen is None:
                model.pop(name, None)
            else:
                assert known is not None
                assert seen is (PRESENT if known[0] == "present" else ABSENT)
            continue
        state = {"stored": "present", "missing": "absent", "condemn": "condemned"}.get(move, move)
        if move in {"present", "absent"}:
            table.probed(ref(name), PRESENT if move == "present" else ABSENT, now)
            if move == "present" and known is not None and known[0] == "condemned":
                if table.get(ref(name), now) is ABSENT:
                    continue  # not yet forgotten
                state = "present"
        else:
            getattr(table, move)(ref(name), now)
        model[name] = (state, now + life[state])
        assert len(table) <= 3
