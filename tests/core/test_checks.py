"""Every refusal: right class, right reason, names the field, and changes nothing at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.errors import (
    FailedPrecondition,
    IllegalTransition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from kvferry_server.core.events import (
    CloseSession,
    OpenSession,
    ProbeFinished,
    StartDrain,
    StartLookup,
    StartPoll,
    Stop,
    SubmitJobs,
    TransferFinished,
)
from kvferry_server.core.types import (
    Admission,
    JobSpec,
    LookupGroup,
    SessionSpec,
    TransferStatus,
)

from .world import LOAD, PRESENT, STORE, World, admissions, job, key, keys, snapshot

K = key("new")
LIMITS = {
    "max_active_chunks": 2,
    "max_keys_per_request": 6,
    "max_jobs_per_request": 4,
    "max_bytes_per_request": 500,
    "max_key_bytes": 16,
    "max_open_jobs": 5,
}


def busy_world(**more):
    """Session `s`: a running store in slot 0, a running load in slot 1, one reported job."""
    world = World(**(LIMITS | more))
    world.open("s", slots=8, slot_bytes=100)
    world.open("other", slots=8, slot_bytes=100)
    world.store(1, "a", 0)
    world.load(2, "b", 1)
    world.store(3, "c", 2)
    world.do(StartLookup(7, "s", (LookupGroup((key("l"),)),), world.now + 5))
    return world


def assert_refused(world, event, error, reason, field=""):
    before = snapshot(world.engine)
    with pytest.raises(error) as refused:
        world.engine.step(event, world.now)
    assert type(refused.value) is error
    assert (refused.value.reason, refused.value.field) == (reason, field)
    assert snapshot(world.engine) == before
    assert refused.value.message
    return refused.value.message


def spec(job_id=10, keys=(K,), slots=(5,)):
    return JobSpec(job_id, tuple(keys), tuple(slots))


def distinct(count):
    return tuple(key(f"n{at}") for at in range(count))


FORM = {
    "no jobs": ((), "NO_JOBS", "jobs"),
    "job id 0": ((spec(0),), "BAD_JOB_ID", "jobs[0].job_id"),
    "negative id in second": ((spec(), spec(-1)), "BAD_JOB_ID", "jobs[1].job_id"),
    "no keys": ((spec(keys=(), slots=()),), "NO_KEYS", "jobs[0].keys"),
    "slot missing": ((spec(slots=()),), "KEYS_SLOTS_MISMATCH", "jobs[0].slots"),
    "slot too many": ((spec(slots=(4, 5)),), "KEYS_SLOTS_MISMATCH", "jobs[0].slots"),
    "empty key": ((spec(keys=(b"",)),), "BAD_KEY", "jobs[0].keys[0]"),
    "short key": ((spec(keys=(b"1234",)),), "BAD_KEY", "jobs[0].keys[0]"),
    "long key": (
        (spec(keys=(K, b"x" * 17), slots=(4, 5)),),
        "BAD_KEY",
        "jobs[0].keys[1]",
    ),
    "key twice": ((spec(keys=(K, K), slots=(4, 5)),), "DUPLICATE_KEY", "jobs[0].keys"),
    "slot twice": (
        (spec(keys=distinct(2), slots=(5, 5)),),
        "DUPLICATE_SLOT",
        "jobs[0].slots",
    ),
    "slot beyond": ((spec(slots=(8,)),), "SLOT_OUT_OF_RANGE", "jobs[0].slots[0]"),
    "slot negative": ((spec(slots=(-1,)),), "SLOT_OUT_OF_RANGE", "jobs[0].slots[0]"),
    "id twice": ((spec(), spec()), "DUPLICATE_JOB_ID", "jobs.job_id"),
    "too many jobs": (
        tuple(spec(10 + at, slots=(at,)) for at in range(5)),
        "REQUEST_TOO_LARGE",
        "jobs",
    ),
    "too many keys": (
        (spec(10, distinct(4), range(4)), spec(11, distinct(3), range(3))),
        "REQUEST_TOO_LARGE",
        "jobs.keys",
    ),
    "too many bytes": ((spec(10, distinct(6), range(6)),), "REQUEST_TOO_LARGE", "jobs.slots"),
}


@pytest.mark.parametrize("kind", [STORE, LOAD])
@pytest.mark.parametrize("case", FORM)
def test_a_malformed_request_is_refused_as_a_whole(kind, case):
    jobs, reason, field = FORM[case]
    message = assert_refused(
        busy_world(), SubmitJobs("s", kind, jobs), InvalidArgument, reason, field
    )
    assert field.split(".")[0].split("[")[0] in message


@pytest.mark.parametrize("case", ["job id 0", "short key", "slot beyond", "key twice"])
def test_one_bad_job_refuses_the_good_ones_beside_it(case):
    (bad,), reason, _ = FORM[case]
    world = busy_world()
    good = spec(20, distinct(1), (4,))
    with pytest.raises(InvalidArgument) as refused:
        world.submit(STORE, good, bad)
    assert refused.value.reason == reason
    assert admissions(world.submit(STORE, good)) == (Admission.ACCEPTED,)


@pytest.mark.parametrize(
    ("kind", "slot", "allowed"),
    [(STORE, 0, True), (STORE, 1, False), (STORE, 2, True), (LOAD, 0, False), (LOAD, 1, False)],
)
def test_only_stores_may_share_a_slot(kind, slot, allowed):
    world = busy_world()
    event = SubmitJobs("s", kind, (spec(slots=(slot,)),))
    if allowed:
        world.do(event)
    else:
        message = assert_refused(world, event, InvalidArgument, "SLOT_IN_USE", "jobs[0].slots[0]")
        assert f"slot {slot} is in use" in message


def test_two_loads_of_one_request_may_not_share_a_slot():
    jobs = (spec(10, distinct(2), (4, 5)), spec(11, (K,), (5,)))
    event = SubmitJobs("s", LOAD, jobs)
    assert_refused(busy_world(), event, InvalidArgument, "SLOT_IN_USE", "jobs[1].slots[0]")


def test_two_stores_of_one_request_may_share_a_slot():
    jobs = (spec(10, distinct(1), (5,)), spec(11, (K,), (5,)))
    assert admissions(busy_world().submit(STORE, *jobs)) == (Admission.ACCEPTED,) * 2


def test_a_slot_is_free_again_once_its_chunks_are_terminal():
    world = busy_world()
    world.finish("a")
    world.finish("b")
    world.finish("c")
    assert admissions(world.load(10, "x", 0)) == (Admission.ACCEPTED,)
    assert admissions(world.store(11, "y", 1)) == (Admission.ACCEPTED,)


def test_slots_of_another_session_do_not_matter():
    assert admissions(busy_world().load(1, "x", 0, session="other")) == (Admission.ACCEPTED,)


def test_more_open_jobs_than_the_limit_are_refused_until_results_are_acknowledged():
    world = busy_world()
    event = SubmitJobs("s", STORE, tuple(spec(10 + at, (key(f"o{at}"),)) for at in range(3)))
    message = assert_refused(world, event, ResourceExhausted, "TOO_MANY_OPEN_JOBS", "jobs")
    assert "max_open_jobs is 5" in message
    world.finish("a")
    world.poll(ack=1)
    assert admissions(world.do(event)) == (Admission.ACCEPTED,) * 3


def test_more_open_chunks_than_the_limit_are_refused_until_results_are_acknowledged():
    world = World(max_open_chunks=6)
    world.open("s")
    world.store(1, "abcd")
    world.store(1, "abcd")
    event = SubmitJobs("s", LOAD, (spec(2, keys("uvw"), (5, 6, 7)),))
    message = assert_refused(world, event, ResourceExhausted, "TOO_MANY_OPEN_CHUNKS", "jobs.keys")
    assert "7 chunks" in message
    assert "max_open_chunks is 6" in message
    world.finish_all()
    assert_refused(world, event, ResourceExhausted, "TOO_MANY_OPEN_CHUNKS", "jobs.keys")
    world.poll(ack=1)
    assert admissions(world.do(event)) == (Admission.ACCEPTED,)
    assert admissions(world.load(3, "xyz", 10)) == (Admission.ACCEPTED,)
    world.finish_all()
    world.poll(ack=3)
    assert admissions(world.store(4, "mnopqr", 20)) == (Admission.ACCEPTED,)


def test_sparse_job_ids_are_refused_in_the_end():
    world = World(max_open_jobs=5)
    world.open("s")
    world.do(StartPoll(1, "s", 0, world.now))
    for at in range(6):
        world.store(1 + 2 * at, f"k{at} ")
        world.finish_all()
        world.poll(ack=at + 1)
    event = SubmitJobs("s", STORE, (spec(99),))
    message = assert_refused(world, event, ResourceExhausted, "SPARSE_JOB_IDS", "jobs.job_id")
    assert "number jobs 1, 2, 3" in message


def test_an_id_that_was_left_out_is_new_when_it_comes():
    world = World()
    world.open("s")
    for job_id in (1, 3, 2):
        assert admissions(world.store(job_id, f"k{job_id}", 3 * job_id)) == (Admission.ACCEPTED,)
    assert admissions(world.store(2, "k2", 6)) == (Admission.JOINED,)


def test_dense_ids_are_never_too_sparse():
    world = World(max_open_jobs=5)
    world.open("s")
    for at in range(50):
        world.store(at + 1, f"k{at} ")
        world.finish_all()
        world.poll(ack=at + 1)
    assert world.reported() == list(range(1, 51))


@pytest.mark.parametrize(
    ("groups", "reason", "field"),
    [
        ((LookupGroup((K, b"1234")),), "BAD_KEY", "groups[0].keys[1]"),
        ((LookupGroup(()), LookupGroup((b"x" * 17,))), "BAD_KEY", "groups[1].keys[0]"),
        ((LookupGroup((K,) * 4), LookupGroup((K,) * 3)), "REQUEST_TOO_LARGE", "groups.keys"),
    ],
)
def test_a_malformed_lookup_is_refused(groups, reason, field):
    world = busy_world()
    event = StartLookup(8, "s", groups, world.now + 1)
    assert_refused(world, event, InvalidArgument, reason, field)


def test_an_ack_beyond_the_last_result_is_refused_and_the_older_poll_waits_on():
    world = busy_world()
    world.poll(seconds=5)
    event = StartPoll(99, "s", 1, world.now + 5)
    message = assert_refused(world, event, InvalidArgument, "ACK_BEYOND_LAST", "ack_seq")
    assert "ack_seq is 1" in message


@pytest.mark.parametrize(
    "event",
    [
        SubmitJobs("gone", STORE, (spec(),)),
        StartLookup(8, "gone", (), 9999.0),
        StartPoll(9, "gone", 0, 9999.0),
        StartDrain(10, "gone", 9999.0),
        CloseSession("gone"),
    ],
)
def test_an_unknown_session_is_refused(event):
    message = assert_refused(busy_world(), event, NotFound, "UNKNOWN_SESSION", "session.session_id")
    assert "attach again" in message


def test_an_ending_session_takes_no_jobs():
    world = busy_world()
    world.close()
    event = SubmitJobs("s", STORE, (spec(),))
    assert_refused(world, event, FailedPrecondition, "SESSION_ENDING")


def test_a_stopping_daemon_takes_no_jobs_and_no_sessions():
    world = busy_world()
    world.do(Stop())
    assert_refused(world, SubmitJobs("s", STORE, (spec(),)), Unavailable, "STOPPING")
    new = OpenSession(SessionSpec("new", "e", "ns", 1, 1))
    assert_refused(world, new, Unavailable, "STOPPING")


@pytest.mark.parametrize(
    "event",
    [
        OpenSession(SessionSpec("s", "e", "ns", 1, 1)),
        TransferFinished(99, TransferStatus.OK),
        TransferFinished(1, TransferStatus.MISSING),
        TransferFinished(1, TransferStatus.CORRUPT),
        TransferFinished(1, TransferStatus.WRONG_SIZE),
        ProbeFinished(99, ()),
        ProbeFinished(1, (PRESENT, PRESENT)),
        ProbeFinished(1, ()),
    ],
)
def test_what_cannot_happen_raises_and_changes_nothing(event):
    world = busy_world()
    before = snapshot(world.engine)
    with pytest.raises(IllegalTransition):
        world.engine.step(event, world.now)
    assert snapshot(world.engine) == before


def test_an_event_that_the_engine_does_not_know_changes_nothing():
    world = busy_world()
    before = snapshot(world.engine)
    with pytest.raises(AssertionError):
        world.engine.step("tick", world.now)
    assert snapshot(world.engine) == before


def test_J04_a_second_end_of_a_transfer_changes_nothing():
    world = busy_world()
    first = world.transfer_of("a")
    world.finish("a")
    before = snapshot(world.engine)
    with pytest.raises(IllegalTransition, match=f"transfer {first}, which is not running"):
        world.engine.step(TransferFinished(first, TransferStatus.OK), world.now)
    assert snapshot(world.engine) == before
    assert world.reported().count(1) == 1


def test_repeats_join_or_are_told_and_start_nothing():
    world = busy_world()
    assert admissions(world.store(1, "a", 0)) == (Admission.JOINED,)
    world.finish("a")
    assert admissions(world.store(1, "a", 0)) == (Admission.JOINED,)
    world.poll(ack=1)
    done = world.store(1, "a", 0)
    assert admissions(done) == (Admission.ALREADY_REPORTED,)
    assert len(done) == 1
    assert world.reported() == [1]


def test_a_request_with_old_and_new_jobs_admits_the_new_ones():
    world = busy_world()
    done = world.submit(STORE, job(1, "a", 0), job(10, "x", 5), job(1, "a", 0))
    assert admissions(done) == (Admission.JOINED, Admission.ACCEPTED, Admission.JOINED)


def test_G17_job_ids_are_scoped_per_session():
    world = busy_world()
    assert admissions(world.store(1, "z", 0, session="other")) == (Admission.ACCEPTED,)
    world.finish("a")
    assert [r.job_id for r in world.poll(session="s")[-1].results] == [1]
    assert world.poll(session="other")[-1].results == ()


small_ints = st.integers(-1, 9)
some_keys = st.sampled_from([key(c) for c in "abcd"] + [b"1", b"x" * 17])


@given(
    st.sampled_from([STORE, LOAD]),
    st.lists(
        st.builds(
            JobSpec,
            small_ints,
            st.lists(some_keys, max_size=3).map(tuple),
            st.lists(small_ints, max_size=3).map(tuple),
        ),
        max_size=5,
    ),
)
def test_whatever_is_submitted_is_taken_as_a_whole_or_changes_nothing(kind, jobs):
    world = busy_world()
    before = snapshot(world.engine)
    try:
        done = world.submit(kind, *jobs)
    except (InvalidArgument, ResourceExhausted):
        assert snapshot(world.engine) == before
    else:
        assert len(admissions(done)) == len(jobs)
