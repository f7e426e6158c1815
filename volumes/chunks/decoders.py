"""Decoders of chunks from outside: registered by the name of the codec, or found as entry points.

A decoder writes the voxels of a chunk where they are wanted: into the memory that a read returns,
if the chunk lies in it as a whole, without a copy in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from ..session import close_volumes

ENTRY_POINTS = "voxpipe.decoders"
"""Group of entry points: codec name = ``module:factory``."""


class Decoder(Protocol):
    """Makes voxels of the stored bytes of one chunk. Several threads may use it at once.

    It may have an attribute ``strided``; where that is true, ``out`` may have any strides, else
    it is in C order without gaps.

    Examples
    --------
    A codec that stores the low byte of each number as it is:

    >>> import numpy as np
    >>> class LowBytes:
    ...     strided = True
    ...
    ...     def decode_into(self, data, out):
    ...         out[...] = np.frombuffer(data, np.uint8).reshape(out.shape)
    >>> room = np.zeros((2, 3, 4), np.int16)
    >>> LowBytes().decode_into(bytes(range(6)), room[:, :, 1])
    >>> room[:, :, 1].tolist(), int(room.sum())
    ([[0, 1, 2], [3, 4, 5]], 15)
    """

    def decode_into(self, data: memoryview, out: NDArray[Any]) -> None:
        """Decode one chunk into ``out``, all of it, and nothing beside it.

        Parameters
        ----------
        data
            What the codec encoded the chunk to. Read-only.
        out
            The whole chunk, in the axes and the type in which it is stored. Holds anything.

        Raises
        ------
        Exception
            Any, where the bytes are not those of a whole chunk: told as ``CorruptVolume``, with
            the chunk and its file.
        """


Factory = Callable[[Mapping[str, Any]], Decoder]
"""Returns the decoder of an array; gets the configuration of the codec in its metadata."""

_FACTORIES: dict[str, Factory] = {}


def register_decoder(name: str, factory: Factory) -> None:
    """Let ``factory`` decode what zarr arrays call ``name``, before any decoder of voxpipe's own.

    Parameters
    ----------
    name
        Of the codec in ``zarr.json``, without the prefix ``numcodecs.``; the id of the compressor
        in ``.zarray``. It has to be the first that encodes numbers to bytes, or the first after
        ``bytes``; anywhere else zarr-python is asked.
    factory
        Called once for each opened array, with the codec's configuration. Define it at the top
        of a module: it is sent to workers that were not forked.

    Notes
    -----
    Packages declare an entry point in the group ``voxpipe.decoders`` instead.

    Examples
    --------
    >>> register_decoder("mine", lambda configuration: None)
    >>> decoder_factory("mine") is None, unregister_decoder("mine"), decoder_factory("mine")
    (False, None, None)
    """
    _FACTORIES[name] = factory
    close_volumes()  # what is open was opened without it


def unregister_decoder(name: str) -> None:
    """Forget a decoder; nothing happens if there is none of this name."""
    _FACTORIES.pop(name, None)
    close_volumes()


def decoder_factory(name: str, *, external: bool = True) -> Factory | None:
    """Return what makes decoders for a codec, if ``external`` of packages too; None if nobody."""
    if name in _FACTORIES or not external:
        return _FACTORIES.get(name)
    from importlib.metadata import entry_points

    return next((one.load() for one in entry_points(group=ENTRY_POINTS, name=name)), None)


def custom_decoders() -> tuple[tuple[str, Factory], ...]:
    """Return what was registered in this process, which a new worker does not have."""
    return tuple(_FACTORIES.items())
