"""Ranks of a torch.distributed job: the batches of one process, divided; all end together."""

import contextlib
import os
import subprocess
import sys
import textwrap
from itertools import chain
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from ranks import plain, run_ranks
from scenes import full_chain, write_cases

import voxpipe as vp
from voxpipe.core.errors import GraphError, RankFailed, RankMissing, RanksDiffer
from voxpipe.reading_services import DistributedReadingService, SequentialReadingService
from voxpipe.reading_services.ranks import Ranks

WORLD = 2


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def of_one_process(cases, epochs=1, seed=7, **options):
    with vp.DataLoader2(full_chain(cases, **options), seed=seed) as it:
        return [plain(it) for _ in range(epochs)]


def joined(parts):
    """Return the batches of all ranks together, of each rank's own."""
    return [
        {
            key: [meta for own in of_ranks for meta in own["meta"]]
            if key == "meta"
            else np.concatenate([own[key] for own in of_ranks])
            for key in of_ranks[0]
        }
        for of_ranks in zip(*parts, strict=True)
    ]


def equal(a, b):
    return len(a) == len(b) and all(
        x["meta"] == y["meta"] and all(np.array_equal(x[k], y[k]) for k in x if k != "meta")
        for x, y in zip(a, b, strict=True)
    )


def sequence(workers, uneven="drop", timeout=60.0, **options):
    ranks = DistributedReadingService(timeout, uneven=uneven)
    if workers is None:
        return ranks
    return SequentialReadingService(ranks, vp.MultiProcessingReadingService(workers, **options))


def taken(pipe, service, seed=7, epochs=1, before=None):
    with vp.DataLoader2(pipe, None, service, seed=seed) as it:
        if before is not None:
            it.load_state_dict(before)
        return [plain(it) for _ in range(epochs)]


# 3 cases of 3 samples: batches of 4, 4 and 1.
ODD = {"samples": 3}


def planned_scenes(rank, cases):
    """What every rank does in one job, by name; ranks do it in one order."""
    found = {}
    for name, workers in (("alone", None), ("workers", 2)):
        found[name] = taken(full_chain(cases), sequence(workers), epochs=2)
    for uneven in ("drop", "pad", "wrap"):
        found[uneven] = taken(full_chain(cases, **ODD), sequence(None, uneven))[0]
    found["lengths"] = [
        len(vp.DataLoader2(full_chain(cases, **ODD), None, sequence(None, uneven)))
        for uneven in ("drop", "pad", "wrap")
    ]

    # Half of an epoch, and the rest of it in workers.
    with vp.DataLoader2(full_chain(cases), None, sequence(None), seed=7) as it:
        batches = iter(it)
        next(batches)
        state = it.state_dict()
    found["rest"] = taken(full_chain(cases), sequence(1), before=state)[0]
    found["state"] = state

    # Nobody gave a seed: rank 0 drew one.
    torch.manual_seed(rank)
    with vp.DataLoader2(full_chain(cases), None, sequence(None)) as it:
        next(iter(it))
        found["seed"] = it.state_dict()["seed"]

    # Torch's own pipes: batches are divided as ours are, single items go round.
    numbers = torch.utils.data.datapipes.iter.IterableWrapper(range(5))
    with vp.DataLoader2(numbers.batch(2).collate(), None, sequence(None), seed=7) as it:
        found["torch"] = [batch.tolist() for batch in it]
    with vp.DataLoader2(numbers, None, sequence(None), seed=7) as it:
        found["rounds"] = list(it)
        found["shares"] = it.state_dict()["shares"]
    return found


@pytest.fixture(scope="module")
def scenes(cases):
    return run_ranks(WORLD, planned_scenes, cases)


@pytest.mark.parametrize("where", ["alone", "workers"])
def test_ranks_together_have_the_batches_of_one_process(cases, scenes, where):
    """Rank r's part of each batch, beside the others', is that batch: in two epochs."""
    for epoch, expected in enumerate(of_one_process(cases, epochs=2)):
        parts = [found[where][epoch] for found in scenes]

        assert all(len(batch["image"]) == 4 // WORLD for part in parts for batch in part)
        assert equal(joined(parts), expected)


def test_the_end_is_dropped_padded_or_wrapped(cases, scenes):
    """A last batch of one item: left out, filled with it, or with the first of the epoch."""
    (whole,) = of_one_process(cases, **ODD)
    *full, last = whole

    found = {how: joined([scene[how] for scene in scenes]) for how in ("drop", "pad", "wrap")}

    assert equal(found["drop"], full)
    assert equal(found["pad"][:-1], full)
    assert equal(found["wrap"][:-1], full)
    assert found["pad"][-1]["meta"] == last["meta"] * 4
    assert found["wrap"][-1]["meta"] == [*last["meta"], *full[0]["meta"][:3]]
    assert scenes[0]["lengths"] == [2, 3, 3]


def test_ranks_resume_with_one_state(cases, scenes):
    """A state counts batches of all ranks; it is the same on each, and small."""
    expected = of_one_process(cases)[0][1:]

    assert equal(joined([found["rest"] for found in scenes]), expected)
    assert scenes[0]["state"] == scenes[1]["state"]
    assert scenes[0]["state"]["next_batch"] == 1


def test_the_state_of_ranks_is_that_of_one_process(cases, scenes):
    """It may be loaded without any ranks."""
    with vp.DataLoader2(full_chain(cases), seed=7) as it:
        it.load_state_dict(scenes[0]["state"])

        assert equal(plain(it), of_one_process(cases)[0][1:])


def test_rank_0_draws_the_seed(scenes):
    """Without a seed the ranks agree on one, and their states hold it."""
    assert scenes[0]["seed"] == scenes[1]["seed"]


def test_single_items_go_round(scenes):
    """Where nothing gathers there is no batch to divide: of each two items a rank gets one."""
    assert [found["torch"] for found in scenes] == [[[0], [2]], [[1], [3]]]
    assert [found["rounds"] for found in scenes] == [[0, 2], [1, 3]]
    assert scenes[0]["shares"] == WORLD


def told(call):
    """Return the error that a call raises, as its class and text."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def is_bright(sample):
    return bool(sample["image"].float().mean() > -50)


def is_first(sample):
    return sample.identity[0] == 0


def fail(sample):
    raise ValueError("a mistake of one rank")


def anything(sample):
    return True


def keep(sample):
    return sample


def whole_graph(cases, *functions, shard=True):
    pipe = vp.from_cases(cases).shuffle()
    pipe = pipe.sharding_filter() if shard else pipe
    pipe = pipe.open_volume().lazy_patch(6, samples_per_volume=3).realize()
    for function in functions or (is_bright,):
        pipe = pipe.filter(function)
    return pipe.batch_patches(1)


def failing_scenes(rank, cases):
    """Mistakes, one after the other: each is told on every rank, with the rank's name."""
    found = {}
    odd = full_chain(cases, samples=2 + rank)
    found["chain"] = told(lambda: taken(odd, sequence(None)))
    some = full_chain(cases if rank == 0 else cases[:2])
    found["cases"] = told(lambda: taken(some, sequence(None)))

    def later():
        with vp.DataLoader2(full_chain(cases), None, sequence(None), seed=7) as it:
            it.set_epoch(rank)
            next(iter(it))

    found["epoch"] = told(later)
    found["size"] = told(lambda: taken(full_chain(cases, batch=3), sequence(None)))
    found["shard"] = told(lambda: taken(whole_graph(cases, shard=False), sequence(None)))
    found["wrap"] = told(lambda: taken(whole_graph(cases), sequence(None, "wrap")))
    for workers in (None, 2):
        # A fork server of each rank would import torch anew.
        fork = {"multiprocessing_context": "fork"} if workers else {}
        found[f"whole {workers}"] = taken(whole_graph(cases), sequence(workers, **fork))[0]
        padded = sequence(workers, "pad", **fork)
        found[f"padded {workers}"] = taken(whole_graph(cases), padded)[0]
    # One rank's filter lets nothing through that is not of the first case.
    found["short"] = len(taken(whole_graph(cases, is_first), sequence(None))[0])
    mine = fail if rank == 1 else keep
    graph = whole_graph(cases, anything).map(mine)
    found["failed"] = told(lambda: list(_lenient(graph)))
    if rank == 0:
        found["missing"] = told(lambda: taken(full_chain(cases), sequence(None, timeout=1.0)))
    return found


def _lenient(graph):
    # The chains differ in a function's name; what is told of it here is not the point.
    with vp.DataLoader2(graph, None, NotComparing(60.0), seed=7) as it:
        yield from it


class NotComparing(DistributedReadingService):
    def agree(self, work, seed, epoch, delivered):
        self._ranks = Ranks(60.0)
        return self._ranks.agree({"seed": seed})["seed"]


def late_listings(rank, folder):
    """Epochs of which one rank lists fewer files than the other, as over NFS."""
    scan, hidden = os.scandir, set()

    @contextlib.contextmanager
    def scandir(place="."):
        with scan(place) as entries:
            yield [entry for entry in entries if entry.name not in hidden]

    os.scandir = scandir
    place = folder if rank == 0 else os.path.relpath(folder)
    pipe = vp.list_cases(f"{place}/*/", image="ct.nii").open_volume().lazy_patch(2)
    made = []
    with vp.DataLoader2(pipe.batch_patches(2), None, sequence(None), seed=7) as loader:
        for late in (1, None, 0):
            hidden = {"p3"} if rank == late else set()
            names = [meta["case"] for batch in loader for meta in batch["meta"]]
            made.append((names, len(loader), loader.state_dict()))
    return made


def test_rank_0_lists_the_cases_of_all_ranks(tmp_path):
    """A file that one rank sees later ends no job; all have the list, the length and the state."""
    for number in range(4):
        (tmp_path / f"p{number}").mkdir()
        nib.save(nib.Nifti1Image(np.zeros((4, 4, 4)), np.eye(4)), tmp_path / f"p{number}/ct.nii")
    first, second = run_ranks(WORLD, late_listings, str(tmp_path))

    for one, other, cases in zip(first, second, (4, 4, 3), strict=True):
        assert sorted(one[0] + other[0]) == [f"p{number}" for number in range(cases)][: cases & ~1]
        assert one[1:] == other[1:]
        assert one[1] == cases // 2


def signed_listings(rank, folder):
    """Tables whose rows differ; both name volumes by URLs with a signature."""
    os.environ["VOXPIPE_REMOTE_DEADLINE"] = "1"  # nothing answers there
    pipe = vp.from_table(f"{folder}/{rank}.csv").open_volume().lazy_patch(2).batch_patches(2)
    return told(lambda: taken(pipe, sequence(None)))


def test_cases_with_signed_urls_are_compared_as_texts_without_the_signature(tmp_path):
    """Rank 0's list is not sent to others if its URLs hold credentials: they differ by name."""
    for rank in range(WORLD):
        rows = f"case,image\np{rank},https://127.0.0.1:9/{rank}.nii?sig=hidden\n"
        (tmp_path / f"{rank}.csv").write_text(rows)

    for kind, text in run_ranks(WORLD, signed_listings, str(tmp_path)):
        assert kind == "RanksDiffer"
        assert "rank 1 has case=p1, image=https://127.0.0.1:9/1.nii" in text
        assert "hidden" not in text


@pytest.fixture(scope="module")
def failures(cases):
    return run_ranks(WORLD, failing_scenes, cases)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("chain", RanksDiffer, "rank 1 is about to run graph"),
        ("cases", RanksDiffer, "rank 1 is about to run data"),
        ("cases", RanksDiffer, "first, rank 1 has nothing, rank 0 case="),
        ("epoch", RanksDiffer, "rank 1 is about to run epoch 1, rank 0 0"),
        ("size", GraphError, "a batch of 3 cannot be divided among 2 ranks"),
        ("shard", GraphError, ".sharding_filter()"),
        ("wrap", GraphError, "no items to wrap around to"),
    ],
)
def test_a_mistake_is_told_on_every_rank(failures, name, kind, text):
    """Each rank raises; the message says which rank differs, and in what."""
    for found in failures:
        assert found[name][0] == kind.__name__
        assert text in found[name][1]


def test_a_rank_that_does_not_come_is_named(failures):
    """After the limit, not after half an hour, and by its number."""
    kind, text = failures[0]["missing"]

    assert kind == RankMissing.__name__
    assert "rank 0 waited 1 s to begin the epoch, and rank 1 of 2 did not come" in text


@pytest.mark.parametrize("workers", [None, 2])
def test_whole_graphs_are_shared_and_end_together(cases, failures, workers):
    """Two levels of shares; with "drop" all stop with the first, "pad" repeats the last."""
    with vp.DataLoader2(whole_graph(cases), seed=7) as it:
        everything = {str(batch["meta"][0]["identity"]) for batch in it}
    dropped = [found[f"whole {workers}"] for found in failures]
    padded = [found[f"padded {workers}"] for found in failures]

    names = [str(b["meta"][0]["identity"]) for part in dropped for b in part]
    assert len({len(part) for part in dropped}) == 1
    assert len(names) == len(set(names))
    assert set(names) <= everything
    assert len({len(part) for part in padded}) == 1
    assert {str(b["meta"][0]["identity"]) for part in padded for b in part} == everything


def test_a_rank_without_items_ends_all(failures):
    """Nobody waits for a batch that one rank cannot have."""
    assert [found["short"] for found in failures] == [0, 0]


def test_a_rank_that_fails_ends_all(failures):
    """Its own error there, and its number on the others."""
    assert failures[1]["failed"] == ("ValueError", "a mistake of one rank")
    kind, text = failures[0]["failed"]
    assert kind == RankFailed.__name__
    assert "rank 1 failed, so rank 0 ends its epoch too: ValueError: a mistake of one rank" in text


def test_without_a_job_the_first_epoch_says_what_to_call(cases):
    """A loader may be made before init_process_group, but not run."""
    with (
        vp.DataLoader2(full_chain(cases), None, sequence(1), seed=7) as it,
        pytest.raises(RankMissing, match=r"init_process_group\(\)"),
    ):
        next(iter(it))


@pytest.mark.parametrize(
    ("services", "error", "text"),
    [
        (
            (vp.MultiProcessingReadingService(1), DistributedReadingService()),
            ValueError,
            "then one",
        ),
        ((), ValueError, "got nothing"),
        ((DistributedReadingService(), 3), TypeError, "got 3"),
        (
            (DistributedReadingService(), vp.MultiProcessingReadingService(1, order="as_ready")),
            ValueError,
            "as_ready",
        ),
    ],
)
def test_sequences_that_make_no_sense_are_refused(services, error, text):
    """The order is ranks, then workers; the message says so."""
    with pytest.raises(error, match=text):
        SequentialReadingService(*services)


@pytest.mark.parametrize("given", [{"timeout": 0}, {"timeout": "1"}, {"uneven": "keep"}])
def test_wrong_settings_are_refused(given):
    """At construction, with the value."""
    with pytest.raises(ValueError, match=r"timeout is|uneven is"):
        DistributedReadingService(**given)


def test_a_sequence_of_workers_alone_is_what_they_are(cases):
    """Without a job's ranks the sequence runs its only service."""
    service = SequentialReadingService(vp.MultiProcessingReadingService(1))
    with vp.DataLoader2(full_chain(cases), None, service, seed=7) as it:
        assert equal(plain(it), of_one_process(cases)[0])


SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
import torch.distributed as dist
import voxpipe as vp
from voxpipe.reading_services import DistributedReadingService, SequentialReadingService
from scenes import full_chain

if __name__ == "__main__":
    dist.init_process_group("gloo")
    service = SequentialReadingService(
        DistributedReadingService(60), vp.MultiProcessingReadingService(1)
    )
    cases = json.loads({cases!r})
    with vp.DataLoader2(full_chain(cases), None, service, seed=7) as loader:
        sums = [[float(p.double().sum()) for p in batch["image"]] for batch in loader]
    with open({out!r} + str(dist.get_rank()), "w") as file:
        json.dump(sums, file)
    dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_torchrun_gives_the_batches_of_one_process(cases, tmp_path, world):
    """Under torchrun, with workers in every rank."""
    import json

    tests, out = str(Path(__file__).parent.parent), str(tmp_path / "sums")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).format(tests=tests, out=out, cases=json.dumps(cases)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

    subprocess.run([*command, f"--nproc-per-node={world}", str(script)], check=True, timeout=300)

    parts = [json.loads(Path(out + str(rank)).read_text(encoding="utf-8")) for rank in range(world)]
    together = [[*chain(*of_ranks)] for of_ranks in zip(*parts, strict=True)]
    expected = [
        [float(torch.from_numpy(p).double().sum()) for p in batch["image"]]
        for batch in of_one_process(cases)[0]
    ]
    assert together == expected


def diagnosed(rank, cases):
    """Rank 0 alone measures; then all iterate."""
    return [measured_then_taken(rank, cases, workers) for workers in (None, 1)]


def measured_then_taken(rank, cases, workers):
    with vp.DataLoader2(full_chain(cases), None, sequence(workers), seed=7) as loader:
        found = loader.diagnose(batches=2, seconds=1e-6) if rank == 0 else None
        return plain(loader), found and (found.limit, sorted(found.ceilings), found.costs.items)


@pytest.fixture(scope="module")
def measured(cases):
    return run_ranks(WORLD, diagnosed, cases)


@pytest.mark.parametrize("service", [0, 1], ids=["alone", "workers"])
def test_a_rank_can_be_measured_alone(cases, measured, service):
    """diagnose() waits for no other rank, and leaves the epochs of all as they are."""
    (first, found), (second, nothing) = (told[service] for told in measured)

    assert nothing is None
    assert found[0] in found[1]
    assert found[2] == len(first[0]["image"])  # of each batch its own part is what it measures
    assert equal(joined([first, second]), of_one_process(cases)[0][: len(first)])


def test_a_sequence_without_ranks_can_be_measured(cases):
    """So can what it runs in."""
    service = SequentialReadingService(vp.MultiProcessingReadingService(1))
    with vp.DataLoader2(full_chain(cases), None, service, seed=7) as loader:
        assert loader.diagnose(batches=2, seconds=1e-6).limit
