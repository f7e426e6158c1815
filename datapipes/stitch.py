"""The end of a chain of windows: volumes, blended out of core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import DTypeLike

from ..core import Sample
from ..core.errors import SampleError, VoxpipeError
from ..core.sample import META
from ..graph import Pipe
from ..spatial.lazy.lazy_patch import patches_of
from ..stitching.outputs import Activation
from ..stitching.stitched_volume import MEMORY_BYTES, Destination, HowToStitch, chain_key
from ..stitching.stitching import Stitching
from ..stitching.windows import WindowPlace
from ..volumes import Volume
from .datapipe import MainProcess, SameLength, chained_form, locate_errors


@chained_form("stitch")
class Stitch(MainProcess, SameLength):
    """Blend a model's outputs for windows; yield the volumes that each batch has finished.

    Windows are those of ``lazy_patch(sampling="grid", overlap=...)``, gathered by
    ``batch_patches()``. They may come in any order, and mix several volumes. Each batch yields one
    mapping, ``{case: Volume}``, empty until the last window of a volume has come. This pipe is not
    replicable: a loader runs it in its own process, after its workers.

    Parameters
    ----------
    key
        Key of the model's output in a batch: a tensor or array (B, C, I, J, K).
    destination
        As of ``predict()``: a path or URL with ``{case}`` in it, an array, None for volumes in
        memory, or ``f(case)`` that returns one of these.
    blend, sigma_scale, output, dtype, memory_bytes, overwrite, storage_options
        As of ``predict()``.
    like
        The volume of the sample whose grid counts; by default the first.
    run
        A word that is another for other weights. With it a run that was killed goes on: windows
        that were added are read, and not added again. Else it begins anew.

    Raises
    ------
    SampleError
        A batch has no such entry, or its patches are no windows. Two cases have one name. Windows
        of a volume are missing at the end.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.ones((4, 4, 4)), "case": "a"}]).open_volume()
    >>> pipe = pipe.lazy_patch(2, sampling="grid").batch_patches(4)
    >>> pipe = pipe.map(lambda image: 2 * image, "image", "twice")
    >>> for volumes in pipe.stitch("twice", output="logits"):
    ...     for case, volume in volumes.items():
    ...         print(case, volume.shape, volume.numpy().mean())
    a (1, 4, 4, 4) 2.0
    """

    def __init__(
        self,
        parent: Pipe,
        key: str,
        destination: Destination = None,
        *,
        blend: str = "gaussian",
        sigma_scale: float | Sequence[float] | None = None,
        output: str = "argmax",
        dtype: DTypeLike | None = None,
        like: str | None = None,
        run: str = "",
        memory_bytes: int = MEMORY_BYTES,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(parent)
        self.key, self.like = key, like
        options = dict(storage_options or {})
        # Here, as a loader puts another parent in front of its copy.
        chain = f"{chain_key(parent)} {key}" if run else ""
        how = (memory_bytes, overwrite, options, run, chain)
        with locate_errors(self):
            own = Activation(output, dtype)
            self.how = HowToStitch(destination, blend, own, *how, sigma_scale=sigma_scale)

    def __iter__(self) -> Iterator[dict[str, Volume]]:
        stitching = Stitching(self.how, self.like, origin=self.origin)
        try:
            for batch in self.parent:
                with locate_errors(self):
                    yield self._add(stitching, batch)
            with locate_errors(self):
                dict(stitching.finish())  # which refuses incomplete volumes
        finally:
            stitching.close()

    def in_words(self, sample: Sample) -> str:
        """Return its work on the windows of the case of a planned sample, in one line."""
        volumes = {key: patch.volume for key, patch in patches_of(sample).items()}
        try:
            place = WindowPlace.of(sample.provenance(), self.like, volumes)
            return f"stitch: {self.how.in_words(place)}"
        except VoxpipeError:  # raised when it runs
            return ""

    def _add(self, stitching: Stitching, batch: Any) -> dict[str, Volume]:
        if not isinstance(batch, Mapping) or self.key not in batch or META not in batch:
            have = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else "no mapping"
            msg = f"stitch() takes batches with {self.key!r} and {META!r}, got {have}"
            do = 'Write .batch_patches(n).map(model, "image", "prediction").stitch("prediction").'
            raise SampleError(msg, do=do)
        volumes: dict[str, Volume] = {}
        result = batch[self.key]
        result = result.detach().cpu().numpy() if hasattr(result, "detach") else result
        if len(result) != len(batch[META]):
            msg = f"{self.key!r} has {len(result)} rows for a batch of {len(batch[META])} windows"
            raise SampleError(msg, do="A model must give one for each, (B, C, I, J, K).")
        for meta, voxels in zip(batch[META], result, strict=True):
            volumes.update(stitching.add(meta, voxels))
        return volumes
