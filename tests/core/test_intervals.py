from hypothesis import given
from hypothesis import strategies as st

from kvferry_server.core.intervals import IdIntervals

numbers = st.lists(st.integers(1, 40), max_size=60)


@given(numbers)
def test_it_holds_what_a_plain_set_holds(added):
    intervals, plain = IdIntervals(), set()
    for number in added:
        intervals.add(number)
        plain.add(number)
        assert [n for n in range(43) if n in intervals] == sorted(plain)


@given(numbers)
def test_its_size_is_the_number_of_gaps(added):
    intervals = IdIntervals()
    for number in added:
        intervals.add(number)
    runs = sum(1 for number in set(added) if number - 1 not in added)
    assert len(intervals) == runs


def test_dense_ids_take_constant_memory():
    intervals = IdIntervals()
    for number in range(1, 10_001):
        intervals.add(number)
    assert len(intervals) == 1
