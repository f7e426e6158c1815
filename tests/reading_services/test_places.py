"""What was delivered is known exactly, in as many numbers as there are gaps."""

from hypothesis import given
from hypothesis import strategies as st

from voxpipe.reading_services.planner import DeliveredBatches


def place_after(numbers, step=1):
    place = DeliveredBatches()
    for number in numbers:
        place = place.after(number, step)
    return place


@given(st.permutations(range(12)), st.integers(0, 12), st.integers(1, 3))
def test_a_place_holds_what_was_delivered_and_nothing_else(order, count, step):
    """Whatever came first, and whatever its numbers are taken for."""
    delivered = set(order[:count])

    place = place_after(order[:count], step)

    assert {number for number in range(20) if place.holds(number)} == delivered
    assert place.next == next(number for number in range(13) if number not in delivered)
    assert sum(run.length for run in place.ahead) == count - place.next


@given(st.lists(st.integers(0, 2), max_size=40))
def test_shares_that_come_in_order_make_one_run_each(turns):
    """The k-th of share s of three has number 3 k + s, also if another share has nothing more."""
    taken = [0, 0, 0]
    place = DeliveredBatches()
    for share in turns:
        place = place.after(3 * taken[share] + share, step=3)
        taken[share] += 1

    assert len(place.ahead) <= 3
    delivered = {3 * k + share for share in range(3) for k in range(taken[share])}
    assert {number for number in range(130) if place.holds(number)} == delivered


def test_one_that_is_late_lets_a_thousand_pass_in_one_run():
    """Batches that any worker may make have numbers without gaps."""
    late = place_after([0, *range(2, 1000)])

    assert late.next == 1
    assert [tuple(run) for run in late.ahead] == [(2, 998, 1)]
    assert late.after(1) == DeliveredBatches(1000)
