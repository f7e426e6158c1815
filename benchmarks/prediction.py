"""Predict one volume with an identity network, beside MONAI's and TorchIO's sliding windows.

Each is a process of its own that reads a float32 ``.nii`` and writes one: seconds, and the peak of
its memory, imports included. All results are compared with the volume, voxel by voxel.
``--shape`` with ``--classes`` measures us alone: labels of a large uint8 volume into a zarr.

Run with an environment that has the peers: ``benchmarks/prediction.py --peers monai torchio``.
"""

from __future__ import annotations

import argparse
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


def identity(classes: int = 1):
    """Return a convolution of kernel size 1 that gives its input, in each channel."""
    import torch

    network = torch.nn.Conv3d(1, classes, 1, bias=False)
    torch.nn.init.ones_(network.weight)
    return network.eval()


def run_voxpipe(source: Path, result: Path, classes: int) -> None:
    """Predict out of core."""
    import voxpipe as vp

    output = "logits" if classes == 1 else "argmax"
    vp.predict(
        identity(classes),
        source,
        result,
        patch=PATCH,
        overlap=OVERLAP,
        output=output,
        progress=False,
    )


def run_monai(source: Path, result: Path, classes: int) -> None:
    """Predict by ``SlidingWindowInferer``, which holds volume, sums and weights."""
    import nibabel as nib
    import torch
    from monai.inferers import SlidingWindowInferer

    image = nib.load(source)
    volume = torch.from_numpy(np.asarray(image.dataobj, dtype=np.float32))[None, None]
    inferer = SlidingWindowInferer((PATCH,) * 3, 1, OVERLAP, "gaussian")
    with torch.inference_mode():
        output = inferer(volume, identity(classes))[0, 0].numpy()
    nib.save(nib.Nifti1Image(output, image.affine), result)


def run_torchio(source: Path, result: Path, classes: int) -> None:
    """Predict by ``GridSampler`` and ``GridAggregator``."""
    import torch
    import torchio as tio

    subject = tio.Subject(image=tio.ScalarImage(source))
    sampler = tio.GridSampler(subject, PATCH, round(PATCH * OVERLAP))
    aggregator = tio.GridAggregator(sampler, overlap_mode="hann")
    network = identity(classes)
    with torch.inference_mode():
        for batch in tio.SubjectsLoader(sampler, batch_size=1):
            aggregator.add_batch(network(batch["image"][tio.DATA].float()), batch[tio.LOCATION])
    tensor = aggregator.get_output_tensor()
    tio.ScalarImage(tensor=tensor, affine=subject.image.affine).save(result)


RUNS = {"voxpipe": run_voxpipe, "monai": run_monai, "torchio": run_torchio}
IMPORTS = {"voxpipe": "voxpipe.prediction.predict", "monai": "monai.inferers", "torchio": "torchio"}


def peak() -> float:
    """Return the most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, source: Path, result: Path, classes: int) -> None:
    """Run one of them in this process, and print what it took as JSON."""
    import importlib

    import torch  # noqa: F401  all of them import it

    importlib.import_module(IMPORTS[name])
    before, start = peak(), time.perf_counter()
    RUNS[name](source, result, classes)
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


def largest_difference(one: Path, other: Path) -> float:
    """Return by how much two volumes differ, looked at plane by plane."""
    import nibabel as nib

    first, second = (nib.load(path).dataobj for path in (one, other))
    count = first.shape[2]
    return max(
        float(np.abs(np.squeeze(first[..., k]) - np.squeeze(second[..., k])).max())
        for k in range(0, count, max(1, count // 32))
    )


def child(name: str, source: Path, result: Path, classes: int) -> dict[str, float]:
    """Measure one of them in a process of its own."""
    command = [sys.executable, __file__, "--run", name, str(source), str(result), str(classes)]
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
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        name, source, result, classes = arguments.run
        return measure(name, Path(source), Path(result), int(classes))
    with tempfile.TemporaryDirectory(prefix="voxpipe-prediction-") as folder:
        if arguments.shape:
            return print_large(Path(folder), tuple(arguments.shape), arguments.classes)
        return print_beside(Path(folder), arguments.size, arguments.rounds, arguments.peers)


def print_large(folder: Path, shape: tuple[int, ...], classes: int) -> None:
    """Print what one large volume takes."""
    write_volume(folder / "scan.nii", shape, "uint8")
    row = child("voxpipe", folder / "scan.nii", folder / "labels.nii.zarr", classes)
    size = "x".join(map(str, shape))
    print(
        f"{size} uint8, {classes} classes: {row['seconds']:.0f} s, peak {row['megabytes']:.0f} MB"
    )


def print_beside(folder: Path, size: int, rounds: int, peers: list[str]) -> None:
    """Print medians of what each takes for one volume."""
    source = folder / "scan.nii"
    write_volume(source, (size,) * 3, "float32")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ("voxpipe", *peers)}
    for _ in range(rounds):
        for name, measured in rows.items():
            result = folder / f"{name}.nii"
            measured.append(child(name, source, result, 1))
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
