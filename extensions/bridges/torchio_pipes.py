"""TorchIO: its transforms on samples, and samples as its subjects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from ...core import Sample
from ...core.errors import SampleError
from ...core.sample import META
from ...core.validate import as_keys
from ...datapipes.datapipe import chained_form, locate_errors
from ...datapipes.open_volume import OpenVolume
from ...graph import Pipe, walk
from .foreign_transforms import LastPipe, OnVoxels, Voxels, copy_of, in_batch, tensors_of


@chained_form("map_torchio")
class MapTorchIO(OnVoxels):
    """Run a transform of TorchIO on the voxels of each sample.

    The sample becomes a ``Subject``: labels are ``LabelMap``, other volumes ``ScalarImage``, each
    with the affine of the patch. Results of the transform keep their keys. TorchIO draws from
    torch's generator, which is seeded for each sample and restored. So batches are the same under
    any number of workers.

    Parameters
    ----------
    transform
        Any transform of TorchIO, also a ``Compose`` or ``OneOf``.
    name
        Of the stream that the seeds come from; by default ``map_torchio``.

    Raises
    ------
    SampleError
        The transform is not TorchIO's, the pipe comes before ``open_volume()`` or after
        ``batch_patches()``, or the sample has no volume.

    Examples
    --------
    >>> import numpy as np, torchio
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.arange(8.0).reshape(2, 2, 2)}]).open_volume()
    >>> sample = next(iter(pipe.map_torchio(torchio.Clamp(2, 5))))
    >>> sample["image"].flatten().tolist()
    [2.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0]
    """

    def __init__(self, parent: Pipe, transform: Any, *, name: str = "") -> None:
        import torchio

        with locate_errors(self):
            if not isinstance(transform, torchio.Transform):
                msg = f"map_torchio() takes a transform of TorchIO, got {type(transform).__name__}"
                raise SampleError(msg, do="Other functions: .realize().map(f).")
            super().__init__(parent, copy_of(transform), name)

    def run(self, sample: Sample, seed: int) -> Mapping[str, Any]:
        subject = subject_of(sample)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            result = self.transform(subject)
        return {key: _as_voxels(thing) for key, thing in result.items()}


def _as_voxels(thing: Any) -> Any:
    import torchio

    if not isinstance(thing, torchio.Image):
        return thing
    return Voxels(thing.data.detach(), np.asarray(thing.affine, np.float64))


def subject_of(sample: Sample) -> Any:
    """Return a realized sample as a ``Subject``; other values than volumes become attributes."""
    import torchio

    entries = dict(sample)
    for key, tensor, patch in tensors_of(sample):
        entries[key] = _image(tensor, str(patch.kind) == "label", patch.affine)
    if not any(isinstance(one, torchio.Image) for one in entries.values()):
        have = ", ".join(sample) or "nothing"
        msg = f"a Subject takes volumes, and the sample has {have}"
        raise SampleError(msg, do="Put it after open_volume().")
    return torchio.Subject(entries)


def _image(tensor: torch.Tensor, is_label: bool, affine: Any) -> Any:
    import torchio

    kind = torchio.LabelMap if is_label else torchio.ScalarImage
    return kind(tensor=tensor, affine=np.eye(4) if affine is None else np.asarray(affine))


@chained_form("to_subject")
class ToSubject(LastPipe):
    """Make TorchIO's ``Subject`` of each sample, or a list of them of each batch.

    In a batch, ``labels`` become ``LabelMap``; a ``Subject`` holds its sample's provenance as
    ``meta``. Tensors share the memory of the batch. This pipe is not replicable: a loader runs it
    in its own process, after its workers.

    Parameters
    ----------
    labels
        Keys of labels in a batch; by default those of ``open_volume()``. A sample knows its own.

    Raises
    ------
    SampleError
        There is no volume, or no batch with ``meta``.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.zeros((4, 4, 4), np.float32), "label": np.zeros((4, 4, 4), np.uint8)}
    >>> pipe = from_cases([case] * 2).open_volume()
    >>> (first, second) = next(iter(pipe.batch_patches(2).to_subject()))
    >>> first["label"].__class__.__name__, first["image"].shape
    ('LabelMap', (1, 4, 4, 4))
    """

    def __init__(self, parent: Pipe, labels: str | Collection[str] | None = None) -> None:
        super().__init__(parent)
        openers = [pipe for pipe in walk(parent) if isinstance(pipe, OpenVolume)]
        names = [key for pipe in openers for key in pipe.labels]
        self.labels = as_keys("to_subject(labels=)", names if labels is None else labels)

    def make(self, item: Any) -> Any:
        if isinstance(item, Sample):
            return subject_of(item)
        import torchio

        subjects, parts = [], in_batch(self, item)
        for number, meta in enumerate(item[META]):
            entries = {key: things[number] for key, things in item.items()}
            for key, tensors in parts.items():
                affine = meta["sources"][key].get("affine")
                entries[key] = _image(tensors[number], key in self.labels, affine)
            subjects.append(torchio.Subject(entries))
        return subjects
