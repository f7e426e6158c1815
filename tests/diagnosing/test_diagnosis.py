"""Which part limits, and what to change: decided from made-up times."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.dataloader2.iterator import RECENT_BATCHES, Counts
from voxpipe.diagnosing.diagnosis import (
    CONSUMERS_LINE,
    STAGES,
    WORKERS_LINE,
    Setup,
    expected_seconds,
    judge,
    slowest_part,
)

EVEN = dict.fromkeys(STAGES, 1.0)
TIMES = st.dictionaries(st.sampled_from(STAGES), st.floats(0, 1e3), min_size=1)


def facts(**changed):
    return Setup(**{"workers": 2, "cores": 2, "items": 4.0, **changed})


def row_of(part, diagnosis):
    """Return the line of the table that begins with ``part``, as words."""
    rows = [line.split() for line in str(diagnosis).splitlines()[1:] if line]
    return next(row for row in rows if row[0] == part)


def advice(limit, **changed):
    return judge({**EVEN, limit: 5.0}, 0.1, facts(**changed)).advice


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_part_can_be_the_limit(stage, workers):
    """The part that takes much longer than all others is named, and has its own advice."""
    diagnosis = judge({**EVEN, stage: 9.0}, 0.1, facts(workers=workers))

    assert stage == diagnosis.limit
    others = {judge({**EVEN, s: 9.0}, 0.1, facts()).advice for s in STAGES}
    assert diagnosis.advice
    assert len(others) == len(STAGES)


def test_the_slower_line_decides_not_the_slowest_part():
    """Three parts that a worker does in turn are slower than one longer part beside them."""
    seconds = {"fetch": 3.0, "decode": 4.0, "resample": 4.5, "consumer": 6.0}

    assert slowest_part(seconds, workers=2) == "resample"
    assert slowest_part(seconds, workers=0) == "consumer"
    assert slowest_part({**seconds, "consumer": 12.0}, workers=2) == "consumer"


def test_what_is_predicted():
    """With workers the lines overlap; without, everything is done in turn."""
    seconds = {"planning": 1.0, "fetch": 2.0, "resample": 3.0, "consumer": 3.0}

    assert expected_seconds(seconds, workers=2) == 5.0
    assert expected_seconds(seconds, workers=0) == 9.0


def test_a_consumer_that_did_not_run_is_not_predicted():
    """The whole was measured without it; the limit is still the consumer."""
    seconds = {"fetch": 1.0, "consumer": 4.0}

    diagnosis = judge(seconds, 1.0, facts(), has_step=False)

    assert (diagnosis.limit, diagnosis.prediction) == ("consumer", 1.0)
    assert judge(seconds, 0.25, facts(), has_step=True).prediction == 0.25


@given(seconds=TIMES, workers=st.sampled_from([0, 1, 8]))
def test_the_limit_is_the_longest_part_of_its_line(seconds, workers):
    """And no prediction is faster than any single part."""
    limit = slowest_part(seconds, workers)
    line = WORKERS_LINE if limit in WORKERS_LINE else CONSUMERS_LINE

    compared = line if workers else STAGES
    assert seconds[limit] == max(seconds[s] for s in compared if s in seconds)
    assert expected_seconds(seconds, workers) >= max(seconds.values())


@given(seconds=TIMES, workers=st.sampled_from([0, 1, 8]), rate=st.floats(1e-3, 1e4))
def test_every_diagnosis_can_be_printed(seconds, workers, rate):
    """Parts that were not measured or take no time included."""
    diagnosis = judge(seconds, rate, facts(workers=workers))
    lines = str(diagnosis).splitlines()

    assert list(diagnosis.ceilings) == [stage for stage in STAGES if stage in seconds]
    assert [line.split()[0] for line in lines[1 : 1 + len(seconds)]] == list(diagnosis.ceilings)
    assert sum("<- limit" in line for line in lines) == 1
    assert 0 <= diagnosis.explained_share <= 1


def test_a_part_without_cost_has_no_ceiling():
    """A mapped file is not decoded."""
    diagnosis = judge({"fetch": 0.5, "decode": 0.0}, 2.0, facts())

    assert diagnosis.ceilings == {"fetch": 2.0, "decode": math.inf}
    assert ["decode", "-", "-", "0", "2", "workers"] == row_of("decode", diagnosis)


def test_items_are_batches_times_their_size():
    """The table gives both."""
    assert ["2", "8", "500"] == row_of("fetch", judge({"fetch": 0.5}, 2.0, facts()))[1:4]


def test_time_that_no_part_shows_is_told():
    """Two thirds of the time are missing."""
    assert "account for 33% of the time" in str(judge({"fetch": 1.0}, 1 / 3, facts()))
    assert "account for" not in str(judge({"fetch": 1.0}, 0.9, facts()))


@pytest.mark.parametrize(
    ("limit", "changed", "expected"),
    [
        ("planning", {}, "samples_per_volume"),
        ("planning", {"planned_functions": True}, "behind batch_patches"),
        ("fetch", {"amplification": 4.0}, "Chunks hold 4 times"),
        ("fetch", {"waits": True}, "more workers than 2"),
        ("fetch", {"cores": 8}, "num_workers=8"),
        ("fetch", {}, "from memory already"),
        ("decode", {"amplification": 4.0, "cores": 8}, "smaller chunks"),
        ("decode", {"cores": 8}, "num_workers=8"),
        ("decode", {}, "faster codec"),
        ("resample", {"straight": False}, "FuseSpatial()"),
        ("resample", {"cores": 8}, "num_workers=8"),
        ("resample", {"cores": 8, "threads": 4}, "fewer augmentations"),
        ("resample", {"cores": 8, "threads": 3}, "6 of them work"),
        ("resample", {"functions": True}, "Profile()"),
        ("resample", {}, "fewer augmentations"),
        ("transport", {}, "batch size"),
        ("transport", {"functions": True}, "batch's own tensors"),
        ("consumer", {"workers": 0}, "MultiProcessingReadingService(num_workers=1)"),
        ("consumer", {"workers": 8}, "5 of 8 workers would do"),
        ("consumer", {"workers": 1}, "leave the loader as it is."),
    ],
)
def test_advice_names_what_to_change(limit, changed, expected):
    """The cheapest change first, with its number where there is one."""
    assert expected in advice(limit, **changed)


def test_a_diagnosis_is_a_value():
    """It can be stored and compared."""
    diagnosis = judge(EVEN, 0.1, facts(), notes=("a", "b"))

    assert pickle.loads(pickle.dumps(diagnosis)) == diagnosis
    assert str(diagnosis).endswith("- a\n- b")


def test_the_timer_forgets_what_is_long_past():
    """Warming up does not count for ever, nor what ran in between."""
    timer = Counts()
    assert timer.kept_seconds() is None

    for number in range(RECENT_BATCHES + 5):
        timer.deliver(10.0 * number, 0.0)
        timer.request(10.0 * number + (9.0 if number < 5 else 2.0))
    timer.deliver(0.0, 0.0)
    timer.interrupt()
    timer.request(1e6)

    assert timer.kept_seconds() == 2.0


@pytest.mark.parametrize(("stepped", "said"), [(True, "with the"), (False, "without the")])
def test_the_table_says_whether_the_whole_holds_the_consumer(stepped, said):
    """Beside the figure of the whole, since the row of the consumer stands above it."""
    table = str(judge(EVEN, 0.1, facts(), has_step=stepped))

    (row,) = (line for line in table.splitlines() if line.startswith("end to end"))
    assert f"{said} consumer" in row
