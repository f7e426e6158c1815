"""Costs of a loader by the number of its cases: start, second epoch, state, resume, any batch.

    python benchmarks/scaling.py --sections cases
    python benchmarks/scaling.py --sections cases --manifest 1000000

All paths are links to one small file, so only the number of cases differs between columns. Each
cell is measured in processes of its own, one per round. Each process first imports the libraries
and loads the kernel, with a loader of one case.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import processes

if TYPE_CHECKING:
    from voxpipe.reading_services.work import PlannedWork

SEED = 7
EDGE = 48
"""Edge of the volume behind all paths, in voxels."""
SIZE = 32
PER_VOLUME = 4
BATCH = 4
PER_FOLDER = 1000
"""Links in a folder."""
REPEATS = 9
"""Calls of which a warm cell is the median."""
PLANNED = 400_000
"""Patches that a rate of planning counts, at most."""
PATIENCE = 600
"""Seconds for which a cell is waited for."""
COLUMNS = "Manifests by columns"


@dataclass(frozen=True)
class Column:
    """A number of cases, and their source."""

    count: int
    folder: str
    manifest: str = ""
    """Path of a manifest; empty where the cases are a list."""

    @property
    def title(self) -> str:
        """Heading of the column."""
        source = "from a manifest" if self.manifest else "from a list"
        return f"{self.count:,} cases {source}"


@dataclass(frozen=True)
class Row:
    """One quantity of a loader."""

    unit: str
    measure: Callable[[Column, Any], float]
    """Receives the column and the user's list of cases."""
    digits: int = 1
    of_manifests: bool = True
    """Whether the row has a meaning without a list of cases."""


def path_of(folder: str, number: int) -> str:
    """Return the path of a case."""
    return os.path.join(folder, f"{number // PER_FOLDER:05d}", f"case{number:07d}.nii")


def write_cases(folder: Path, count: int) -> None:
    """Write one volume, and as many links to it."""
    import nibabel
    import numpy as np

    voxels = np.random.default_rng(SEED).integers(0, 1000, (EDGE,) * 3, np.int16)
    volume = folder / "volume.nii"
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), volume)  # type: ignore[no-untyped-call]
    for first in range(0, count, PER_FOLDER):
        os.mkdir(os.path.dirname(path_of(str(folder), first)))
        for number in range(first, min(count, first + PER_FOLDER)):
            os.symlink(volume, path_of(str(folder), number))


def write_manifest(folder: Path, count: int) -> str:
    """Write a manifest by columns of the first cases, and return its path; "" without a writer."""
    import voxpipe as vp
    from voxpipe.core.errors import MissingDependency
    from voxpipe.volumes.catalog import manifest as manifests
    from voxpipe.volumes.catalog.catalog import describe_volume

    write: Any = getattr(manifests, "write_entries", None)
    if write is None:
        print(f"{COLUMNS} (.parquet) are not read by this version: the column is left out.\n")
        return ""
    first = describe_volume(vp.Volume(path_of(str(folder), 0)), "case0000000", "image")

    def entries() -> Iterator[Any]:
        for number in range(count):
            place = path_of(str(folder), number)
            yield replace(first, case=f"case{number:07d}", location=place)

    path = str(folder / "manifest.parquet")
    try:
        write(entries(), path)
    except MissingDependency as error:
        print(f"{COLUMNS} are left out: {error}\n")
        return ""
    return path


def list_of(column: Column) -> list[dict[str, str]]:
    """Return the user's list of cases; empty for a manifest."""
    count = 0 if column.manifest else column.count
    return [{"image": path_of(column.folder, number)} for number in range(count)]


def chain(column: Column, cases: Sequence[Any]) -> Any:
    """Return the measured chain."""
    import voxpipe as vp

    source = vp.from_manifest(column.manifest) if column.manifest else vp.from_cases(cases)
    patches = source.shuffle().open_volume().lazy_patch(SIZE, samples_per_volume=PER_VOLUME)
    mixed = patches.shuffle_plans(vp.ShuffleSpec.all_patches())
    return mixed.augment(rotate=15).batch_patches(BATCH)


def loader(column: Column, cases: Sequence[Any]) -> Any:
    """Return a loader in this process."""
    import voxpipe as vp

    return vp.DataLoader2(chain(column, cases), seed=SEED)


def middle(column: Column) -> int:
    """Return the number of the batch in the middle of an epoch."""
    return column.count * PER_VOLUME // BATCH // 2


def ms(work: Callable[[], Any]) -> float:
    """Return the milliseconds that a call takes."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def made(column: Column, cases: Any) -> float:
    """Make the chain and its loader."""
    return ms(lambda: loader(column, cases))


def first_batch(column: Column, cases: Any) -> float:
    """Take the first batch of a new loader."""
    own = loader(column, cases)
    return ms(lambda: next(iter(own)))


def second_epoch(column: Column, cases: Any) -> float:
    """Take the first batch of the second epoch."""
    own = loader(column, cases)
    next(iter(own))
    return ms(lambda: next(iter(own)))


def running(column: Column, cases: Any) -> float:
    """Take one of the next batches of a running epoch."""
    batches = iter(loader(column, cases))
    next(batches)
    return median(ms(lambda: next(batches)) for _ in range(min(REPEATS, middle(column))))


def state(column: Column, cases: Any) -> float:
    """Take the first state, inside an epoch."""
    own = loader(column, cases)
    batches = iter(own)
    next(batches)
    return ms(own.state_dict)


def state_again(column: Column, cases: Any) -> float:
    """Take a later state of the same epoch."""
    own = loader(column, cases)
    batches = iter(own)
    next(batches)
    own.state_dict()
    next(batches)
    return ms(own.state_dict)


def resume(column: Column, cases: Any) -> float:
    """Load a state in the middle of an epoch into a new loader, and take its first batch."""
    saved = {**loader(column, cases).state_dict(), "next_batch": middle(column)}
    own = loader(column, cases)

    def go_on() -> None:
        own.load_state_dict(saved)
        next(iter(own))

    return ms(go_on)


def batch_cold(column: Column, cases: Any) -> float:
    """Make a batch by its number, with a new loader."""
    own = loader(column, cases)
    return ms(lambda: own.batch(middle(column)))


def batch_warm(column: Column, cases: Any) -> float:
    """Make later batches by their numbers."""
    own, first = loader(column, cases), middle(column)
    own.batch(first)
    numbers = range(first + 1, min(2 * first, first + 1 + REPEATS))
    return median(ms(partial(own.batch, number)) for number in numbers)


def anonymous_mb() -> float:
    """Return the heap of this process."""
    gc.collect()
    return processes.memory_of({os.getpid(): "command"}).anonymous / processes.MB


def list_mb(column: Column, cases: Any) -> float:
    """Return the memory of the user's list."""
    before = anonymous_mb()
    another = list_of(column)
    return anonymous_mb() - before if another else 0.0


def loader_mb(column: Column, cases: Any) -> float:
    """Return the memory of a loader with a running epoch and a state, beside the list."""
    before = anonymous_mb()
    own = loader(column, cases)
    batches = iter(own)
    next(batches)
    own.state_dict()
    return anonymous_mb() - before


def _work(column: Column, cases: Any) -> PlannedWork:
    import voxpipe as vp
    from voxpipe.reading_services.work import PlannedWork, work_of

    work = work_of(vp.FuseSpatial()(chain(column, cases)))
    assert isinstance(work, PlannedWork)
    return work


def items_per_second(column: Column, cases: Any) -> float:
    """Plan the patches of batch after batch, by ``EpochPlan.items``, in processor time."""
    from voxpipe.reading_services.planner import EpochPlan

    plan = EpochPlan(_work(column, cases).cut.planner, SEED, 0)
    plan.items(0, BATCH)
    start, count = time.process_time(), 0
    for first in range(BATCH, min(PLANNED, column.count * PER_VOLUME), BATCH):
        count += len(plan.items(first, first + BATCH))
    return count / (time.process_time() - start)


def jobs_per_second(column: Column, cases: Any) -> float:
    """Plan the jobs of a reading service, in processor time; the unit is patches, too."""
    from voxpipe.reading_services.planner import DeliveredBatches, jobs

    plan = jobs(_work(column, cases).cut, SEED, 0, DeliveredBatches())
    next(plan)
    start = time.process_time()
    count = sum(len(job.items) for job in islice(plan, PLANNED // BATCH))
    return count / (time.process_time() - start)


def peer(cases: Sequence[Any]) -> Any:
    """Return torch's loader of a map-style dataset, which reads patches with nibabel."""
    import nibabel
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Patches(Dataset[Any]):
        def __len__(self) -> int:
            return PER_VOLUME * len(cases)

        def __getitem__(self, number: int) -> Any:
            image: Any = nibabel.load(cases[number // PER_VOLUME]["image"])
            start = np.random.randint(0, np.subtract(image.shape, SIZE) + 1)
            box = tuple(slice(first, first + SIZE) for first in start)
            return torch.from_numpy(np.asarray(image.dataobj[box], np.float32))[None]

    return DataLoader(Patches(), batch_size=BATCH, shuffle=True)


def peer_first(column: Column, cases: Any) -> float:
    """Make the peer, and take its first batch."""
    return ms(lambda: next(iter(peer(cases))))


def peer_second(column: Column, cases: Any) -> float:
    """Take the peer's first batch of the second epoch."""
    own = peer(cases)
    next(iter(own))
    return ms(lambda: next(iter(own)))


def peer_mb(column: Column, cases: Any) -> float:
    """Return the memory of the peer with a running epoch, beside the list."""
    before = anonymous_mb()
    batches = iter(peer(cases))
    next(batches)
    return anonymous_mb() - before


ROWS = {
    "make the chain and the loader": Row("ms", made),
    "first batch of the first epoch": Row("ms", first_batch),
    "first batch of the second epoch": Row("ms", second_epoch),
    "a batch of a running epoch": Row("ms", running),
    "state_dict(), first": Row("ms", state),
    "state_dict(), later": Row("ms", state_again),
    "resume at the middle: load_state_dict() and its first batch": Row("ms", resume),
    "loader.batch(b) at the middle, cold": Row("ms", batch_cold),
    "loader.batch(b), warm": Row("ms", batch_warm),
    "memory of the user's list": Row("MB", list_mb),
    "memory of the loader beside it": Row("MB", loader_mb),
    "planning alone, EpochPlan.items": Row("patches/s", items_per_second, 0),
    "planning alone, jobs()": Row("patches/s", jobs_per_second, 0),
    "torch Dataset and DataLoader: make, and first batch": Row(
        "ms", peer_first, of_manifests=False
    ),
    "the same: first batch of the second epoch": Row("ms", peer_second, of_manifests=False),
    "the same: memory beside the list": Row("MB", peer_mb, of_manifests=False),
}


def print_table(chosen: argparse.Namespace) -> None:
    """Print the section of scaling.py: a row per quantity, a column per number of cases."""
    print("\n### Cases, in one process\n")
    print(
        f"- links to one .nii of {EDGE}^3; {PER_VOLUME} patches of {SIZE}^3 a case, batches of "
        f"{BATCH}; medians of {chosen.case_rounds} rounds\n"
    )
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        write_cases(Path(name), max(*chosen.cases, chosen.manifest))
        columns = [Column(count, name) for count in chosen.cases]
        manifest = write_manifest(Path(name), chosen.manifest) if chosen.manifest else ""
        if manifest:
            columns.append(Column(chosen.manifest, name, manifest))
        print("| | unit | " + " | ".join(column.title for column in columns) + " |")
        print("|---|---" + "|---" * len(columns) + "|", flush=True)
        # A quick run has one process for all rows.
        groups = [[*ROWS]] if chosen.quick else [[title] for title in ROWS]
        for titles in groups:
            values = [_measured(titles, column, chosen.case_rounds) for column in columns]
            for title in titles:
                row = ROWS[title]
                cells = [f"{own[title]:,.{row.digits}f}" if title in own else "" for own in values]
                print(f"| {title} | {row.unit} | " + " | ".join(cells) + " |", flush=True)


def _measured(titles: Sequence[str], column: Column, rounds: int) -> dict[str, float]:
    """Return the medians of rows; each round is a process of its own."""
    own = [title for title in titles if ROWS[title].of_manifests or not column.manifest]
    command = [sys.executable, __file__, "--measure", json.dumps([own, *astuple(column)])]
    answers = []
    for _ in range(rounds if own else 0):
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise SystemExit(f"{', '.join(own)}, {column.title}: {done.stderr}")
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    return {title: median(answer[title] for answer in answers) for title in own}


def main() -> None:
    """Measure rows of one column, in a process of their own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--measure", required=True, help="rows and a column, as JSON")
    titles, *column = json.loads(parser.parse_args().measure)
    own = Column(*column)
    # Libraries and the kernel are loaded at their first use.
    warm = replace(own, count=1, manifest="")
    next(iter(loader(warm, list_of(warm))))
    next(iter(peer(list_of(warm))))
    cases = list_of(own)
    print(json.dumps({title: ROWS[title].measure(own, cases) for title in titles}))


if __name__ == "__main__":
    main()
