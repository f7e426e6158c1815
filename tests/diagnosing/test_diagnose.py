"""Diagnosing measures the parts of the real loader and leaves it as it was."""

import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scenes import full_chain, same, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.batching.job import Job, as_tensors
from voxpipe.batching.parts import Parts, Task, hold_reads
from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import CorruptVolume, GraphError, LoaderShutDown
from voxpipe.core.native_library import free_of_lock, free_seconds
from voxpipe.diagnosing.cost_model import WORKERS_LINE
from voxpipe.diagnosing.measurement import (
    Effort,
    PartPipe,
    Subject,
    Tasks,
    _Measuring,
    diagnose,
    measure,
    reads_of,
)
from voxpipe.reading_services import InProcessReadingService
from voxpipe.reading_services.planner import DeliveredBatches, jobs
from voxpipe.reading_services.work import work_of
from voxpipe.spatial.resampling.native_resampler import available
from voxpipe.volumes.backend import Backend
from voxpipe.volumes.header import IDENTITY, array_header
from voxpipe.volumes.voxels import Voxels

BRIEF = {"batches": 2, "seconds": 1e-6}
LONGEST = 30.0
PATCHES = set(WORKERS_LINE) - {"functions"}
SERVICES = pytest.mark.parametrize("workers", [0, 1])


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def loader_of(chain, workers=0, adapters=None, **settings):
    service = vp.MultiProcessingReadingService(workers, **settings)
    return vp.DataLoader2(chain, adapters, service, seed=3)


def keep(case):
    return case


def doubled(batch):
    return {**batch, "image": batch["image"] * 2}


@SERVICES
def test_the_loader_stays_where_it_is(cases, workers):
    """Before the first batch, in the middle of an epoch and after it."""
    with loader_of(full_chain(cases), workers) as undisturbed:
        expected = [list(undisturbed), list(undisturbed)]

    with loader_of(full_chain(cases), workers) as loader:
        states = [loader.state_dict()]
        loader.diagnose(**BRIEF)
        batches = iter(loader)
        found = [next(batches)]
        states += [loader.state_dict()]
        loader.diagnose(**BRIEF)
        states += [loader.state_dict()]
        found += list(batches)
        loader.diagnose(**BRIEF)
        again = list(loader)

    assert states[1] == states[2]
    assert (states[0]["epoch"], states[0]["next_batch"]) == (0, 0)
    assert same(found, expected[0])
    assert same(again, expected[1])


def test_no_seed_is_drawn(cases):
    """A loader without a seed takes it from torch's generator as if nothing had happened."""
    with vp.DataLoader2(full_chain(cases)) as loader:
        torch.manual_seed(5)
        expected = loader.state_dict()["seed"]
    with vp.DataLoader2(full_chain(cases)) as loader:
        torch.manual_seed(5)
        loader.diagnose(**BRIEF)

        assert loader.state_dict()["seed"] == expected


def test_persistent_workers_are_not_borrowed(cases):
    """The measurements have workers of their own, which end."""
    with loader_of(full_chain(cases), 1, persistent_workers=True) as loader:
        first = list(loader)
        pool = loader._service._pool
        pids = [worker.process.pid for worker in pool.workers]
        loader.diagnose(**BRIEF)

        assert loader._service._pool is pool
        assert [worker.process.pid for worker in pool.workers] == pids
        assert pool.is_well()
        assert len(list(loader)) == len(first)


@SERVICES
def test_every_part_has_a_ceiling(cases, workers):
    """Transport is measured where there is any; the consumer where it is known."""
    with loader_of(full_chain(cases), workers) as loader:
        diagnosis = loader.diagnose(**BRIEF)

    transport = {"transport"} if workers else set()
    assert set(diagnosis.ceilings) == {"planning", *PATCHES} | transport
    assert diagnosis.limit in diagnosis.ceilings
    assert diagnosis.facts.workers == workers
    assert diagnosis.costs.items == 4
    assert set(diagnosis.costs.kernels) == {"image", "label"}
    assert diagnosis.end_to_end > 0
    assert "give step=" in str(diagnosis)


class RecordingService(vp.MultiProcessingReadingService):
    """Remembers how each pass was run."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.passes = []

    def epoch(self, work, *run):
        """Note the workers and the memory for chunks."""
        self.passes.append((work.workers, work.cache_bytes))
        return super().epoch(work, *run)


def test_parts_are_done_by_workers_and_the_whole_as_agreed(tmp_path):
    """Parts keep no chunks; the whole, which comes last, has the cache that was negotiated."""
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "scan.zarr"
    array = zarr.create_array(path, shape=(32, 32, 32), chunks=(8, 8, 8), dtype="i2")
    array[...] = np.arange(32**3, dtype="i2").reshape(32, 32, 32)
    chain = vp.from_cases([{"image": str(path)}] * 2).open_volume()
    chain = chain.lazy_patch(12, samples_per_volume=8).batch_patches(2)
    service = RecordingService(2)
    with vp.DataLoader2(chain, None, service, seed=3) as loader:
        agreed = loader.schemes()["image"].cache_bytes
        loader._service.passes = found = []
        loader.diagnose(**BRIEF)

    assert agreed > 0
    assert {workers for workers, _ in found} == {2}
    sizes = [size for _, size in found]
    assert sizes == sorted(sizes)
    assert set(sizes) == {0, agreed}


@SERVICES
def test_measuring_forecasts_and_leaves_the_loader(cases, workers):
    """Without running it as a whole; explain() then tells, and reads nothing for it."""
    with loader_of(full_chain(cases), workers) as undisturbed:
        expected = list(undisturbed)
    with loader_of(full_chain(cases), workers) as loader:
        assert "kernel" not in loader.explain()
        state = loader.state_dict()
        found = loader.measure(**BRIEF)
        before = IO_COUNTERS.snapshot()
        text = loader.explain()

        assert (IO_COUNTERS.snapshot() - before).reads == 0
        assert str(found) in text
        assert loader.state_dict() == state
        assert same(list(loader), expected)
        loader.adapters = [vp.FuseSpatial()]
        list(loader)
        assert "kernel" not in loader.explain()
        assert "kernel image" in loader.explain(measure=True)
    assert set(found.costs.kernels) == {"image", "label"}
    assert (found.costs.items, found.costs.transport is None) == (4, not workers)
    assert found.costs.rest >= 0
    assert found.costs.bytes_read > 0
    assert 0 < found.costs.alone <= 1
    assert found.forecast().batches_per_second == found.forecast(workers).batches_per_second > 0


def test_a_diagnosis_is_told_by_explain_too(cases):
    """It has measured the same parts."""
    with loader_of(full_chain(cases)) as loader:
        diagnosis = loader.diagnose(**BRIEF)

        assert str(diagnosis) in loader.explain()
        assert f"{diagnosis.forecast_rate / diagnosis.end_to_end:.2f} times that" in str(diagnosis)


def test_chunks_that_are_kept_are_not_counted_twice(tmp_path):
    """Eight patches of one chunk decode it once; each alone would."""
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "scan.zarr"
    array = zarr.create_array(path, shape=(16, 16, 16), chunks=(16, 16, 16), dtype="i2")
    array[...] = np.arange(16**3, dtype="i2").reshape(16, 16, 16)
    chain = vp.from_cases([{"image": str(path)}] * 8).open_volume()
    with loader_of(chain.lazy_patch(8, samples_per_volume=8).batch_patches(2)) as loader:
        costs = loader.measure(**BRIEF).costs

    assert costs.bytes_read == 2 * 16**3
    assert costs.bytes_decoded < costs.bytes_read


@pytest.mark.parametrize("function", [None, doubled])
def test_parts_are_done_by_as_many_threads(cases, monkeypatch, function):
    """At the same time, each a task of its own; the loader stays as it is, and all threads end."""
    chain = full_chain(cases) if function is None else full_chain(cases).map(function)
    with loader_of(chain) as undisturbed:
        expected = list(undisturbed)
    seen, meeting = {}, threading.Barrier(2, timeout=LONGEST)
    run = Parts.__call__

    def together(parts, tasks):
        name = threading.current_thread().name
        part = seen.setdefault(tasks[0].part, set())
        if name.startswith("voxpipe-batches") and name not in part:
            meeting.wait()  # a thread alone would break it
        part.add(name)
        return run(parts, tasks)

    monkeypatch.setattr(Parts, "__call__", together)
    with vp.DataLoader2(chain, None, vp.ThreadReadingService(2), seed=3) as loader:
        found = loader.measure(**BRIEF)
        text = loader.explain()
        assert same(list(loader), expected)

    both = {"voxpipe-batches-0", "voxpipe-batches-1"}
    assert {part: seen[part] & both for part in seen} == dict.fromkeys(
        ("open", "fetch", "kernel", "transport"), both
    )
    facts = found.facts
    assert (facts.workers, facts.threads, facts.makers, facts.beside_loop) == (0, 2, 2, True)
    assert facts.functions is (function is not None)
    assert found.costs.transport > 0
    assert 0 <= found.costs.lock <= sum(found.costs.one_by_one())
    assert (found.costs.functions is None) is (function is None)
    assert found.costs.lock_cores >= 1
    assert ("its threads share the interpreter's lock" in text) is (found.costs.lock > 0)
    assert not [t for t in threading.enumerate() if t.name.startswith("voxpipe-batches")]


def test_a_diagnosis_names_threads(cases):
    """Where parts run; nothing is handed over, and the whole is that of the service."""
    with vp.DataLoader2(full_chain(cases), None, vp.ThreadReadingService(2), seed=3) as loader:
        diagnosis = loader.diagnose(step=len, **BRIEF)

    rows = str(diagnosis).splitlines()
    assert set(diagnosis.ceilings) == {"planning", *PATCHES, "transport", "consumer"}
    fetch = next(row for row in rows if row.startswith("fetch"))
    assert fetch.removesuffix("  <- limit").endswith("  2 threads")  # whatever limits here
    assert diagnosis.facts.who == "2 threads"


@SERVICES
def test_step_gets_real_batches(cases, workers):
    """The consumer is the function that is given."""
    seen = []
    with loader_of(full_chain(cases), workers) as loader:
        diagnosis = loader.diagnose(step=lambda b: seen.append(tuple(b["image"].shape)), **BRIEF)

    assert set(seen) == {(4, 1, 6, 6, 6)}
    assert "consumer" in diagnosis.ceilings
    assert "step=" not in str(diagnosis)


def test_without_step_the_loop_so_far_is_the_consumer(cases):
    """One batch that came back is enough."""
    with loader_of(full_chain(cases)) as loader:
        before = loader.diagnose(**BRIEF)
        assert before.notes[0].startswith("your loop took no batches yet")
        assert f"- {before.notes[0]}" in str(before).splitlines()
        assert len(list(loader)) > 1
        diagnosis = loader.diagnose(**BRIEF)

    assert "consumer" in diagnosis.ceilings
    assert "how long your loop kept a batch" in str(diagnosis)
    assert "took no batches" not in str(diagnosis)


@SERVICES
def test_a_profile_counts_what_the_user_runs(cases, workers):
    """Measuring adds nothing to it."""
    adapters = [vp.Timeout(item=60), vp.Profile()]
    with loader_of(full_chain(cases), workers, adapters) as loader:
        list(loader)
        before = loader.profile()
        loader.diagnose(**BRIEF)

        assert loader.profile() == before


def test_functions_of_the_user_are_part_of_resampling(cases):
    """And what global generators give is as before."""
    chain = full_chain(cases).map(doubled)
    with loader_of(chain, 1, multiprocessing_context="fork") as loader:
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        diagnosis = loader.diagnose(**BRIEF)

        assert bool((torch.rand(3) == expected).all())
    assert diagnosis.facts.functions
    assert not diagnosis.facts.planned_functions


def test_items_that_are_not_patches():
    """Where nothing is read lazily, all of the realizing part is one."""
    chain = IterableWrapper([{"a": 1}] * 6).map(keep).batch_patches(2)
    with loader_of(chain, 1, multiprocessing_context="fork") as loader:
        diagnosis = loader.diagnose(**BRIEF)

    assert set(diagnosis.ceilings) == {"planning", "resample", "functions", "transport"}
    assert "no lazy patches" in str(diagnosis)


def test_a_graph_that_only_plans(cases):
    """There is nothing to realize, so nothing is sent to workers."""
    chain = vp.from_cases(cases).open_volume().lazy_patch(4)
    with loader_of(chain, 1) as loader:
        diagnosis = loader.diagnose(**BRIEF)

    assert (list(diagnosis.ceilings), diagnosis.facts.workers) == (["planning"], 0)
    assert "no voxel is read and no worker or thread is started" in str(diagnosis)
    assert "end the chain with .batch_patches(n)" in str(diagnosis)


@pytest.mark.parametrize("shards", [None, (8, 8, 8)])
def test_zarr_tells_fetching_from_decoding(tmp_path, shards):
    """In shards too: what is fetched is the chunks in them."""
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "scan.zarr"
    array = zarr.create_array(path, shape=(12, 12, 12), chunks=(4, 4, 4), shards=shards, dtype="i2")
    array[...] = 1
    chain = vp.from_cases([{"image": str(path)}]).open_volume().lazy_patch(4, samples_per_volume=4)
    with loader_of(chain.batch_patches(2), 1) as loader:
        diagnosis = loader.diagnose(**BRIEF)

    assert {"fetch", "decode"} <= set(diagnosis.ceilings)
    assert "cannot be told apart" not in str(diagnosis)
    assert diagnosis.facts.amplification > 1


class Foreign:
    """A backend that only answers slices: nobody can tell what of that is fetching."""

    shape = (1, 12, 12, 12)
    affine = np.eye(4)
    dtype = np.dtype(np.int16)

    def __getitem__(self, item):
        return torch.zeros(self.shape, dtype=torch.int16)[item]

    def to_tensor(self):
        return self[...]


def test_what_cannot_be_told_apart_counts_as_decoding(tmp_path):
    """And a note says so."""
    path = tmp_path / "scan.foreign"
    path.touch()
    vp.register_backend("foreign", lambda r: str(r.path).endswith(".foreign"), lambda r: Foreign())
    try:
        chain = vp.from_cases([{"image": str(path)}]).open_volume()
        chain = chain.lazy_patch(4, samples_per_volume=4)
        with loader_of(chain.batch_patches(2), 0) as loader:
            diagnosis = loader.diagnose(**BRIEF)
    finally:
        vp.volumes.unregister_backend("foreign")

    assert "fetch" not in diagnosis.ceilings
    assert f"cannot be told apart for {path}" in str(diagnosis)


def test_a_gzipped_volume_is_decoded_before_anything_is_measured(tmp_path):
    """That happens once per machine, so it is no part of a batch."""
    nibabel = pytest.importorskip("nibabel")
    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((9, 9, 9), np.int16), np.eye(4)), path)
    chain = vp.from_cases([{"image": str(path)}] * 3).open_volume().lazy_patch(4).batch_patches(1)
    with loader_of(chain) as loader:
        diagnosis = loader.diagnose(**BRIEF)

    assert "1 volume was made readable first" in str(diagnosis)


def test_an_epoch_that_ends_is_followed_by_the_next(cases):
    """The last batch was delivered: what is measured belongs to the next epoch."""
    chain = full_chain(cases[:1], samples=4, batch=4)
    with loader_of(chain) as loader:
        batches = iter(loader)
        next(batches)
        diagnosis = loader.diagnose(**BRIEF)

        assert loader.state_dict()["next_batch"] == 1
    assert diagnosis.end_to_end > 0


@SERVICES
def test_a_bad_file_is_reported_as_by_the_loader(tmp_path, workers):
    """The error is the one that the epoch would raise, and no process stays."""
    path = tmp_path / "scan.zarr"
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(path, shape=(4, 4, 4), chunks=(4, 4, 4), dtype="i2")
    array[...] = 1
    (path / "c" / "0" / "0" / "0").write_bytes(b"nonsense")
    chain = vp.from_cases([{"image": str(path)}] * 4).open_volume().batch_patches(1)
    with (
        loader_of(chain, workers) as loader,
        pytest.raises(CorruptVolume, match=r"scan\.zarr cannot be decoded") as caught,
    ):
        loader.diagnose(**BRIEF)

    assert "thrown by" not in str(caught.value)  # torch's words, of a pipe that nobody wrote


class TestRefusals:
    """What cannot be measured without harm is refused, with the way out."""

    def test_a_graph_that_cannot_be_split(self, cases):
        """Its parts are not apart."""
        chain = vp.from_cases(cases).open_volume().realize().filter(keep).batch_patches(1)
        with (
            loader_of(chain) as loader,
            pytest.raises(GraphError, match=r"cannot be measured apart(.|\n)*Profile\(\)"),
        ):
            loader.diagnose(**BRIEF)

    def test_a_source_that_would_be_used_up(self):
        """An iterator yields its items once."""
        items = iter([{"a": 1}] * 4)
        with (
            loader_of(IterableWrapper(items, deepcopy=False).batch_patches(1)) as loader,
            pytest.raises(GraphError, match="which planning ahead would use up"),
        ):
            loader.diagnose(**BRIEF)

        assert len(list(items)) == 4

    def test_functions_in_the_planner_of_a_running_epoch(self, cases):
        """They may remember something; between epochs they may run."""
        chain = vp.from_cases(cases).map(keep).open_volume().lazy_patch(4).batch_patches(1)
        with loader_of(chain) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(GraphError, match="an epoch is running"):
                loader.diagnose(**BRIEF)
            assert len(list(batches)) == 2
            assert loader.diagnose(**BRIEF).facts.planned_functions

    def test_no_batch(self, cases):
        """Fewer items than a batch, and the last one is dropped."""
        chain = vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(9, drop_last=True)
        with loader_of(chain) as loader, pytest.raises(GraphError, match="no batch to measure"):
            loader.diagnose(**BRIEF)

    def test_a_loader_that_was_shut_down(self, cases):
        """As for iterating."""
        loader = loader_of(full_chain(cases))
        loader.shutdown()
        with pytest.raises(LoaderShutDown):
            loader.diagnose()

    @pytest.mark.parametrize("wrong", [{"batches": 0}, {"seconds": 0}])
    def test_numbers_that_measure_nothing(self, cases, wrong):
        """At least one batch, and some time."""
        with (
            loader_of(full_chain(cases)) as loader,
            pytest.raises(ValueError, match=r"got (seconds=)?0"),
        ):
            loader.diagnose(**wrong)


class TestStages:
    """What each part does and does not do, counted."""

    @pytest.fixture
    def work(self, cases):
        return work_of(full_chain(cases))

    @pytest.fixture
    def tasks(self, work):
        planned = list(itertools.islice(jobs(work.cut, 3, 0, DeliveredBatches()), 2))
        return [(job, reads_of(job.items)) for job in planned]

    def run(self, stage, part, tasks, times=1):
        number = times * len(tasks)
        every = [Task(part, job, reads) for job, reads in tasks]
        stage.parent = Tasks(every, lambda n: n >= number)
        before = IO_COUNTERS.snapshot()
        outcomes = [as_tensors(outcome) for outcome in stage]
        return outcomes, IO_COUNTERS.snapshot() - before

    def test_workers_are_those_of_the_loader(self, work, cases):
        """They have torch only where those of the loader have it too."""
        with_function = work_of(full_chain(cases).map(doubled))

        assert PartPipe(work, 3, 0).instructions() is not None
        assert PartPipe(replace(with_function, workers=1), 3, 0).instructions() is None

    def test_one_read_per_volume_and_item_is_planned(self, tasks):
        """Image and label of four patches."""
        assert [len(reads) for _, reads in tasks] == [8, 8]

    def test_fetching_reads_nothing_and_reading_does_not_resample(self, work, tasks):
        """Each does its own part."""
        stage = PartPipe(work, 3, 0)
        fetched = self.run(stage, "fetch", tasks)[1]
        read = self.run(stage, "read", tasks)[1]

        assert (fetched.reads, fetched.interpolations + fetched.copies) == (0, 0)
        assert (read.reads, read.interpolations + read.copies) == (16, 0)

    def test_kernels_read_nothing(self, work, tasks):
        """However often, the voxels are those that were held; each patch once."""
        stage = PartPipe(work, 3, 0)
        self.run(stage, "kernel", tasks)
        outcomes, done = self.run(stage, "kernel", tasks, times=3)

        assert (done.reads, done.interpolations + done.copies) == (0, 3 * 16)
        assert all(list(each.result) == ["image", "label"] for each in outcomes)
        assert all(sum(each.result.values()) <= each.seconds for each in outcomes)

    def test_transport_makes_one_batch_and_hands_over_its_layout(self, work, tasks):
        """Other memory each time, the same keys, shapes and types."""
        stage = PartPipe(work, 3, 0)
        outcomes, done = self.run(stage, "transport", tasks, times=2)

        first, *_ = outcomes
        assert done.reads == 8
        assert len({batch["image"].data_ptr() for batch in outcomes}) == 4
        assert [list(batch) for batch in outcomes] == [["image", "label", "meta"]] * 4
        assert {(b["label"].shape, b["label"].dtype) for b in outcomes} == {
            (first["label"].shape, torch.uint8)
        }

    def test_held_voxels_make_the_same_batch(self, work, tasks):
        """Bit for bit, and provenance included: it is the real work that is measured."""
        for job, _ in tasks:
            items, size = hold_reads(job.items)
            batch, expected = (work.cut.realizing[-1].gather(each) for each in (items, job.items))

            assert size > 0
            assert same([batch], [expected])


class Ticking:
    """A clock that moves when it is told to, and a little whenever it is asked."""

    TICK = 2.0**-30

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += self.TICK
        return self.now


class Slow(Backend):
    """Chunks that take made-up times to fetch and to decode."""

    clock = Ticking()
    fetching = decoding = resampling = 0.0

    def __init__(self, request):
        header = array_header(np.zeros((1, 8, 8, 8), np.int16), IDENTITY, "slow")
        super().__init__(replace(header, chunks=(4, 4, 4), access="range"), "slow")

    def fetch(self, region, channels=None):
        Slow.clock.now += Slow.fetching
        return region.size

    def read(self, region, channels=None):
        Slow.clock.now += Slow.fetching + Slow.decoding
        return Voxels(np.zeros((1, *region.shape), np.int16))


def slowly(batch):
    Slow.clock.now += Slow.resampling
    return batch


@pytest.mark.parametrize(
    ("fetching", "decoding", "resampling", "stepping", "limit"),
    [
        (4.0, 1.0, 0.5, 2.0, "fetch"),
        (2.0, 6.0, 1.5, 3.0, "decode"),
        (2.0, 3.0, 7.0, 3.0, "functions"),
        (1.0, 1.0, 1.0, 9.0, "consumer"),
    ],
)
def test_made_up_times_are_found_again(
    monkeypatch, fetching, decoding, resampling, stepping, limit
):
    """Each part is measured by itself, and together they explain the whole."""
    monkeypatch.setattr(Slow, "fetching", fetching)
    monkeypatch.setattr(Slow, "decoding", decoding)
    monkeypatch.setattr(Slow, "resampling", resampling)
    vp.register_backend("slow", lambda request: str(request.source).endswith(".slow"), Slow)

    def step(batch):
        Slow.clock.now += stepping

    try:
        chain = vp.from_cases([{"image": "a.slow"}]).open_volume()
        chain = chain.lazy_patch(4, samples_per_volume=8).batch_patches(1).map(slowly)
        service = InProcessReadingService()
        subject = Subject(chain, service, seed=0, epoch=0, cursor=DeliveredBatches())
        extent = Effort(batches=3, seconds=20.0, clock=Slow.clock)
        diagnosis = diagnose(subject, extent, step, cores=1)
    finally:
        vp.volumes.unregister_backend("slow")

    ceilings = {"fetch": fetching, "decode": decoding, "consumer": stepping}
    ceilings["functions"] = resampling
    for part, seconds in ceilings.items():
        assert diagnosis.ceilings[part] == pytest.approx(1 / seconds, rel=1e-6)
    whole = fetching + decoding + resampling + stepping
    assert diagnosis.end_to_end == pytest.approx(1 / whole, rel=1e-6)
    assert diagnosis.explained_share == pytest.approx(1.0, rel=1e-6)
    assert diagnosis.limit == limit


def test_functions_of_threads_are_counted_one_at_a_time(monkeypatch):
    """Three seconds each in the loop's thread, whatever the number of threads; processes share."""
    monkeypatch.setattr(Slow, "fetching", 0.1)
    monkeypatch.setattr(Slow, "decoding", 0.1)
    monkeypatch.setattr(Slow, "resampling", 3.0)
    vp.register_backend("slow", lambda request: str(request.source).endswith(".slow"), Slow)
    try:
        chain = vp.from_cases([{"image": "a.slow"}]).open_volume()
        chain = chain.lazy_patch(4, samples_per_volume=8).batch_patches(1).map(slowly)
        subject = Subject(chain, vp.ThreadReadingService(1), 0, 0, DeliveredBatches())
        found = diagnose(subject, Effort(batches=3, seconds=20.0, clock=Slow.clock), cores=2)
    finally:
        vp.volumes.unregister_backend("slow")

    seconds = {n: 1 / found.forecast(threads=n).batches_per_second for n in (1, 2)}
    assert found.costs.functions == pytest.approx(3.0)
    over = found.costs.transport  # by a real clock: less than the ms that it takes on busy cores
    assert seconds == {1: pytest.approx(3.0 + over), 2: pytest.approx(3.0 + over)}
    assert found.forecast(threads=2).limit == found.limit == "functions"
    assert 1 / found.forecast(2).batches_per_second == pytest.approx(1.6, rel=0.1)
    assert "Use MultiProcessingReadingService(num_workers=2): on 2 cores" in found.advice
    assert "map(slowly" in found.facts.function_names
    assert "one at a time runs map(slowly" in replace(found, end_to_end=1.0).advice


def test_handing_over_leaves_out_the_first_batches():
    """Each maker makes a real batch for the layout first, which may run slow functions."""
    clock = Ticking()

    def outcomes(cut, here):
        for number in range(12):
            clock.now += 60.0 if number < 2 else 1.0
            yield None

    effort = SimpleNamespace(clock=clock)
    own = {
        "_in_threads": False,
        "_effort": effort,
        "_least": 2,
        "_tasks": [],
        "_cut": lambda *_: None,
    }
    measuring = SimpleNamespace(**own, _outcomes=outcomes)

    assert _Measuring._transport(measuring) == pytest.approx(1.0)


def write_packed(folder, name):
    """Write a volume whose only chunk is deflated, which Python hands to zlib or imagecodecs."""
    voxels = np.random.default_rng(0).integers(0, 9, (64, 64, 64)).astype(np.int16)
    path = folder / name
    if path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("d", data=voxels, chunks=voxels.shape, compression="gzip")
    else:
        tifffile = pytest.importorskip("tifffile")
        tifffile.imwrite(path, voxels, compression="zlib", metadata={"axes": "ZYX"})
    return str(path)


@pytest.mark.parametrize("service", [InProcessReadingService(), vp.ThreadReadingService(1)])
def test_functions_on_cases_are_planning(tmp_path, service):
    """Most of them run for the first batch of a short epoch; the advice names them."""
    time = itertools.count()
    slow = []

    def slowly(case):
        slow.append(8)
        return case

    np.save(tmp_path / "a.npy", np.zeros((8, 8, 8), np.float32))
    chain = vp.from_cases([{"case": str(n), "image": f"{tmp_path}/a.npy"} for n in range(4)])
    chain = chain.map(slowly).open_volume().lazy_patch(4, samples_per_volume=2).shuffle()
    subject = Subject(chain.batch_patches(2), service, 0, 0, DeliveredBatches(3))
    effort = Effort(batches=4, seconds=40.0, clock=lambda: next(time) / 8 + sum(slow))
    diagnosis = diagnose(subject, effort, cores=1)

    assert 1 / diagnosis.ceilings["planning"] == pytest.approx(8, rel=0.2)
    assert diagnosis.limit == "planning"
    assert "map(slowly" in diagnosis.advice


@pytest.mark.parametrize("name", ["scan.h5", "scan.tif"])
def test_what_is_decoded_without_the_lock_is_counted_so(tmp_path, name):
    """Deflate is undone by a call that lets other threads run."""
    volume = vp.Volume(write_packed(tmp_path, name))

    with free_seconds() as seconds:
        volume.read(Region((0, 0, 0), (8, 8, 8)))

    assert len(seconds) > 0
    assert sum(seconds) > 0


@pytest.mark.skipif(not available(), reason="the native kernel is missing")
def test_calls_of_the_kernel_are_counted():
    """The kernel lets other threads run; only a measurement makes its calls count."""
    sample = next(iter(vp.from_cases([{"image": np.ones((8, 8, 8))}]).open_volume().rotate(10)))

    with free_seconds() as seconds:
        sample["image"].realize()

    assert len(seconds) == 1


def test_the_lock_is_a_part_of_the_sum(tmp_path):
    """Of the same batches: of chunks that are kept nothing is decoded, with the lock or without."""
    chain = vp.from_cases([{"image": write_packed(tmp_path, "scan.h5")}] * 4).open_volume()
    with loader_of(chain.lazy_patch(8, samples_per_volume=32).batch_patches(2)) as loader:
        costs = loader.measure(batches=4, seconds=0.02).costs

    assert 0 < costs.lock <= sum(costs.one_by_one())


def test_calls_without_the_lock_are_counted_of_their_thread():
    """Two that measure at once do not disturb each other, in whatever order they end."""
    release, meeting = free_of_lock(len), threading.Barrier(2, timeout=LONGEST)
    counts = {}

    def measure_first():
        with free_seconds() as seconds:
            release("a")
            meeting.wait()  # the other has begun
        counts["first"] = len(seconds)
        meeting.wait()

    thread = threading.Thread(target=measure_first)
    thread.start()
    with free_seconds() as seconds:
        meeting.wait()
        meeting.wait()  # the first has ended
        release("a")
        release("a")
    thread.join()
    release("a")

    assert (counts["first"], len(seconds)) == (1, 2)


def broken(batch):
    raise ArithmeticError("no such batch")


@pytest.mark.parametrize("service", [InProcessReadingService(), vp.ThreadReadingService(1)])
def test_an_error_of_a_function_is_told_as_the_loader_tells_it(cases, service):
    """Without what torch adds of pipes that nobody wrote."""
    with (
        vp.DataLoader2(full_chain(cases).map(broken), None, service) as loader,
        pytest.raises(ArithmeticError, match="no such batch") as caught,
    ):
        loader.measure(**BRIEF)

    assert "thrown by" not in str(caught.value)


class Cold(Slow):
    """Bytes that take four seconds the first time, and one from memory."""

    seen: ClassVar[set[object]] = set()

    def fetch(self, region, channels=None):
        """Take longer where a region is new."""
        Slow.clock.now += 1.0 if region in self.seen else 4.0
        self.seen.add(region)
        return region.size


@pytest.mark.parametrize("size", [0, 10**6])
def test_a_disk_is_waited_for_where_it_brings_bytes(monkeypatch, size):
    """Four seconds the first time and one the second may also be a busy machine."""
    counts = itertools.count(0, size)
    monkeypatch.setattr("voxpipe.batching.parts.disk_bytes", lambda: next(counts))
    monkeypatch.setattr(Slow, "decoding", 2.0)
    Cold.seen.clear()
    vp.register_backend("cold", lambda request: str(request.source).endswith(".cold"), Cold)
    try:
        chain = vp.from_cases([{"image": "a.cold"}]).open_volume()
        chain = chain.lazy_patch(4, samples_per_volume=8).batch_patches(1)
        subject = Subject(chain, InProcessReadingService(), 0, 0, DeliveredBatches())
        found = measure(subject, Effort(batches=3, seconds=20.0, clock=Slow.clock), cores=1)
    finally:
        vp.volumes.unregister_backend("cold")

    assert found.facts.waits is bool(size)
    assert found.costs.waiting == pytest.approx(3.0 if size else 0.0)
    assert any("fetched a second time" in note for note in found.notes) is bool(size)


class Packed(Slow):
    """A volume whose first read takes fifty seconds more."""

    seen: ClassVar[set[object]] = set()

    def __init__(self, request):
        super().__init__(request)
        self.path = str(request.source)

    def read(self, region, channels=None):
        """Unpack the volume first."""
        Slow.clock.now += 0.0 if self.path in self.seen else 50.0
        self.seen.add(self.path)
        return super().read(region, channels)


def test_what_is_done_once_for_each_volume_is_no_part_of_a_batch(monkeypatch):
    """More volumes are unpacked while whole batches are made than had been looked at before."""
    monkeypatch.setattr(Slow, "fetching", 1.0)
    monkeypatch.setattr(Slow, "decoding", 2.0)
    monkeypatch.setattr(Slow, "resampling", 1.0)
    Packed.seen.clear()
    vp.register_backend("packed", lambda request: str(request.source).endswith(".packed"), Packed)
    try:
        chain = vp.from_cases([{"image": f"{name}.packed"} for name in range(8)]).open_volume()
        chain = chain.lazy_patch(4).batch_patches(1).map(slowly)
        subject = Subject(chain, InProcessReadingService(), 0, 0, DeliveredBatches())
        found = measure(subject, Effort(batches=3, seconds=200.0, clock=Slow.clock), cores=1)
    finally:
        vp.volumes.unregister_backend("packed")

    assert len(Packed.seen) > 3
    costs = found.costs
    assert (costs.fetch, costs.decode, costs.functions) == pytest.approx((1, 2, 1))
    assert found.forecast().batches_per_second == pytest.approx(1 / 4)


def test_a_task_names_its_cases():
    """Errors of a worker say which; what is no lazy patch is not read."""
    sample = vp.Sample({"image": 1}, case="knee")

    assert Task("read", Job(0, (sample, sample)), ()).case == "knee"
    assert reads_of([sample, "other"]) == ()
