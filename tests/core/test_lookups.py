"""Lookups: waves, single flight, deadlines, what is cached and what is not."""

import pytest

from kvferry_server.core.effects import LookupReply, StartProbe
from kvferry_server.core.engine import VERDICTS
from kvferry_server.core.events import CancelLookup, SetPaused, StoreReadiness
from kvferry_server.core.types import TransferStatus

from .world import ABSENT, PRESENT, UNAVAILABLE, UNKNOWN, World, key, ref

MANY = " ".join(f"k{at:03}" for at in range(200))


def world(**settings):
    made = World(**({"max_active_chunks": 4, "probe_wave": 4, "probe_batch": 4} | settings))
    made.open()
    return made


def asked(effects):
    """Names in the probes among the effects."""
    return [r.key[1:-4].decode() for e in effects.of(StartProbe) for r in e.refs]


def verdicts(effects):
    return effects.one(LookupReply).verdicts


def test_an_empty_lookup_is_answered_at_once():
    w = world()
    assert verdicts(w.start_lookup()[1]) == ()
    assert verdicts(w.start_lookup("", ())[1]) == ((), ())


def test_answers_come_in_the_order_of_groups_and_keys():
    w = world(probe_batch=2)
    number, done = w.start_lookup("ab", "cd", prefix=False)
    assert asked(done) == list("abcd")
    first, second = done.of(StartProbe)
    assert w.probed([PRESENT, ABSENT], second.probe_id) == []
    done = w.probed([ABSENT, PRESENT], first.probe_id)
    assert done == [LookupReply(number, ((ABSENT, PRESENT), (PRESENT, ABSENT)))]


def test_known_keys_need_no_probe():
    w = world()
    w.learn("a", PRESENT)
    w.learn("b", ABSENT)
    assert w.ask("ab") == [PRESENT, ABSENT]
    assert not w.probing


@pytest.mark.parametrize("wave", [1, 3, 4])
def test_a_prefix_group_is_probed_in_growing_numbers(wave):
    w = world(probe_wave=wave, probe_batch=1000)
    _, done = w.start_lookup(MANY)
    sizes = []
    while w.probing:
        sizes.append(len(asked(done)))
        done = w.probed(PRESENT)
    assert sizes[:-1] == [wave * 4**n for n in range(len(sizes) - 1)]
    assert sum(sizes) == 200
    assert verdicts(done) == ((PRESENT,) * 200,)


def test_a_prefix_group_goes_on_while_its_last_probes_still_run():
    w = world(probe_batch=1)
    _, done = w.start_lookup("abcdefghijkl")
    assert asked(done) == list("abcd")
    assert asked(w.probed(PRESENT, 1)) == list("efgh")
    assert asked(w.probed(PRESENT, 3)) == list("i")
    for _ in range(6):
        assert not w.probed(PRESENT).of(LookupReply)
    while len(w.probing) > 1:
        w.probed(PRESENT)
    assert verdicts(w.probed(PRESENT)) == ((PRESENT,) * 12,)


def test_nothing_behind_an_absence_is_asked_for_while_keys_before_it_are_open():
    w = world(probe_batch=1)
    w.start_lookup("abcdefghijkl")
    assert asked(w.probed(ABSENT, 3)) == []
    assert asked(w.probed(PRESENT, 1)) == []
    done = w.probed(PRESENT, 2)
    assert asked(done) == []
    assert verdicts(done) == ((PRESENT, PRESENT, ABSENT) + (UNKNOWN,) * 9,)


@pytest.mark.parametrize("miss", [ABSENT, UNKNOWN])
def test_a_prefix_group_stops_at_its_first_miss_and_sends_no_more_probes(miss):
    w = world()
    _, done = w.start_lookup("abcdefghijkl")
    assert asked(done) == list("abcd")
    done = w.probed([PRESENT, miss, PRESENT, PRESENT])
    assert asked(done) == []
    assert verdicts(done) == ((PRESENT, miss) + (UNKNOWN,) * 10,)
    assert w.counters["probed_keys"] == 4


def test_a_known_absence_ends_the_wave_before_it_is_sent():
    w = world()
    w.learn("c", ABSENT)
    _, done = w.start_lookup("abcdef")
    assert asked(done) == ["a", "b"]
    assert verdicts(w.probed(PRESENT)) == ((PRESENT, PRESENT, ABSENT) + (UNKNOWN,) * 3,)


def test_known_keys_do_not_use_up_a_wave():
    w = world()
    for name in "abc":
        w.learn(name, PRESENT)
    assert asked(w.start_lookup("abcdefghij")[1]) == list("defg")


def test_a_miss_in_the_first_probe_of_a_wave_unwants_its_unsent_rest():
    w = world(probe_wave=8, probe_batch=4, max_probing_keys=4)
    _, done = w.start_lookup("abcdefgh")
    assert asked(done) == list("abcd")
    done = w.probed(ABSENT)
    assert verdicts(done) == ((ABSENT,) + (UNKNOWN,) * 7,)
    assert not w.probing
    assert w.counters["probed_keys"] == 4


def test_a_sliding_window_group_is_not_cut():
    w = world(probe_batch=1000)
    _, done = w.start_lookup(MANY, prefix=False)
    assert len(asked(done)) == 200
    pattern = tuple(PRESENT if at % 3 == 0 else ABSENT for at in range(200))
    assert verdicts(w.probed(pattern)) == (pattern,)


def test_L05_one_erroring_key_does_not_change_the_others():
    w = world(probe_wave=32, probe_batch=32)
    pattern = [PRESENT] * 15 + [UNKNOWN] + [PRESENT] * 16
    names = " ".join(MANY.split()[:32])
    w.start_lookup(names, prefix=False)
    assert verdicts(w.probed(pattern)) == (tuple(pattern),)
    assert w.counters["probe_errors"] == 1
    assert asked(w.start_lookup(names, prefix=False)[1]) == ["k015"]
    assert verdicts(w.probed(PRESENT)) == ((PRESENT,) * 32,)


def test_L05_probes_of_one_lookup_run_in_parallel_up_to_the_bound():
    w = world(probe_batch=4, max_probing_keys=10)
    _, done = w.start_lookup(MANY, prefix=False)
    assert [len(e.refs) for e in done.of(StartProbe)] == [4, 4, 2]
    assert [len(e.refs) for e in w.probed(PRESENT).of(StartProbe)] == [4]
    while w.probing:
        done = w.probed(PRESENT)
    assert verdicts(done) == ((PRESENT,) * 200,)


def test_one_probe_serves_everybody_who_asks():
    w = world()
    w.open("t")
    w.open("u", space="elsewhere")
    first, _ = w.start_lookup("ab")
    second, done = w.start_lookup("bc", session="t")
    assert asked(done) == ["c"]
    third, done = w.start_lookup("a", session="u")
    assert done.one(StartProbe).refs == (ref("a", "elsewhere"),)
    done = w.probed(PRESENT)
    assert [r.lookup_id for r in done.of(LookupReply)] == [first]
    done = w.probed(PRESENT)
    assert [r.lookup_id for r in done.of(LookupReply)] == [second]
    assert [r.lookup_id for r in w.probed(ABSENT).of(LookupReply)] == [third]


def test_a_key_twice_in_one_lookup_is_probed_once():
    w = world()
    _, done = w.start_lookup("aa", (key("a"), key("b")), prefix=False)
    assert asked(done) == ["a", "b"]
    assert verdicts(w.probed([PRESENT, ABSENT])) == ((PRESENT, PRESENT), (PRESENT, ABSENT))


def test_L04_a_lookup_ends_at_its_deadline_and_a_late_answer_is_cached():
    w = world()
    number, _ = w.start_lookup("ab", seconds=0.5)
    assert not w.tick(0.4).of(LookupReply)
    assert w.tick(0.1) == [LookupReply(number, ((UNKNOWN, UNKNOWN),))]
    assert w.counters["lookups_expired"] == 1
    w.now += 9.5
    assert w.probed([PRESENT, ABSENT]) == []
    assert w.ask("ab") == [PRESENT, ABSENT]


def test_at_its_deadline_a_lookup_says_what_it_knows():
    w = world(probe_batch=1)
    w.start_lookup("abc", "xyz", seconds=1, prefix=False)
    probes = {p.refs[0].key: n for n, p in w.probing.items()}
    w.probed(PRESENT, probes[key("a")])
    w.probed(PRESENT, probes[key("c")])
    w.probed(ABSENT, probes[key("z")])
    assert verdicts(w.tick(1)) == ((PRESENT, UNKNOWN, PRESENT), (UNKNOWN, UNKNOWN, ABSENT))


def test_at_its_deadline_a_prefix_group_says_its_known_run_only():
    w = world(probe_batch=1)
    w.start_lookup("abc", seconds=1)
    first, _, third = w.probing
    w.probed(PRESENT, first)
    w.probed(PRESENT, third)
    assert verdicts(w.tick(1)) == ((PRESENT, UNKNOWN, UNKNOWN),)


def test_a_deadline_in_the_past_is_answered_by_the_next_tick():
    w = world()
    w.start_lookup("a", seconds=-1)
    assert w.engine.next_wakeup(w.now) <= w.now
    assert verdicts(w.tick()) == ((UNKNOWN,),)


def test_unknown_is_never_cached():
    w = world()
    for _ in range(3):
        assert asked(w.start_lookup("a")[1]) == ["a"]
        assert verdicts(w.probed(UNKNOWN)) == ((UNKNOWN,),)
    assert w.engine.presence_entries == 0
    assert w.counters["probe_errors"] == 3


def test_absent_is_asked_again_soon_and_present_later():
    w = world()
    w.learn("a", ABSENT)
    w.learn("b", PRESENT)
    w.tick(2)
    assert asked(w.start_lookup("ab", prefix=False)[1]) == ["a"]


@pytest.mark.parametrize("older_verdict", [ABSENT, PRESENT, UNKNOWN])
def test_a_finished_store_outdates_an_older_probe(older_verdict):
    w = world()
    w.store(1, "a")
    w.start_lookup("a")
    w.finish("a")
    assert verdicts(w.probed(older_verdict)) == ((PRESENT,),)
    assert w.ask("a") == [PRESENT]


def test_L01_a_missing_load_outdates_an_older_probe():
    w = world()
    w.load(1, "a")
    w.start_lookup("a")
    w.finish("a", TransferStatus.MISSING)
    assert verdicts(w.probed(PRESENT)) == ((ABSENT,),)
    assert w.ask("a") == [ABSENT]


def test_a_failed_store_does_not_outdate_a_probe():
    w = world(max_attempts=1)
    w.store(1, "a")
    w.start_lookup("a")
    w.finish("a", UNAVAILABLE)
    assert verdicts(w.probed(ABSENT)) == ((ABSENT,),)


def test_an_outdated_probe_whose_store_is_forgotten_by_now_is_unknown():
    w = world(present_seconds=1.0)
    w.store(1, "a")
    w.start_lookup("a", seconds=60)
    w.finish("a")
    w.tick(2)
    assert verdicts(w.probed(ABSENT)) == ((UNKNOWN,),)


def trip_read_breaker(w, failures=8):
    """Lookups that the store does not answer; their keys differ."""
    for at in range(failures):
        w.start_lookup(f"t{at} ")
        w.probed(UNKNOWN, max(w.probing), failed=True)


def test_failed_probes_open_the_read_breaker_and_lookups_answer_unknown_at_once():
    w = world()
    w.learn("a", PRESENT)
    trip_read_breaker(w)
    assert w.ask("ab") == [UNKNOWN, UNKNOWN]
    w.load(1, "x")
    assert w.outcomes(1)[0].name == "UNAVAILABLE"
    assert not w.probing
    assert w.engine.open_lookups == 0


def test_keys_that_wait_for_a_probe_are_given_up_when_the_breaker_opens():
    w = world(breaker_failures=1, probe_batch=2, max_probing_keys=4)
    mixed, _ = w.start_lookup("abcdef", prefix=False)
    w.start_lookup("uvw")
    done = w.probed(UNKNOWN, failed=True)
    assert asked(done) == []
    assert verdicts(done) == ((UNKNOWN,) * 3,)
    done = w.probed(PRESENT)
    assert done.one(LookupReply).lookup_id == mixed
    assert verdicts(done) == ((UNKNOWN, UNKNOWN, PRESENT, PRESENT, UNKNOWN, UNKNOWN),)


def test_a_prefix_group_that_waits_for_running_and_unsent_probes_ends_with_the_breaker():
    w = world(breaker_failures=1, probe_batch=2, max_probing_keys=4, probe_wave=8)
    w.start_lookup("abcdef")
    w.probed(PRESENT, 2)
    assert verdicts(w.probed(UNKNOWN, 1, failed=True)) == ((UNKNOWN,) * 6,)


def test_after_the_cool_down_one_probe_tries_and_its_success_closes_the_breaker():
    w = world(breaker_cooldown_seconds=5.0, probe_batch=2)
    trip_read_breaker(w)
    w.tick(5)
    _, done = w.start_lookup("abcd", prefix=False, seconds=60)
    assert asked(done) == ["a", "b"]
    assert w.ask("z") == [UNKNOWN]
    assert verdicts(w.probed(PRESENT)) == ((PRESENT, PRESENT, UNKNOWN, UNKNOWN),)
    assert asked(w.start_lookup("cd")[1]) == ["c", "d"]


def test_a_failed_trial_probe_opens_the_breaker_again():
    w = world(breaker_cooldown_seconds=5.0)
    trip_read_breaker(w)
    w.tick(5)
    w.start_lookup("a")
    w.probed(UNKNOWN, failed=True)
    w.tick(4.9)
    assert w.ask("b") == [UNKNOWN]


def test_cached_answers_do_not_count_as_success():
    w = world(breaker_failures=2)
    w.learn("a", PRESENT)
    trip_read_breaker(w, 1)
    assert w.ask("a") == [PRESENT]
    trip_read_breaker(w, 1)
    assert w.ask("a") == [UNKNOWN]


def test_an_answer_for_single_keys_resets_the_count():
    w = world(breaker_failures=2)
    for _ in range(3):
        trip_read_breaker(w, 1)
        w.start_lookup("u")
        w.probed(UNKNOWN)
    assert asked(w.start_lookup("z")[1]) == ["z"]


def test_without_a_ready_store_lookups_answer_unknown_at_once():
    w = World(ready=False)
    w.open()
    assert w.ask("a") == [UNKNOWN]
    w.do(StoreReadiness(ready=True))
    assert asked(w.start_lookup("a")[1]) == ["a"]


@pytest.mark.parametrize("event", [StoreReadiness(ready=False), SetPaused(loads=True)])
def test_losing_the_store_or_a_pause_ends_open_lookups(event):
    w = world(probe_batch=2, max_probing_keys=2)
    first, _ = w.start_lookup("abcd")
    second, _ = w.start_lookup("x", prefix=False)
    done = w.do(event)
    assert [r.lookup_id for r in done.of(LookupReply)] == [first, second]
    assert w.probed(PRESENT) == []
    assert not w.probing
    assert w.ask("a") == [UNKNOWN]


def test_closing_a_session_ends_its_lookups_only():
    w = world()
    w.open("t")
    mine, _ = w.start_lookup("ab")
    other, _ = w.start_lookup("bc", session="t")
    assert w.close().one(LookupReply).lookup_id == mine
    w.probed(PRESENT)
    assert w.probed(PRESENT).one(LookupReply).lookup_id == other


def test_cancelled_lookups_leave_no_unsent_probes_behind():
    w = world(probe_batch=1, max_probing_keys=1)
    w.start_lookup("x")
    doomed, _ = w.start_lookup("abc", prefix=False)
    shared, _ = w.start_lookup("bd", prefix=False)
    w.do(CancelLookup(doomed))
    w.do(CancelLookup(doomed))
    done = w.probed(PRESENT)
    assert asked(done) == ["b"]
    assert asked(w.probed(PRESENT)) == ["d"]
    assert w.probed(PRESENT).one(LookupReply) == LookupReply(shared, ((PRESENT, PRESENT),))
    assert not w.probing


def test_a_cancelled_lookups_running_probe_still_teaches():
    w = world()
    number, _ = w.start_lookup("a")
    w.do(CancelLookup(number))
    assert w.probed(PRESENT) == []
    assert w.ask("a") == [PRESENT]


def test_two_groups_of_one_lookup_that_end_together_answer_once():
    w = world()
    _, done = w.start_lookup("ab", "ab", "ba")
    assert asked(done) == ["a", "b"]
    assert verdicts(w.probed(PRESENT)) == ((PRESENT, PRESENT),) * 3


def sources(w: World) -> dict[str, int]:
    """Counts of verdicts above 0, by what they rest on."""
    names = [f"{verdict.name.lower()}_{source}" for verdict, source in VERDICTS]
    counts = {name: w.counters[f"verdicts_{name}"] for name in names}
    return {name: count for name, count in counts.items() if count}


def test_verdicts_are_counted_with_their_source():
    w = world()
    w.start_lookup("abc", prefix=False)
    w.probed([PRESENT, ABSENT, UNKNOWN])
    assert sources(w) == {"present_probe": 1, "absent_probe": 1, "unknown_probe": 1}
    w.ask("ab")
    assert sources(w) == {
        "present_probe": 1,
        "absent_probe": 1,
        "unknown_probe": 1,
        "present_index": 1,
        "absent_index": 1,
    }


def test_keys_after_a_prefixes_end_are_counted_as_cut_off():
    w = world()
    w.learn("a", PRESENT)
    w.learn("b", ABSENT)
    before = sources(w)
    w.ask("abcd", prefix=True)
    assert sources(w) == before | {"present_index": 1, "absent_index": 1, "unknown_cutoff": 2}


def test_keys_that_were_not_answered_in_time_are_counted_as_cut_off():
    w = world()
    w.start_lookup("ab", prefix=False, seconds=1)
    w.tick(1)
    assert sources(w) == {"unknown_cutoff": 2}
