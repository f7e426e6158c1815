"""The same chain in torch's own loaders, and in torchdata 0.9's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scenes import full_chain
from torch.utils.data import DataLoader

import voxpipe as vp


def identities(batches):
    return sorted(tuple(m["identity"]) for batch in batches for m in batch["meta"])


EVERY = [(case, n) for case in range(3) for n in range(4)]


def test_torch_dataloader_in_process(cases):
    """batch_size=None hands our batches through; epochs differ."""
    loader = DataLoader(full_chain(cases), batch_size=None)

    first, second = list(loader), list(loader)

    assert identities(first) == identities(second) == EVERY
    assert first[0]["image"].shape == (4, 1, 6, 6, 6)
    assert first[0]["meta"] != second[0]["meta"]


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torch_dataloader_with_workers(cases, context):
    """With a sharding_filter torch's workers divide the cases between them."""
    pipe = (
        vp.from_cases(cases)
        .shuffle()
        .sharding_filter()
        .open_volume()
        .lazy_patch(6, samples_per_volume=4)
        .augment(rotate=(-15, 15))
        .batch_patches(4)
    )
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context=context)

    assert identities(list(loader)) == EVERY


TORCHDATA_09 = """
import sys, warnings
sys.path.insert(0, {tests!r})
warnings.filterwarnings("ignore")
import torchdata
assert torchdata.__version__.startswith("0.9."), torchdata.__version__
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from pathlib import Path
import voxpipe as vp
from scenes import write_cases

if __name__ == "__main__":
    cases = write_cases(Path({folder!r}))
    pipe = (
        vp.from_cases(cases).shuffle().sharding_filter().open_volume()
        .lazy_patch(6, samples_per_volume=4).augment(rotate=(-15, 15)).batch_patches(4)
    )
    for service in (None, MultiProcessingReadingService(num_workers=2)):
        loader = DataLoader2(pipe, reading_service=service)
        seen = sorted(tuple(m["identity"]) for b in loader for m in b["meta"])
        loader.shutdown()
        assert seen == [(c, n) for c in range(3) for n in range(4)], seen
    print("both loaders saw every patch once")
"""


@pytest.mark.slow
def test_torchdata_09_dataloader2(tmp_path):
    """Torchdata 0.9.0's own DataLoader2 iterates the chain, alone and with workers."""
    site = tmp_path / "torchdata-0.9"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site)]
    subprocess.run([*install, "torchdata==0.9.0"], check=True, timeout=300, capture_output=True)
    script = tmp_path / "script.py"
    tests = str(Path(__file__).parent.parent)
    script.write_text(TORCHDATA_09.format(tests=tests, folder=str(tmp_path)))

    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert "every patch once" in done.stdout
