"""Which part limits, and what to change: decided from made-up times."""

import math
import pickle
from dataclasses import replace

import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.dataloader2.iterator import RECENT_BATCHES, Counts
from voxpipe.diagnosing.cost_model import (
    CONSUMERS_LINE,
    HAND_OVER,
    STAGES,
    WORKERS_LINE,
    CostModel,
    LoaderFacts,
    Measurement,
)
from voxpipe.diagnosing.diagnosis import CURES, judge

THREADS = {"workers": 0, "threads": 2, "beside_loop": True}
EVEN = dict.fromkeys((stage for stage in STAGES if stage != "functions"), 1.0)
TIMES = st.fixed_dictionaries(
    {"planning": st.floats(0, 1e3)},
    optional={stage: st.floats(0, 1e3) for stage in STAGES if stage != "planning"},
)
# A patch of 96^3 from compressed chunks, in seconds per batch of 4 on one of 2 cores.
CHUNKS = CostModel(
    items=4.0,
    planning=0.001,
    fetch=0.006,
    decode=0.020,
    kernels={"image": 0.024, "label": 0.008},
    rest=0.012,
    transport=0.002,
    at_once=2,
    alone=0.8,
)


def facts(**changed):
    return LoaderFacts(**{"workers": 2, "cores": 2, **changed})


def costs(seconds, **changed):
    """Return the costs that give these seconds per batch with two workers on two cores."""
    own = {"items": 4.0, "planning": 0.0, **seconds, **changed}
    busy = {part: 2 * own[part] for part in ("fetch", "decode", "functions") if part in own}
    if "resample" in own:
        busy |= {"kernels": {"image": 2 * own.pop("resample")}, "rest": 0.0}
    return CostModel(**{**own, **busy})


def judged(seconds, end_to_end, facts, notes=(), **options):
    return judge(Measurement(costs(seconds), facts, notes), end_to_end, **options)


def row_of(part, diagnosis):
    """Return the line of the table that begins with ``part``, as words."""
    rows = [line.split() for line in str(diagnosis).splitlines()[1:] if line]
    return next(row for row in rows if row[0] == part)


def diagnosed(limit, longest=50.0, **changed):
    """Return the diagnosis of a loader that is as fast as its parts let expect."""
    measured = Measurement(costs({**EVEN, limit: longest}), facts(**changed))
    return judge(measured, measured.forecast(with_consumer=True).batches_per_second)


def marked(diagnosis):
    """Return the names, the rates in batches per second and the marks of the table's rows."""
    _, *rows = str(diagnosis).splitlines()
    cells = [(row.split(), "<- limit" in row) for row in rows[: rows.index("")]]
    return [(own[0], float(own[1]), mark) for own, mark in cells if own[0] in (*STAGES, "sum")]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_part_can_be_the_limit(stage, workers):
    """The part that takes much longer than all others is named, and has its own advice."""
    if stage == "transport":
        workers = 2  # nothing is handed over without
    diagnosis = judged({**EVEN, stage: 9.0}, 0.1, facts(workers=workers))

    assert stage == diagnosis.limit
    others = {judged({**EVEN, s: 9.0}, 0.1, facts()).advice for s in STAGES}
    assert diagnosis.advice
    assert len(others) == len(STAGES)


def test_the_slower_line_decides_not_the_slowest_part():
    """Three parts that a worker does in turn are slower than one longer part beside them."""
    model = costs({"fetch": 3.0, "decode": 4.0, "resample": 4.5, "consumer": 6.0})

    assert model.forecast(2, cores=2).limit == "resample"
    assert model.forecast(0).limit == "resample"
    assert replace(model, consumer=12.0).forecast(2, cores=2).limit == "consumer"


class TestPredictions:
    """What follows from parts, in numbers."""

    def test_one_process_does_everything_in_turn(self):
        """Alone on the machine, all but Python takes 0.8 of what it takes beside another."""
        found = CHUNKS.forecast(0)

        assert 1 / found.batches_per_second == pytest.approx(0.001 + 0.8 * 0.058 + 0.012)
        assert found.limit == "resample"

    def test_two_workers_share_two_cores_with_the_consumer(self):
        """They make a batch in 35 ms; planning and taking over want 1.5 ms of each core."""
        found = CHUNKS.forecast(2, cores=2)

        assert 1 / found.batches_per_second == pytest.approx((0.070 + 0.001 + 0.002) / 2)
        assert 1 / CHUNKS.forecast(2, cores=3).batches_per_second == pytest.approx(0.035)

    def test_threads_share_all_but_python(self):
        """One worker with two threads: 58 ms in two threads, then 12 ms in one."""
        found = CHUNKS.forecast(1, threads=2, cores=4)

        assert 1 / found.batches_per_second == pytest.approx(0.058 / 2 + 0.012)

    def test_threads_beside_the_loop_share_all_but_the_lock(self):
        """Two at 6 ms of Python of 70: each finds it taken 6/70 of the time, and is woken."""
        model = replace(CHUNKS, lock=0.006, transport=None)

        def seconds(threads):
            found = model.forecast(0, threads=threads, cores=16, beside_loop=True)
            return 1 / found.batches_per_second

        assert seconds(1) == pytest.approx(0.8 * 0.058 + 0.012)
        handed_over = 0.006 * (1 + HAND_OVER * 6 / 70)
        assert seconds(2) == pytest.approx((0.064 + handed_over * (1 + 6 / 70)) / 2)
        assert seconds(2) < 1 / model.forecast(0, threads=2, cores=16).batches_per_second
        assert model.lock_cores == pytest.approx((0.001 + 0.8 * 0.058 + 0.012) / 0.007)
        assert (
            replace(model, lock=1.0).lock_cores == 1
        )  # parts that were measured on a busier machine
        nothing = replace(model, fetch=None, decode=None, kernels={"image": 0.0}, rest=0.0)
        found = nothing.forecast(0, threads=2, cores=16, beside_loop=True)
        # The lock's part alone: each waits for the other, and is woken.
        assert 1 / found.batches_per_second == pytest.approx(0.009)
        # However many: of each 10 ms the lock is held for 6, and handed over for the rest.
        assert seconds(16) == pytest.approx(0.0097, rel=0.05)
        rates = [model.forecast(n, cores=16).batches_per_second for n in (2, 16)]
        assert rates[0] == pytest.approx(1 / seconds(2), rel=0.03)
        assert rates[1] > 1.2 / seconds(16)

    def test_waiting_is_hidden_only_by_who_fetches_ahead(self):
        """A loop alone waits for each batch; two workers that fetch for 5 wait a tenth of it."""
        model = replace(CHUNKS, waiting=0.5, alone=1.0)

        alone, workers = model.forecast(0, ahead=5), model.forecast(2, cores=8, ahead=5)

        assert 1 / alone.batches_per_second == pytest.approx(0.001 + 0.058 + 0.012 + 0.5)
        assert 1 / workers.batches_per_second == pytest.approx((0.058 + 0.012 + 0.1) / 2)

    def test_the_formula_of_a_rate_is_named_as_it_is_worked_out(self):
        """By makers where each has a core, by cores where there are fewer."""
        names = [CHUNKS.forecast(n, cores=4, threads=t).set_by for n, t in ((2, 1), (8, 1), (2, 2))]
        beside = CHUNKS.forecast(0, threads=8, cores=4, beside_loop=True)

        work = "(sum - rest) / all threads + rest / workers"
        assert names == ["sum / makers", "(sum + transport) / cores", work]
        assert beside.set_by == "(sum + transport) / cores"

    @given(lock=st.floats(0, 0.06), cores=st.sampled_from([1, 2, 8]))
    def test_threads_are_never_faster_than_the_lock_or_processes(self, lock, cores):
        """Whatever their number; more of them may be slower, as they wake each other."""
        model = replace(CHUNKS, lock=lock, transport=0.0, alone=1.0)

        threads = [
            model.forecast(0, threads=n, cores=cores, beside_loop=True).batches_per_second
            for n in (1, 2, 3, 8)
        ]
        processes = [model.forecast(n, cores=cores).batches_per_second for n in (1, 2, 3, 8)]
        assert all(a <= b * (1 + 1e-9) for a, b in zip(threads, processes, strict=True))
        assert not lock or threads[-1] <= 1 / lock * (1 + 1e-9)
        assert threads[0] == processes[0]
        assert lock or threads == pytest.approx(processes)

    @pytest.mark.parametrize(
        ("whole", "lock", "threads"),
        [
            (0.84, 0.35, 1040),
            (1.25, 0.63, 638),
            (0.82, 0.42, 924),
            (2.17, 1.03, 455),
            (4.65, 0.86, 377),
            (5.26, 1.36, 293),
        ],
    )
    def test_two_threads_are_forecast_as_they_were_measured(self, whole, lock, threads):
        """Of 48 (.nii, zarr), 32 (.nii), 64 (zarr) and 96 voxels (both), within 25 %.

        Patches per second by two threads, and ms of a patch by the loop alone, of two idle cores;
        ms with the lock, and for taking a patch over, by processor time of a later day.
        """
        model = CostModel(1.0, 2e-5, rest=1e-3 * whole - 2e-5, lock=1e-3 * lock, transport=2.2e-4)

        found = model.forecast(0, threads=2, cores=2, beside_loop=True).batches_per_second
        assert 0.75 <= found / threads <= 1.25

    def test_more_workers_than_cores_give_no_more(self):
        """Except by hiding what waits."""
        assert CHUNKS.forecast(4, cores=2) == CHUNKS.forecast(2, cores=2)
        remote = replace(CHUNKS, waiting=0.4, remote=True)
        rates = [remote.forecast(n, cores=2).batches_per_second for n in (1, 2, 4)]
        assert rates == sorted(set(rates))

    def test_what_is_fetched_ahead_hides_waiting(self):
        """400 ms in four batches that are under way at once are 100 each."""
        remote = replace(CHUNKS, waiting=0.4, remote=True)

        found = [remote.forecast(2, cores=4, ahead=n) for n in (1, 4)]
        assert [round(1 / each.batches_per_second, 4) for each in found] == [0.235, 0.085]
        assert {each.limit for each in found} == {"fetch"}

    def test_many_workers_wait_for_one_consumer(self):
        """Taking over is not divided."""
        found = CHUNKS.forecast(64, cores=64)

        assert (found.limit, 1 / found.batches_per_second) == ("transport", pytest.approx(0.003))

    @given(seconds=TIMES, workers=st.sampled_from([0, 1, 2, 8]), cores=st.sampled_from([1, 2, 8]))
    def test_the_limit_is_the_longest_part_of_its_line(self, seconds, workers, cores):
        """And no forecast is faster than any single part."""
        found = costs(seconds).forecast(workers, cores=cores)
        line = WORKERS_LINE if found.limit in WORKERS_LINE else CONSUMERS_LINE

        compared = [s for s in (line if workers else STAGES) if s in found.seconds]
        assert found.seconds[found.limit] == max(found.seconds[s] for s in compared)
        longest = max(found.seconds.values())
        assert not longest or found.batches_per_second <= (1 + 1e-9) / longest

    @given(seconds=TIMES, cores=st.sampled_from([1, 2, 8]))
    def test_more_of_anything_is_never_slower(self, seconds, cores):
        """Where a core is as fast beside others."""
        model = costs(seconds)

        rates = [model.forecast(n, cores=cores).batches_per_second for n in (1, 2, 3, 8)]
        assert rates == sorted(rates)
        assert rates[0] <= model.forecast(1, threads=2, cores=cores).batches_per_second * (1 + 1e-9)
        assert rates[0] <= model.forecast(1, cores=cores + 1).batches_per_second * (1 + 1e-9)


def test_parts_of_a_patch_sum_to_what_one_process_takes():
    """Also in the table, which gives milliseconds per patch."""
    found = Measurement(replace(CHUNKS, alone=1.0), LoaderFacts(workers=2, cores=2))
    rows = [line.split() for line in found.table([0, 2]).splitlines() if line]
    parts = [row for row in rows if row[0] in ("planning", "fetch", "decode", "kernel", "rest")]

    total = sum(float(next(filter(lambda cell: cell[0].isdigit(), row))) for row in parts)
    assert len(parts) == 6
    assert float(next(row for row in rows if row[0] == "sum")[1]) == pytest.approx(total, rel=1e-2)
    assert total == pytest.approx(1000 / found.forecast(0).batches_per_second / 4, rel=1e-3)
    assert ["0", "1", "56.3", "17.8", "resample", "sum", "alone"] in rows
    assert ["2", "1", "110", "9.13", "resample"] in [row[:5] for row in rows]
    table = replace(found, costs=replace(found.costs, lock=0.006)).table([0], [1, 2])
    assert [line.split()[:2] for line in table.splitlines()[-5:-2]] == [
        *(["0", "1"], ["here", "1"], ["here", "2"])
    ]
    assert table.splitlines()[-3].endswith("(sum + transport + waits) / makers")
    assert "resample  (sum + transport) / cores" in found.table([2])
    assert "use 8.11 cores at most" in table


def test_a_consumer_that_did_not_run_is_not_forecast():
    """The whole was measured without it; the limit is still the consumer."""
    seconds = {"fetch": 1.0, "consumer": 4.0}

    diagnosis = judged(seconds, 1.0, facts(), has_step=False)

    assert (diagnosis.limit, diagnosis.forecast_rate) == ("consumer", 1.0)
    assert judged(seconds, 0.25, facts(), has_step=True).forecast_rate == 0.25


@given(seconds=TIMES, workers=st.sampled_from([0, 1, 8]), rate=st.floats(1e-3, 1e4))
def test_every_diagnosis_can_be_printed(seconds, workers, rate):
    """Parts that were not measured or take no time included."""
    diagnosis = judged(seconds, rate, facts(workers=workers))
    lines = str(diagnosis).splitlines()

    parts = [s for s in STAGES if s in seconds and (workers or s != "transport")]
    assert list(diagnosis.ceilings) == parts
    assert [line.split()[0] for line in lines[1 : 1 + len(parts)]] == parts
    assert sum("<- limit" in line for line in lines) == 1
    assert 0 <= diagnosis.explained_share <= 1


def test_parts_that_are_about_as_slow_are_named():
    """Another measurement may find one of them the slowest; parts without cost are none."""
    near = judged({"fetch": 0.5, "decode": 0.45, "resample": 0.1}, 1.0, facts(workers=0))

    assert "\nAbout as slow: decode." in str(near)
    assert "About as slow" not in str(judged({"fetch": 0.5, "decode": 0.2}, 1.0, facts()))
    assert "About as slow" not in str(judged({"fetch": 0.0, "decode": 0.0}, 1.0, facts()))


def test_a_part_without_cost_has_no_ceiling():
    """A mapped file is not decoded."""
    diagnosis = judged({"fetch": 0.5, "decode": 0.0}, 2.0, facts())

    assert diagnosis.ceilings == {"planning": math.inf, "fetch": 2.0, "decode": math.inf}
    assert ["decode", "-", "-", "0", "2", "workers"] == row_of("decode", diagnosis)


def test_items_are_batches_times_their_size():
    """The table gives both."""
    assert ["2", "8", "500"] == row_of("fetch", judged({"fetch": 0.5}, 2.0, facts()))[1:4]


def test_time_that_no_part_shows_is_told():
    """Two thirds of the time are missing."""
    found = str(judged({"fetch": 1.0}, 1 / 3, facts()))
    assert "account for 33% of the time; parts that run at once" in found
    alone = str(judged({"fetch": 1.0}, 1 / 6, facts(workers=0)))
    assert "account for 33% of the time; other programs use the cores" in alone
    assert "account for" not in str(judged({"fetch": 1.0}, 0.9, facts()))


@pytest.mark.parametrize(
    ("limit", "changed", "expected"),
    [
        ("planning", {}, "samples_per_volume"),
        (
            "planning",
            {"planned_functions": "map(f)"},
            "runs map(f): make it cheaper, or move it behind batch_patches",
        ),
        ("fetch", {"amplification": 4.0}, "Chunks hold 4 times"),
        ("fetch", {"waits": True}, "more workers than 2"),
        ("fetch", {"cores": 8}, "Use MultiProcessingReadingService(num_workers=8): on 8 cores"),
        ("fetch", {}, "Read fewer bytes"),
        ("decode", {"amplification": 4.0, "cores": 8}, "smaller chunks"),
        ("decode", {"cores": 8}, "num_workers=8"),
        ("decode", {}, "(lz4hc)"),
        ("resample", {"cores": 8}, "num_workers=8"),
        ("resample", {"cores": 8, "threads": 4}, "The present service is right"),
        ("resample", {"interpolates": True}, "fewer augmentations"),
        ("functions", {"functions": True, "function_names": "map(f)"}, "Make your functions"),
        ("functions", {"cores": 8}, "num_workers=8"),
        ("functions", {"runs_tail": True, "function_names": "map(f)"}, "runs map(f) after"),
        ("transport", {}, "Use ThreadReadingService(num_threads=2)"),
        ("transport", {**THREADS}, "Use InProcessReadingService()"),
        ("fetch", {**THREADS, "waits": True}, "more threads than 2"),
        ("fetch", {**THREADS, "cores": 8}, "Use ThreadReadingService(num_threads=8): on 8 cores"),
        ("functions", {**THREADS, "cores": 1, "function_names": "map(f)"}, "one at a time runs"),
        ("functions", {**THREADS, "function_names": "map(f)"}, "(num_workers=2): on 2 cores"),
        ("consumer", {**THREADS, "threads": 8}, "leave the loader as it is; 1 of 8 threads"),
        ("consumer", {"workers": 8}, "leave the loader as it is; 1 of 8 workers"),
        ("consumer", {"workers": 1}, "leave the loader as it is."),
        ("consumer", {"workers": 0}, "Make your step lighter"),
    ],
)
def test_advice_names_what_to_change(limit, changed, expected):
    """The cheapest change first, with its number where there is one."""
    assert expected in diagnosed(limit, **changed).advice


@pytest.mark.parametrize("functions", [False, True])
def test_handing_over_is_cheaper_in_larger_batches(functions):
    """Where no other service does better; functions may copy."""
    advice = replace(diagnosed("fetch", functions=functions), limit="transport").advice

    assert "The present service is right" in advice
    assert "Raise the batch size" in advice
    assert ("batch's own tensors" in advice) is functions


@pytest.mark.parametrize("limit", STAGES)
@pytest.mark.parametrize("setting", [{}, {"workers": 1}, {"workers": 0}, THREADS])
def test_no_sentence_speaks_of_what_is_not_there(limit, setting):
    """Fewer workers than one, augmentations that do not interpolate, cores that are all busy."""
    text = str(diagnosed(limit, **setting))
    wrong = ("fewer workers", "interpolate", "Every core", "1 of them")

    assert not any(words in text for words in wrong)


@given(seconds=TIMES, setting=st.sampled_from([{}, {"workers": 0}, {"workers": 1}, THREADS]))
def test_the_marked_row_has_the_lowest_rate(seconds, setting):
    """A part, or the sum of those that run one after another."""
    diagnosis = judged({**seconds, "rest": 0.0}, 1.0, facts(**setting))
    rows = [row for row in diagnosis.rows if not math.isinf(row.rate)]
    (limit,) = [row for row in diagnosis.rows if row.is_limit]

    assert not rows or limit.rate <= min(row.rate for row in rows) * (1 + 1e-9)
    assert limit.name == diagnosis.limit or diagnosis.limit in limit.where
    assert limit.name == diagnosis.limit or limit.where.partition(":")[0] in diagnosis.headline


def test_a_slower_part_of_the_faster_line_is_not_hidden():
    """A worker resamples in 14 ms; handing over and the step take 18 in the other process."""
    seconds = {"resample": 14e-3, "transport": 6e-3, "consumer": 12.4e-3, "planning": 0.2e-3}
    model = CostModel(4.0, 2e-4, rest=14e-3, transport=6e-3, consumer=12.4e-3)
    found = judge(Measurement(model, facts(workers=1)), 24.8)

    (mark,) = [row for row in marked(found) if row[2]]
    assert mark[0] == "sum"
    assert mark[1] == pytest.approx(1 / (sum(seconds.values()) - 14e-3), rel=0.01)
    assert found.headline == "consumer limits, the longest part of this process."
    assert not found.keeps_up
    assert "The loader keeps up" not in str(found)
    assert "About as slow: resample." in str(found)


@pytest.mark.parametrize(("share", "expected"), [(0.59, False), (0.74, False), (0.95, True)])
def test_a_loader_keeps_up_at_the_rate_of_the_step(share, expected):
    """By the rate that was measured, not by a forecast."""
    model = CostModel(4.0, 1e-4, rest=5e-3, transport=1e-3, consumer=50e-3)
    found = judge(Measurement(model, facts(**THREADS)), share * 20)

    assert found.limit == "consumer"
    assert ("The loader keeps up" in found.advice) is expected
    assert ("1 of 2 threads would do" in found.advice) is expected


# Batches of one patch of 8^3: 0.87 ms of work, of which threads hold the lock for a part.
CHEAP = CostModel(
    1.0, 1.5e-5, fetch=2e-5, decode=0.0, rest=8e-4, kernels={"image": 1e-4}, lock=7e-4
)


@pytest.mark.parametrize("own", [1e-4, 7e-4, 2e-3, 4e-3])
@pytest.mark.parametrize("model", [CHEAP, CHUNKS, replace(CHUNKS, lock=0.05)])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_no_two_services_are_advised_for_each_other(model, own, cores):
    """Each is measured with its own cost of handing over, and forecasts the others."""
    work = replace(model, at_once=1, alone=1.0)
    settings = {
        "MultiProcessing": {"workers": cores},
        "Thread": {**THREADS, "threads": cores},
        "InProcess": {"workers": 0},
    }
    over = {"MultiProcessing": own, "Thread": min(own, 2e-4), "InProcess": None}
    found = {}
    for name, setting in settings.items():
        measured = Measurement(
            replace(work, transport=over[name]), facts(**{"cores": cores, **setting})
        )
        found[name] = next((other for other in settings if f"Use {other}" in measured.better), "")

    for name, other in found.items():
        assert not other or found[other] != name, found


def test_cheap_batches_are_not_sent_to_processes():
    """They cost more to hand over than to make; the measured rate counts, too."""
    threads = Measurement(replace(CHEAP, transport=1.6e-4), facts(**THREADS))
    assert "present service is right" in judge(threads, 1000.0).advice

    slow = replace(CHUNKS, lock=0.06, alone=1.0, transport=1e-4)
    found = Measurement(slow, facts(**THREADS))
    own = found.forecast().batches_per_second
    assert "Use MultiProcessingReadingService(num_workers=2)" in judge(found, own).advice
    assert "present service is right" in judge(found, 3 * own).advice
    assert found.forecast(2).batches_per_second <= 1 / 0.004


class TestFunctionsAfterTheService:
    """Functions that an adapter runs apart, in this process, whatever the service."""

    MODEL = replace(CHUNKS, alone=1.0, tail=0.100, tail_ahead=True, lock=0.006)

    @pytest.mark.parametrize("setting", [{}, {"workers": 0}, {**THREADS, "threads": 2}])
    def test_they_are_the_limit(self, setting):
        """They run ahead of the loop, so the other parts cost nothing more."""
        found = judge(Measurement(self.MODEL, facts(**{"cores": 4, **setting})), 9.9)

        assert found.limit == "functions"
        assert found.ceilings["functions"] == pytest.approx(1 / 0.100)
        assert found.forecast_rate == pytest.approx(1 / 0.100)
        assert row_of("functions", found)[-2:] == ["<-", "limit"]
        assert "this process, ahead of the loop" in str(found)

    def test_pipes_without_threads_are_a_part_of_the_loop(self):
        """Such as a copy to a device: the step waits for it."""
        model = replace(self.MODEL, tail_ahead=False, consumer=0.010)
        found = judge(Measurement(model, facts(cores=4)), 8.0)

        assert found.forecast_rate == pytest.approx(1 / (0.100 + 0.010 + 0.003))
        assert row_of("functions", found)[4:] == ["this", "process"]
        (limit,) = [row for row in found.rows if row.is_limit]
        assert limit.where == "this process: planning + functions + transport + consumer"


def test_a_diagnosis_is_a_value():
    """It can be stored and compared."""
    diagnosis = judged(EVEN, 0.1, facts(), notes=("a", "b"))

    assert pickle.loads(pickle.dumps(diagnosis)) == diagnosis
    assert str(diagnosis).endswith("- a\n- b")


def test_the_timer_forgets_what_is_long_past():
    """Warming up does not count for ever, nor what ran in between."""
    timer = Counts()
    assert timer.kept_seconds() is None

    start = 0.0
    for number in range(RECENT_BATCHES + 5):
        timer.deliver(start, 10.0 * number)
        start = 10.0 * number + (9.0 if number < 5 else 2.0)
    timer.fail(start)
    timer.deliver(0.0, 0.0)
    timer.interrupt()
    timer.fail(1e6)

    assert timer.kept_seconds() == 2.0


@pytest.mark.parametrize(("stepped", "said"), [(True, "with the"), (False, "without the")])
def test_the_table_says_whether_the_whole_holds_the_consumer(stepped, said):
    """Beside the figure of the whole, since the row of the consumer stands above it."""
    table = str(judged(EVEN, 0.1, facts(), has_step=stepped))

    (row,) = (line for line in table.splitlines() if line.startswith("end to end"))
    assert f"{said} consumer" in row


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        ({"workers": -5}, ValueError),
        ({"workers": 2, "threads": -1}, ValueError),
        ({"threads": 0}, ValueError),
        ({"workers": 2.5}, TypeError),
        ({"workers": "a"}, TypeError),
    ],
)
def test_numbers_of_makers_that_are_none_are_refused(numbers, error):
    """A forecast of them would mean nothing."""
    with pytest.raises(error, match=r"workers|threads"):
        Measurement(CHUNKS, facts()).forecast(**numbers)


@pytest.mark.parametrize(
    ("lock", "cores", "expected"),
    [
        (0.050, 1, ""),
        (0.050, 2, "Use MultiProcessingReadingService(num_workers=2): on 2 cores it is forecast"),
        (0.001, 2, ""),
    ],
)
def test_what_does_better_than_threads_is_told(lock, cores, expected):
    """By more than it costs: processes, or none of both."""
    model = replace(CHUNKS, lock=lock, alone=1.0, fetch=0.0, decode=0.0, transport=None)
    found = Measurement(model, facts(**{**THREADS, "cores": cores}))

    assert expected in found.better
    assert bool(expected) is bool(found.better)
    assert (found.better or "The present service is right") in str(found)


def test_what_is_mapped_has_no_chunks():
    """Nor are there any to be spoken of."""
    mapped = replace(CHUNKS, decode=0.0, bytes_read=4e6)
    rows = [Measurement(model, facts()).table([0]) for model in (CHUNKS, mapped)]

    assert ["in the chunks needed" in table for table in rows] == [True, False]


def test_the_guide_has_the_cures_of_the_report():
    """One cure for each part, in the same words."""
    guide = (ROOT / "docs/how-to/find-what-limits.md").read_text("utf-8").replace("`", "")

    for part, cure in CURES.items():
        assert f"| {part} | {cure} |".replace("`", "") in guide, part
    assert list(CURES) == list(STAGES)
