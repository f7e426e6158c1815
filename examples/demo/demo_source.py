"""The demo's chain: what a user of voxpipe would write for this task, from disk or a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from demo import Source
from demo_data import Case
from demo_plots import Viewable, augmentation_in_words

from voxpipe.adapters import Profile, Timeout
from voxpipe.core.errors import MissingDependency, VolumeError
from voxpipe.dataloader2 import DataLoader2
from voxpipe.datapipes.iter import from_cases
from voxpipe.reading_services import MultiProcessingReadingService
from voxpipe.storage.location import file_system, is_url, public_name

# Three levels of the network halve a side twice. Larger patches give too few steps in two
# minutes on two cores.
PATCH = (48, 48, 48)
BATCH = 4
SAMPLES_PER_VOLUME = 8
WORKERS = 2
SEED = 152
# A batch of the demo takes a tenth of a second; this is for a machine that is busy elsewhere.
PATIENCE = 120.0


def stream(cases: Sequence[Case], say: Callable[[str], object] = print) -> Source:
    """Return the batches of the demo, and say what will be done for them."""
    training = [case for case in cases if not case.held_out]
    service = MultiProcessingReadingService(WORKERS, persistent_workers=True)
    profile = Profile()
    adapters = [Timeout(item=PATIENCE), profile]
    loader = DataLoader2(training_chain(training), adapters, service, seed=SEED)
    testing = DataLoader2(
        held_out_chain([case for case in cases if case.held_out]), None, service, seed=SEED
    )
    say(loader.explain())

    def close() -> None:
        loader.shutdown()
        testing.shutdown()

    return Source(
        training=loader,
        held_out=testing,
        preview=lambda: preview(training),
        report=profile.table,
        close=close,
    )


def training_chain(cases: Sequence[Case]) -> Any:
    """Return random patches, turned, magnified and mirrored, in batches."""
    return augmented(patches(cases).shuffle()).normalize().batch_patches(BATCH, drop_last=True)


def held_out_chain(cases: Sequence[Case]) -> Any:
    """Return patches side by side over whole volumes, as they are, in batches."""
    volumes = from_cases(as_mappings(cases)).open_volume()
    return volumes.lazy_patch(PATCH, sampling="grid").normalize().batch_patches(BATCH)


def patches(cases: Sequence[Case]) -> Any:
    """Return random patches."""
    volumes = from_cases(as_mappings(cases)).shuffle().open_volume()
    return volumes.lazy_patch(PATCH, samples_per_volume=SAMPLES_PER_VOLUME)


def augmented(pipe: Any) -> Any:
    """Return ``pipe`` with the demo's augmentation."""
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)


def as_mappings(cases: Sequence[Case]) -> list[dict[str, str]]:
    """Return the cases as ``from_cases`` takes them."""
    return [
        {"case": case.name, "image": str(case.image), "label": str(case.label)} for case in cases
    ]


def preview(cases: Sequence[Case]) -> list[Viewable]:
    """Return one patch before and after augmentation: same place, same seed; with its draws."""
    shown = []
    for chain in (patches(cases[:1]), augmented(patches(cases[:1]))):
        with DataLoader2(chain.normalize().batch_patches(1), seed=SEED) as loader:
            batch = next(iter(loader))
        told = batch["meta"][0]
        start = ", ".join(map(str, told["draws"]["lazy_patch"]["start"]))
        drawn = told["draws"].get("augment")
        done = f"from voxel {start}" if drawn is None else augmentation_in_words(drawn)
        title = f"{told['case']}, {'augmented' if drawn else 'as stored'}\n{done}"
        shown.append(Viewable(title, batch["image"][0, 0].numpy(), batch["label"][0, 0].numpy()))
    return shown


def in_bucket(cases: Sequence[Case], url: str) -> list[Case]:
    """Copy the files of all cases below ``url`` and return the cases there.

    Parameters
    ----------
    cases
        On the local disk.
    url
        Of a folder in a bucket; the bucket is made if it can be.

    Raises
    ------
    VolumeError
        ``url`` is no URL, or nothing can be written there.
    """
    if not is_url(url):
        raise VolumeError(f"{url} is no URL.", do="Name a bucket, e.g. --bucket s3://name/demo.")
    system, root = file_system(url, {})
    root = root.rstrip("/")
    try:
        system.makedirs(root.partition("/")[0], exist_ok=True)
        moved = []
        for case in cases:
            there: dict[str, str] = {}
            for key in ("image", "label"):
                source = Path(getattr(case, key))
                inside = f"{case.name}/{source.name}"
                for file in _files(source):
                    target = f"{root}/{case.name}/{file.relative_to(source.parent).as_posix()}"
                    system.pipe_file(target, file.read_bytes())
                there[key] = f"{url.rstrip('/')}/{inside}"
            moved.append(replace(case, image=there["image"], label=there["label"]))
    except ImportError as error:
        raise MissingDependency(
            f"writing to {public_name(url)} needs a package that is not installed: {error}.",
            do="Install the file system package that fsspec asks for.",
        ) from error
    except OSError as error:
        # Not chained: the text of the original may hold a key.
        raise VolumeError(
            f"writing to {public_name(url)} failed: {type(error).__name__}.",
            do="Check the bucket, the credentials and AWS_ENDPOINT_URL.",
        ) from None
    return moved


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return sorted(file for file in source.rglob("*") if file.is_file())
