"""What is negotiated where voxels are sampled anew: the reads of what is made in between."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from eager_chains import Eager

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.cost import measure_access
from voxpipe.volumes.choose_scheme import INTERMEDIATE

LARGE = 10**9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Two cases of an image and a label in chunks of 8^3."""
    folder = Path(tmp_path_factory.mktemp("anew"))
    rng = np.random.default_rng(0)
    for number in range(2):
        for key, dtype in (("image", np.int16), ("label", np.uint8)):
            voxels = rng.integers(0, 4, (32, 32, 32), dtype=dtype)
            zarr.create_array(folder / f"{key}{number}.zarr", data=voxels, chunks=(8, 8, 8))
    return folder


def patches(folder: Path) -> Any:
    cases = [{k: str(folder / f"{k}{n}.zarr") for k in ("image", "label")} for n in range(2)]
    return vp.from_cases(cases).open_volume().lazy_patch((8, 8, 8), samples_per_volume=4)


def loader_of(pipe: Any, *adapters: Any, memory: int = LARGE) -> Any:
    service = vp.MultiProcessingReadingService(0, memory_bytes=memory)
    return vp.DataLoader2(pipe.batch_patches(2), [*adapters], service, seed=3)


def test_a_key_that_does_not_fuse_is_listed_with_the_reason(folder: Path) -> None:
    """Beside those that do; the op and its line are named."""
    with loader_of(patches(folder).rotate(10).blur(1, keys="image").rotate(5)) as loader:
        text = loader.explain()
        assert set(loader.schemes()) == {"image", "label"}

    (told,) = [line for line in text.splitlines() if line.startswith("not fused: ")]
    assert told.startswith("not fused: image is sampled anew after blur at .blur(1")
    assert "test_schemes_sampled_anew.py" in told


def test_an_eager_chain_is_negotiated(folder: Path) -> None:
    """For what is read of the file: the box that all ops together need."""
    chain = patches(folder).rotate(10).flip(0).rotate(5)
    with loader_of(chain, Eager()) as loader:
        assert "was not negotiated" not in loader.explain()
        assert set(loader.schemes()) == {"image", "label"}

        told = loader.explain()

    assert "sampled anew after flush at .flush()" in told


def test_the_demand_is_what_is_read(folder: Path) -> None:
    """Voxels and chunks of the file, and the bytes of what is made between."""
    pipe = patches(folder).blur(1, keys="image").rotate(90).batch_patches(2)
    asked = measure_access(pipe, 0, 0)
    with vp.DataLoader2(pipe, seed=0) as loader:
        before = IO_COUNTERS.snapshot()
        list(loader)
        decoded = (IO_COUNTERS - before).bytes_decoded

    # A quarter turn of 8 voxels with a halo of 4 on either side, where the volume goes on.
    assert all(8 < n <= 16 for n in asked.demands["image"].support)
    assert asked.demands["label"].support == (8, 8, 8)
    assert asked.demands["image"].made_bytes == 8**3 * 4
    assert asked.demands["label"].made_bytes == 0
    sizes = {"image": 8**3 * 2, "label": 8**3}
    most = sum(8 * demand.chunks * sizes[key] for key, demand in asked.demands.items())
    assert 0 < decoded <= most


def test_what_is_made_between_counts_as_memory(folder: Path) -> None:
    """And is named where there is too little."""
    chain = (
        patches(folder)
        .blur(1, keys="image")
        .zoom(0.5)
        .zoom(0.2, keep_size=False, name="b")
        .crop_or_pad(8)
    )
    with loader_of(chain) as loader:
        scheme = loader.schemes()["image"]
    assert scheme.memory[INTERMEDIATE] > scheme.memory["batches"]

    with (
        loader_of(chain, memory=scheme.memory[INTERMEDIATE]) as loader,
        pytest.raises(MemoryError, match="most of it are made between"),
    ):
        loader.schemes()
