"""Keys become channels of one, and channels become keys: nothing is read, and nothing is copied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..core import Sample
from ..core.errors import PatchSizeError, SampleError
from ..core.validate import as_keys
from ..graph import Pipe
from ..intensity import SelectChannels, ValueStep
from ..spatial import LazyPatch
from ..spatial.lazy.stack import stack_patches, unstack_patch
from .datapipe import PerItem, chained_form, lazy_patches, stream_name


class RegroupKeys(PerItem):
    """A pipe that puts other keys in the place of some."""

    is_drawn = False  # the streams of its steps are names of places: a channel is selected

    def new_keys(self, key: str) -> tuple[str, ...]:
        """Return the new keys of a key."""
        raise NotImplementedError

    def _with(
        self, sample: Sample, old: Collection[str], where: str, new: dict[str, LazyPatch]
    ) -> Sample:
        """Return the sample with ``new`` in the place of ``where``, and without ``old`` keys."""
        clashes = [key for key in new if key in sample and key not in old]
        if clashes:
            msg = f"{type(self).form_name}() makes {clashes[0]!r}, which the sample has already"
            raise SampleError(msg, do="Give another name.").at(self.origin, sample.case)
        data: dict[str, Any] = {}
        for key, thing in sample.items():
            if key == where:
                data.update(new)
            elif key not in old:
                data[key] = thing
        return sample.replace(data=data)


@chained_form("stack")
class Stack(RegroupKeys):
    """Make several volumes the channels of one, in one slot of the batch.

    The voxels of each are read and interpolated straight into their channels; no file is read
    twice, and nothing is copied together. Files that always belong together need no pipe: a case
    ``{"image": ["t1.nii.gz", "t2.nii.gz"]}`` is opened as a volume of their channels.

    The type of the result is the one that holds all of theirs (``np.result_type``): float32 for
    volumes that are interpolated. A label among intensities is sampled as a label.

    Later value pipes use all channels together: ``normalize()`` has one mean for all of them.
    Before ``stack`` it has one for each volume. Spatial pipes fuse across ``stack``.

    Parameters
    ----------
    keys
        Volumes, in the order of their channels. They leave the sample.
    name
        The key that they become, at the place of the first of them.

    Raises
    ------
    GridMismatch
        When patches are made: the grids of the volumes differ, and by how much.
    SampleError
        A key is missing, or the name is taken.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"t1": np.zeros((4, 5, 6)), "t2": np.ones((4, 5, 6))}
    >>> pipe = from_cases([case]).open_volume().center_crop(2).stack(("t1", "t2"), "image")
    >>> sample = next(iter(pipe))
    >>> list(sample), sample["image"].shape
    (['image'], (2, 2, 2, 2))
    """

    def __init__(self, parent: Pipe, keys: Sequence[str], name: str = "image") -> None:
        super().__init__(parent)
        self.keys = _each_once("stack(keys=)", keys)
        (self.name,) = as_keys("stack(name=)", [name])

    def new_keys(self, key: str) -> tuple[str, ...]:
        return (self.name,) if key in self.keys else (key,)

    def apply(self, item: Any) -> Sample:
        lazy = lazy_patches(self, item, self.keys)
        one = stack_patches([lazy[key] for key in self.keys], f"stack at {self.origin}")
        first = next(key for key in item if key in self.keys)
        return self._with(item, self.keys, first, {self.name: one})


@chained_form("unstack")
class Unstack(RegroupKeys):
    """Make each channel of a volume a volume of its own.

    A read of a chunked or mapped file covers only that channel; of a list of files, only its file.

    Parameters
    ----------
    key
        The volume, which leaves the sample.
    names
        A key for each channel.

    Raises
    ------
    PatchSizeError
        There are more channels than names, or fewer.
    SampleError
        The key is missing, or a name is taken.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((2, 4, 5, 6))}]).open_volume()
    >>> sample = next(iter(pipe.unstack("image", ("t1", "t2"))))
    >>> {key: patch.shape for key, patch in sample.items()}
    {'t1': (1, 4, 5, 6), 't2': (1, 4, 5, 6)}
    """

    def __init__(self, parent: Pipe, key: str, names: Sequence[str]) -> None:
        super().__init__(parent)
        self.key = key
        self.names = _each_once("unstack(names=)", names)
        self.stream_names = tuple(stream_name(parent, "", f"unstack {name}") for name in self.names)

    def new_keys(self, key: str) -> tuple[str, ...]:
        return self.names if key == self.key else (key,)

    def apply(self, item: Any) -> Sample:
        patch = lazy_patches(self, item, [self.key])[self.key]
        count = patch.shape[0]
        if count != len(self.names):
            msg = f"{self.key!r} has {count} channels, and unstack() names {len(self.names)}"
            raise PatchSizeError(msg, do="Give a name for each.").at(self.origin, item.case)
        streams = enumerate(self.stream_names)
        steps = [ValueStep(SelectChannels(n), stream, self.origin) for n, stream in streams]
        apart = unstack_patch(patch, steps.__getitem__)
        return self._with(item, [self.key], self.key, dict(zip(self.names, apart, strict=True)))


def _each_once(argument: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return one name or more, of which none comes twice; a word is no list of names."""
    if isinstance(names, str):
        msg = f"{argument} takes a list of names, got {names!r}; did you mean [{names!r}]?"
        raise ValueError(msg)
    keys = tuple(as_keys(argument, names))
    if not keys or len(set(keys)) < len(keys):
        raise ValueError(f"{argument} takes one name or more, each once, got {names!r}")
    return keys
