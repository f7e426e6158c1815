"""The box that an output grid is in its source: turned, not only shifted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .region import Region


@dataclass(frozen=True, eq=False)
class OrientedBox:
    """Where the voxels of an output grid come from, as a box with the plan's axes.

    A turned patch touches about half of the chunks that its axis-aligned bounds touch.
    What touches nothing of the box is not read.

    Examples
    --------
    >>> turned = np.array([[0.7, -0.7, 0, 8], [0.7, 0.7, 0, 0], [0, 0, 1, 0]])
    >>> box = OrientedBox(turned, (12, 12, 4), halo=(1.0, 1.0, 1.0))
    >>> box.touches(np.array([[0, 0, 0], [4, 4, 0]]), np.array([[2, 2, 4], [8, 8, 4]])).tolist()
    [False, True]
    """

    matrix: NDArray[np.float64]
    """3x4 float64, invertible: output index to source index, voxel centres."""
    shape: tuple[int, int, int]
    """Shape (I, J, K) of the output."""
    halo: tuple[float, float, float]
    """How far from a source coordinate its taps lie, per source axis, in voxels."""
    clamp: Region | None = None
    """Where coordinates outside are moved to the nearest face of this region, if they are."""

    def touches(self, start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of N half-open boxes may hold a tap; one that is left out holds none.

        Parameters
        ----------
        start, stop
            (N, 3): first voxel, and one past the last, of each box, in source indices.

        Notes
        -----
        The separating-axis test (Gottschalk et al., 1996) with the face normals of the
        oriented box; those of the boxes are their bounding region, which the caller has
        intersected already. Leaving out the edge normals keeps a few boxes too many.
        """
        turn = self.matrix[:, :3]
        half_output = (np.array(self.shape, dtype=np.float64) - 1) / 2
        centre = turn @ half_output + self.matrix[:, 3]
        back = np.linalg.inv(turn)
        if self.clamp is not None:
            # What lies before a face is read at the face: boxes there reach out to all of it.
            low, high = self._extent(centre)
            start = np.where(start <= self.clamp.start, np.minimum(start, low), start)
            stop = np.where(stop >= self.clamp.stop, np.maximum(stop, high), stop)
        middle = (start + stop - 1) / 2 - centre
        half = (stop - start - 1) / 2 + np.array(self.halo)
        reach = half_output + half @ np.abs(back).T
        # Rounding must not lose a chunk: a millionth of a voxel is far above it.
        inside: NDArray[np.bool_] = (np.abs(middle @ back.T) <= reach + 1e-6).all(axis=1)
        return inside

    def bounds(self) -> Region:
        """Return the axis-aligned box around it, halo included."""
        half_output = (np.array(self.shape, dtype=np.float64) - 1) / 2
        low, high = self._extent(self.matrix[:, :3] @ half_output + self.matrix[:, 3])
        return Region(tuple(map(int, low)), tuple(map(int, high)))

    def _extent(
        self, centre: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        half_output = (np.array(self.shape, dtype=np.float64) - 1) / 2
        reach = np.abs(self.matrix[:, :3]) @ half_output + np.array(self.halo)
        return np.floor(centre - reach), np.ceil(centre + reach) + 1
