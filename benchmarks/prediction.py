"""Predict one volume with an identity network, beside MONAI's and TorchIO's sliding windows.

Each is a process of its own that reads a float32 ``.nii`` and writes one: seconds, and the peak of
its memory, imports included. All results are compared with the volume, voxel by voxel.
``--shape`` with ``--classes`` measures us alone: labels of a large uint8 volume into a zarr.

Run with an environment that has the peers: ``benchmarks/prediction.py --peers monai torchio``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PATCH = 128
OVERLAP = 0.5


def identity():
    """Return a convolution of kernel size 1 that gives its input."""
    import torch

    network = torch.nn.Conv3d(1, 1, 1, bias=False)
    torch.nn.init.ones_(network.weight)
    return network.eval()


def levels(classes: int) -> np.ndarray:
    """Return that many levels of grey, evenly spread."""
    return (np.arange(classes) + 0.5) * 256 / classes


def nearest_level(classes: int):
    """Return a convolution of kernel size 1 whose largest channel is the nearest level."""
    import torch

    # (x - level)^2 is least where 2 level x - level^2 is largest.
    network = torch.nn.Conv3d(1, classes, 1)
    level = torch.from_numpy(levels(classes)).float()
    with torch.no_grad():
        network.weight[:] = 2 * level.reshape(-1, 1, 1, 1, 1)
        network.bias[:] = -(level**2)
    return network.eval()


def run_voxpipe(source: Path, result: Path) -> None:
    """Predict out of core."""
    import voxpipe as vp

    how = {"patch": PATCH, "overlap": OVERLAP, "progress": False}
    vp.predict(identity(), source, result, output="logits", **how)


def run_large(source: Path, result: Path, classes: int, overlap: float) -> None:
    """Predict labels out of core, with a bar."""
    import voxpipe as vp

    vp.predict(nearest_level(classes), source, result, patch=PATCH, overlap=overlap, progress=True)


def run_monai(source: Path, result: Path) -> None:
    """Predict by ``SlidingWindowInferer``, which holds volume, sums and weights."""
    import nibabel as nib
    import torch
    from monai.inferers import SlidingWindowInferer

    image = nib.load(source)
    volume = torch.from_numpy(np.asarray(image.dataobj, dtype=np.float32))[None, None]
    inferer = SlidingWindowInferer((PATCH,) * 3, 1, OVERLAP, "gaussian")
    with torch.inference_mode():
        output = inferer(volume, identity())[0, 0].numpy()
    nib.save(nib.Nifti1Image(output, image.affine), result)


def run_torchio(source: Path, result: Path) -> None:
    """Predict by ``GridSampler`` and ``GridAggregator``."""
    import torch
    import torchio as tio

    subject = tio.Subject(image=tio.ScalarImage(source))
    sampler = tio.GridSampler(subject, PATCH, round(PATCH * OVERLAP))
    aggregator = tio.GridAggregator(sampler, overlap_mode="hann")
    network = identity()
    with torch.inference_mode():
        for batch in tio.SubjectsLoader(sampler, batch_size=1):
            aggregator.add_batch(network(batch["image"][tio.DATA].float()), batch[tio.LOCATION])
    tensor = aggregator.get_output_tensor()
    tio.ScalarImage(tensor=tensor, affine=subject.image.affine).save(result)


RUNS = {"voxpipe": run_voxpipe, "large": run_large, "monai": run_monai, "torchio": run_torchio}
IMPORTS = {
    "voxpipe": "voxpipe.prediction.predict",
    "large": "voxpipe.prediction.predict",
    "monai": "monai.inferers",
    "torchio": "torchio",
}


def peak() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, source: Path, result: Path, *more: float) -> None:
    """Run one of them in this process, and print what it took as JSON."""
    import importlib

    import torch  # noqa: F401  all of them import it

    importlib.import_module(IMPORTS[name])
    before, start = peak(), time.perf_counter()
    RUNS[name](source, result, *more)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "megabytes": peak(), "imports": before}))


def write_volume(path: Path, shape: tuple[int, ...], dtype: str) -> None:
    """Write a ``.nii`` plane by plane: values that repeat, so that it is made in no time."""
    import nibabel as nib

    header = nib.Nifti1Header()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    header["vox_offset"] = 352
    header.set_sform(np.eye(4), 1)
    plane = np.random.default_rng(0).integers(0, 200, shape[:2]).astype(dtype)
    with open(path, "wb") as file:
        file.write(header.binaryblock.ljust(352, b"\0"))
        for number in range(shape[2]):
            np.roll(plane, 7 * number).T.tofile(file)


def write_blocks(path: Path, shape: tuple[int, ...]) -> None:
    """Write a sharded zarr of uint8 that looks like tissue: smooth fields under noise."""
    import zarr

    array = zarr.create_array(path, shape=shape, dtype="uint8", chunks=(64,) * 3, shards=(256,) * 3)
    random = np.random.default_rng(0)
    noise = random.integers(0, 16, 256**3 + 2**20, dtype=np.uint8)
    waves = random.uniform(0.01, 0.05, 3)
    for at in itertools.product(*(range(0, n, 256) for n in shape)):
        box = [
            np.arange(a, min(a + 256, n), dtype=np.float32) for a, n in zip(at, shape, strict=True)
        ]
        i, j, k = np.ix_(*box)
        field = np.sin(waves[0] * i + 0.002 * j) + np.sin(waves[1] * j) * np.cos(waves[2] * k)
        start = int(random.integers(2**20))
        grain = noise[start : start + field.size].reshape(field.shape)
        array[tuple(slice(int(b[0]), int(b[-1]) + 1) for b in box)] = (
            120 + 55 * field + grain
        ).astype(np.uint8)


def largest_difference(one: Path, other: Path) -> float:
    """Return by how much two volumes differ, looked at plane by plane."""
    import nibabel as nib

    first, second = (nib.load(path).dataobj for path in (one, other))
    count = first.shape[2]
    return max(
        float(np.abs(np.squeeze(first[..., k]) - np.squeeze(second[..., k])).max())
        for k in range(0, count, max(1, count // 32))
    )


def child(name: str, source: Path, result: Path, *more: float) -> dict[str, float]:
    """Measure one of them in a process of its own."""
    command = [sys.executable, __file__, "--run", name, str(source), str(result)]
    command += map(str, more)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    """Measure in turns, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=[], choices=["monai", "torchio"])
    parser.add_argument("--shape", type=int, nargs=3, help="uint8 volume, of us alone")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--overlap", type=float, default=OVERLAP, help="of windows of --shape")
    parser.add_argument("--folder", help="where volumes lie meanwhile, by default the system's")
    parser.add_argument("--run", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        name, source, result, *more = arguments.run
        return measure(name, Path(source), Path(result), *map(json.loads, more))
    place = arguments.folder
    with tempfile.TemporaryDirectory(prefix="voxpipe-prediction-", dir=place) as folder:
        if arguments.shape:
            shape, classes = tuple(arguments.shape), arguments.classes
            return print_large(Path(folder), shape, classes, arguments.overlap)
        return print_beside(Path(folder), arguments.size, arguments.rounds, arguments.peers)


def print_large(folder: Path, shape: tuple[int, ...], classes: int, overlap: float) -> None:
    """Print what one large volume takes."""
    source, result = folder / "scan.zarr", folder / "labels.nii.zarr"
    write_blocks(source, shape)
    row = child("large", source, result, classes, overlap)
    size = "x".join(map(str, shape))
    print(
        f"{size} uint8, {classes} classes, overlap {overlap}: {row['seconds']:.0f} s, "
        f"peak {row['megabytes']:.0f} MB ({row['imports']:.0f} of imports), "
        f"{wrong_labels(source, result, classes)} wrong labels in 64 boxes"
    )


def wrong_labels(source: Path, result: Path, classes: int) -> int:
    """Return how many labels are not the nearest level, in boxes all over the volume."""
    import voxpipe as vp

    scan, labels = vp.Volume(source), vp.Volume(result)
    edges = np.append(0, (levels(classes)[1:] + levels(classes)[:-1]) / 2)
    random, wrong = np.random.default_rng(1), 0
    for _ in range(64):
        at = [int(random.integers(0, n - min(n, 100) + 1)) for n in scan.shape[1:]]
        box = (slice(None), *(slice(a, a + 100) for a in at))
        # Halfway between two levels either of them is right.
        values = np.asarray(scan[box]).astype(float)
        found = np.asarray(labels[box])
        upper, lower = (np.searchsorted(edges[1:], values, side) for side in ("right", "left"))
        wrong += int(np.count_nonzero((found != upper) & (found != lower)))
    return wrong


def print_beside(folder: Path, size: int, rounds: int, peers: list[str]) -> None:
    """Print medians of what each takes for one volume."""
    source = folder / "scan.nii"
    write_volume(source, (size,) * 3, "float32")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ("voxpipe", *peers)}
    for _ in range(rounds):
        for name, measured in rows.items():
            result = folder / f"{name}.nii"
            measured.append(child(name, source, result))
            difference = largest_difference(source, result)
            result.unlink()
            print(name, measured[-1], f"differs by {difference:.2g}", flush=True)
    own = {
        key: statistics.median(row[key] for row in rows["voxpipe"]) for key in rows["voxpipe"][0]
    }
    for name, measured in rows.items():
        median = {key: statistics.median(row[key] for row in measured) for key in measured[0]}
        print(
            f"{name:8} {median['seconds']:6.1f} s  peak {median['megabytes']:6.0f} MB "
            f"({median['imports']:.0f} of imports)  {median['seconds'] / own['seconds']:.2f} times "
            f"our time, {median['megabytes'] / own['megabytes']:.2f} times our memory"
        )


if __name__ == "__main__":
    main()
