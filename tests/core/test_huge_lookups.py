"""Lookups of many more keys than may be probed at once."""

from kvferry_server.core.effects import LookupReply

from .world import PRESENT, UNKNOWN, World

MANY = " ".join(f"k{at:03}" for at in range(200))


def world(**settings):
    made = World(**({"probe_batch": 2, "max_probing_keys": 2} | settings))
    made.open()
    return made


def verdicts(effects):
    return effects.one(LookupReply).verdicts


def test_at_its_deadline_a_lookup_says_what_is_known_of_keys_it_did_not_come_to():
    w = world()
    w.learn("f", PRESENT)
    w.start_lookup("abcdefg", seconds=1, prefix=False)
    assert verdicts(w.tick(1)) == ((UNKNOWN,) * 5 + (PRESENT, UNKNOWN),)


def test_a_huge_lookup_lets_others_through():
    w = world()
    w.start_lookup(MANY, prefix=False)
    w.start_lookup("x", prefix=False)
    rounds = 0
    while "x" not in [r.key[1:-4].decode() for p in w.probing.values() for r in p.refs]:
        w.probed(PRESENT)
        rounds += 1
    assert rounds == 2
    while len(w.probing):
        done = w.probed(PRESENT)
    assert verdicts(done) == ((PRESENT,) * 200,)


def test_a_huge_lookup_ends_at_once_when_the_store_fails():
    w = world(breaker_failures=1)
    w.start_lookup(MANY, prefix=False)
    done = w.probed(UNKNOWN, failed=True)
    assert verdicts(done) == ((UNKNOWN,) * 200,)
