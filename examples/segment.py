"""Train, validate, predict and save, all with voxpipe: ``python examples/segment.py``.

The data are those of the demo: one real head (ICBM 152), scanned in eight ways, stored in three
formats, along other axes each, two of them held out. A small U-Net learns grey and white matter
from patches with nnU-Net's augmentation and deep supervision; then whole held-out scans are
predicted, compared with their truth and saved as NIfTI, which a viewer overlays on them. Needs the
extra ``demo``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "demo"))

from demo import progress_bar
from demo_data import CLASSES, WHITE, Case, prepare
from demo_plots import Viewable, save_preview
from demo_training import epochs, new_network, train

import voxpipe as vp

PATCH = (48, 48, 48)
BATCH, SAMPLES_PER_VOLUME = 4, 8
SCALES = (1, 0.5, 0.25)  # of the labels, for what the network gives at each of its levels
WORKERS, SEED = 2, 152


def main() -> int:
    """Run the example and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=4.0, help="of training")
    parser.add_argument("--output", type=Path, default=Path("segment-output"), metavar="DIR")
    parser.add_argument("--least-dice", type=float, default=0.0, help="white matter, or it fails")
    options = parser.parse_args()
    cases = prepare(options.output / "data")
    network = fit(training(cases), seconds=60 * options.minutes)
    scores = validate(network, [case for case in cases if case.held_out], options.output)
    return int(scores[WHITE] < options.least_dice)


def volumes(cases: Sequence[Case]) -> Any:
    """Return the chain of normalised volumes, all along the same axes."""
    table = [{"case": c.name, "image": str(c.image), "label": str(c.label)} for c in cases]
    return vp.from_cases(table).open_volume().orientation("RAS").normalize()


def training(cases: Sequence[Case]) -> Any:
    """Return the chain of batches to train on, as nnU-Net draws, augments and supervises them."""
    chosen = volumes([case for case in cases if not case.held_out]).shuffle()
    patches = chosen.lazy_patch(
        PATCH, samples_per_volume=SAMPLES_PER_VOLUME, mask="label", oversample=0.33
    )
    batches = vp.recipes.nnunet_augmentation(patches.shuffle_plans()).batch_patches(BATCH)
    return batches.deep_supervision(SCALES)


def fit(chain: Any, seconds: float) -> Any:
    """Return a network that was trained on a chain."""
    network = new_network(classes=1 + len(CLASSES), is_deep=True)
    service = vp.MultiProcessingReadingService(WORKERS, persistent_workers=True)
    with (
        vp.DataLoader2(chain, None, service, seed=SEED) as loader,
        progress_bar(seconds) as show,
    ):
        history = train(network, epochs(loader), seconds=seconds, on_batch=show, decay=True)
    print(f"Trained on {history.patches} patches, {history.waiting_share:.0%} of the time waiting.")
    return network


def validate(network: Any, cases: Sequence[Case], output: Path) -> dict[int, float]:
    """Predict whole scans, save and draw them, and return the mean Dice of each class."""
    chain = volumes(cases).lazy_patch(PATCH, sampling="grid", overlap=24)
    place = str(output / "predictions" / "{case}.nii.gz")
    predictions = vp.predict(network, chain, place, key="image", batch_size=4, overwrite=True)
    scores = {}
    for case in cases:
        truth, found = vp.Volume(str(case.label)), predictions[case.name]
        scores[case.name] = dice(found.numpy(), truth.numpy())
        text = ", ".join(f"{CLASSES[c]} {score:.3f}" for c, score in scores[case.name].items())
        print(f"{case.name}: Dice {text}: {output / 'predictions' / case.name}.nii.gz")
        scan = vp.Volume(str(case.image)).numpy()[0]
        shown = [Viewable(f"{case.name}\ntruth", scan, truth.numpy()[0])]
        shown += [Viewable(f"predicted\n{text}", scan, found.numpy()[0])]
        save_preview(output / f"{case.name}.png", shown, CLASSES)
    return {c: float(np.mean([one[c] for one in scores.values()])) for c in CLASSES}


def dice(found: Any, truth: Any) -> dict[int, float]:
    """Return the Dice of each class, over all voxels of a scan.

    Examples
    --------
    >>> dice(np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2]))
    {1: 0.6666666666666666, 2: 0.6666666666666666}
    """
    scores = {}
    for c in CLASSES:
        a, b = found == c, truth == c
        both = int(a.sum() + b.sum())
        scores[c] = 2 * int((a & b).sum()) / both if both else 1.0  # both say that there is none
    return scores


if __name__ == "__main__":
    sys.exit(main())
