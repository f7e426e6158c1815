"""Run a small chain on volumes that it makes, in less than a minute.

Make four scans with labels, and show the steps of a training: a chain of pipes, its cost, and
batches of augmented patches. Then show workers, a state that continues a run, and a prediction.
Each step prints its code and its result. Nothing is downloaded, and the scans are removed.

example: voxpipe demo
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.settings import bytes_text
from .printing import print_json

_SIZE = (96, 96, 64)  # voxels of a scan: made and compressed in a fraction of a second
_PATCH = 48
_CASES = 4
_SEED = 7
_THRESHOLD = 500  # between the background and the spheres of a scan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder of the scans, and the number of workers."""
    about = "a new folder for the scans, which are kept (default: a temporary one)"
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help=about)
    about = "worker processes of the second run (default: %(default)s)"
    parser.add_argument("--workers", type=int, choices=range(9), default=2, metavar="N", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Print each step with its code, result and seconds."""
    own = arguments.folder
    if own is not None and own.exists() and not (own.is_dir() and not any(own.iterdir())):
        msg = f"{own} exists and is not an empty folder"
        raise UsageError(msg, do="Give a new --folder for the scans.")
    steps = []
    with tempfile.TemporaryDirectory(prefix="voxpipe-demo-") as temporary:
        folder = arguments.folder or Path(temporary)
        for code, result in _steps(folder, arguments.workers):
            begin = time.perf_counter()
            text = result()
            seconds = time.perf_counter() - begin
            steps.append({"code": code, "result": text, "seconds": seconds})
            if not arguments.json:
                print("\n".join(f">>> {line}" for line in code.splitlines()))
                print(f"{text}\n({seconds:.1f} s)\n", flush=True)
    if arguments.json:
        print_json({"steps": steps})
    else:
        print('next: voxpipe info FILE, and vp.list_cases("scans/*/", image="ct.nii.gz", ...)')
    return 0


def _steps(folder: Path, workers: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield the code of each step, and the function that runs it and returns its result."""
    from ...dataloader2 import DataLoader2
    from ...datapipes.cost import explain
    from ...datapipes.iter import list_cases

    def chain() -> Any:
        cases = list_cases(f"{folder}/*/", image="ct.nii.gz", label="seg.nii.gz")
        patches = cases.shuffle().open_volume().lazy_patch(_PATCH, samples_per_volume=4)
        return patches.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).batch_patches(2)

    yield (f"# {_CASES} scans of {_SIZE}, with spheres as labels", lambda: make_scans(folder))
    code = 'import voxpipe as vp\npipe = (vp.list_cases("scans/*/", image="ct.nii.gz", '
    code += f'label="seg.nii.gz")\n    .shuffle().open_volume().lazy_patch({_PATCH}, '
    code += "samples_per_volume=4)\n    .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)"
    code += ".batch_patches(2))\nprint(vp.explain(pipe))"
    yield code, lambda: explain(chain())

    def first() -> str:
        with DataLoader2(chain(), seed=_SEED) as loader:
            batch = next(iter(loader))
        cases = ", ".join(meta["case"] for meta in batch["meta"])
        return f"{tuple(batch['image'].shape)} {batch['image'].dtype}, of the cases {cases}"

    code = f"loader = vp.DataLoader2(pipe, seed={_SEED})\nbatch = next(iter(loader))"
    yield f'{code}\nbatch["image"].shape', first
    code = f"service = vp.MultiProcessingReadingService(num_workers={workers})\n"
    code += "for batch in vp.DataLoader2(pipe, None, service, seed=7): ..."
    yield code, lambda: _same_batches(chain, workers)
    code = "state = loader.state_dict()  # after three batches\n"
    code += "loader = vp.DataLoader2.from_state(state, pipe)"
    yield code, lambda: _resume(chain)
    code = f"model = lambda batch: torch.cat([{_THRESHOLD} - batch, batch - {_THRESHOLD}], 1)\n"
    code += 'vp.predict(model, "scans/0/ct.nii.gz", "seg.nii.gz", patch=48)'
    yield code, lambda: _predict(folder)


def make_scans(folder: Path) -> str:
    """Write the scans as ``N/ct.nii.gz`` and ``N/seg.nii.gz``; return their size in words."""
    import nibabel

    grid = np.stack(np.meshgrid(*map(np.arange, _SIZE), indexing="ij"))
    total = 0
    for number in range(_CASES):
        random = np.random.default_rng(number)
        centre = np.array(_SIZE)[:, None, None, None] * random.uniform(0.35, 0.65, (3, 1, 1, 1))
        label = (np.sqrt(((grid - centre) ** 2).sum(0)) < random.uniform(12, 24)).astype(np.uint8)
        scan = (label * 1000.0 + random.normal(0, 60, _SIZE)).astype(np.int16)
        place = folder / str(number)
        place.mkdir(parents=True)
        for name, array in (("ct.nii.gz", scan), ("seg.nii.gz", label)):
            nibabel.save(nibabel.Nifti1Image(array, np.diag([1.0, 1.0, 1.5, 1.0])), place / name)
            total += array.nbytes
    return f"{_CASES} scans and labels in {folder}, {bytes_text(total)} of voxels"


def _batches_of(chain: Callable[[], Any], workers: int) -> tuple[list[Any], float]:
    """Return the images of an epoch, and the patches per second of the next one."""
    from ...dataloader2 import DataLoader2
    from ...reading_services import MultiProcessingReadingService

    service = None
    if workers:
        service = MultiProcessingReadingService(num_workers=workers, persistent_workers=True)
    with DataLoader2(chain(), None, service, seed=_SEED) as loader:
        images = [batch["image"].clone() for batch in loader]
        begin, count = time.perf_counter(), 0
        for batch in loader:
            count += len(batch["image"])
        seconds = time.perf_counter() - begin
    return images, count / seconds


def _same_batches(chain: Callable[[], Any], workers: int) -> str:
    import torch

    alone, rate = _batches_of(chain, 0)
    others, other_rate = _batches_of(chain, workers)
    is_same = len(alone) == len(others) and all(map(torch.equal, alone, others))
    text = f"{len(alone)} batches: {rate:.0f} patches/s in this process, {other_rate:.0f} with "
    text += f"{workers} workers; the batches are "
    return text + ("equal, bit for bit" if is_same else "different")


def _resume(chain: Callable[[], Any]) -> str:
    import torch

    from ...dataloader2 import DataLoader2

    with DataLoader2(chain(), seed=_SEED) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        state = loader.state_dict()
        coming = next(batches)["image"].clone()
    with DataLoader2.from_state(state, chain()) as loader:
        again = next(iter(loader))["image"]
    same = "the same" if torch.equal(coming, again) else "another"
    return f"batch 3 of the resumed run is {same} one"


def _predict(folder: Path) -> str:
    import torch

    from ...prediction.predict import predict
    from ...volumes import Volume

    def model(batch: Any) -> Any:
        return torch.cat([_THRESHOLD - batch, batch - _THRESHOLD], 1)

    place = folder / "0" / "prediction.nii.gz"
    result = predict(model, folder / "0" / "ct.nii.gz", place, patch=_PATCH, progress=False)
    label = Volume(folder / "0" / "seg.nii.gz").numpy()
    share = float((result.numpy() == label).mean())
    return f"{result.shape} {result.dtype}: {100 * share:.2f} % of the voxels equal the label"
