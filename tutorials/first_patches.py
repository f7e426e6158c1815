"""From two files to augmented batches, without reading a voxel too many. Runs in seconds.

python tutorials/first_patches.py
"""

import tempfile
from pathlib import Path

import nibabel
import numpy as np

import voxpipe as vp
from voxpipe.core import IO_COUNTERS


def write_phantom(folder, number):
    """Write a bright ball in noise and its label, as a scanner and a reader would have."""
    rng = np.random.default_rng(number)
    place = np.stack(np.meshgrid(*[np.arange(80)] * 3, indexing="ij"), -1) - rng.uniform(30, 50, 3)
    ball = np.linalg.norm(place, axis=-1) < 20
    case = folder / f"case{number}"
    case.mkdir()
    affine = np.diag([0.9, 0.9, 1.5, 1.0])
    scan = (ball * 300 + rng.normal(0, 50, ball.shape)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(scan, affine), case / "ct.nii.gz")
    nibabel.save(nibabel.Nifti1Image(ball.astype(np.uint8), affine), case / "seg.nii.gz")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(3):
            write_phantom(folder, number)

        # 1. Describe. No file is opened here.
        pipe = (
            vp.list_cases(f"{folder}/*/", image="ct.nii.gz", label="seg.nii.gz")
            .shuffle()
            .open_volume()
            .lazy_patch(32, samples_per_volume=4)
            .shuffle()
            .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
            .normalize()
            .batch_patches(4)
        )
        assert IO_COUNTERS.reads == 0

        # 2. Look at what will happen. This reads headers.
        loader = vp.DataLoader2(pipe, [vp.Profile()], seed=7)
        print(loader.explain())

        # 3. Iterate. With workers: vp.MultiProcessingReadingService(num_workers=2).
        batches = list(loader)
        first = batches[0]
        print()
        print({key: tuple(first[key].shape) for key in ("image", "label")})
        print(
            "this patch:", first["meta"][0]["case"], first["meta"][0]["sources"]["image"]["region"]
        )

        # 4. Stop anywhere, go on anywhere.
        again = vp.DataLoader2(pipe, seed=7)
        iterator = iter(again)
        next(iterator)
        state = again.state_dict()
        resumed = vp.DataLoader2(pipe)
        resumed.load_state_dict(state)
        rest = list(resumed)
        assert all((a["image"] == b["image"]).all() for a, b in zip(rest, batches[1:], strict=True))
        print("resumed after one batch:", len(rest), "batches came, the same as without the stop")

        # 5. What did it cost?
        print()
        print(loader.profile())


if __name__ == "__main__":
    main()
