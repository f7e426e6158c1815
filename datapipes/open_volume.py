"""Turn paths into lazy volumes. No file is touched."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..batching.collate import LikelyLabels
from ..core import CallSite, Sample
from ..core.call_site import WarnOnce, is_looking_ahead, shorten
from ..core.errors import (
    LikelyLabel,
    LikelyMistake,
    SampleError,
    VolumeReadError,
    add_location,
)
from ..core.lru_cache import cached_property
from ..core.redact import RedactedDict, public_text, server_of
from ..core.suggest import colours_hint, few_names, looks_like_label
from ..core.validate import as_choice, as_keys, is_empty_cell
from ..graph import Pipe, Traits, parents_of, traits_of, walk
from ..spatial import INTENSITY, LABEL, LazyPatch, Policy, TransformChain
from ..spatial.lazy.stack import sampled_as_before
from ..spatial.lazy.virtual_volume import in_memory, opened_again, realized_patch
from ..storage.file_reader import IO_MODES
from ..volumes import AxisMap, Volume, custom_backends
from ..volumes.array_source import says_label
from ..volumes.source import USUAL_OPTIONS
from ..volumes.stack_source import source_by_package
from .case_names import CASE, name_of
from .cases import FromCases, ListCases
from .datapipe import SameLength, chained_form, wrong_item
from .epoch import SeedStamper, warn_of_generators
from .item_numbers import EachItem, NumberedItems
from .op_pipe import (
    check_policies,
    nearest_key,
    overriding_fields,
    refuse_unknown_arguments,
    unknown_key,
)
from .options_by_key import BY_KEY, keys_of_places, named_by_key, options_of, placed_as, placed_by


def likely_labels(origin: CallSite, parent: Pipe) -> LikelyLabels | None:
    """Return a search for labels among images; None if the user has named the labels."""
    opening = [pipe for pipe in walk(parent) if traits_of(pipe).opens]
    is_open = any(getattr(pipe, "guesses", False) for pipe in opening)
    return LikelyLabels(origin, _first_data(parent)) if is_open else None


def _first_data(pipe: Pipe) -> str:
    """Return a line with the data that a chain begins with; another data set has another line."""
    sources = (one for one in walk(pipe) if hasattr(type(one), "data_texts"))
    texts = (one.settings() or next(one.data_texts(), "") for one in sources)
    text = public_text(str(next(texts, "")))[:_LONGEST_DATA]
    return f"  in {text}\n" if text else ""


_ORIGIN = ", or to the function that lists the cases, if it takes this argument."
# Letters of the data that a warning names.
_LONGEST_DATA = 200
BucketOptions = dict[str, RedactedDict]  # storage options by scheme and bucket (``s3://scans``)


def inherited_options(parent: Pipe) -> BucketOptions:
    """Return the storage options of the listings upstream, by the buckets that they found."""
    # Ask once their cases have come: else this lists the storage.
    pipes = [pipe for pipe in walk(parent) if isinstance(pipe, ListCases) and pipe.storage_options]
    lists = {server_of(p): pipe for pipe in pipes for case in pipe.listing() for p in case.values()}
    return {origin: pipe.storage_options for origin, pipe in lists.items() if origin}


def options_for(source: Any, by_server: BucketOptions) -> RedactedDict | None:
    """Return the options for a source; None unless it is in one of the buckets."""
    # A URL of another server gets none: credentials are sent only to their own server.
    is_place = isinstance(source, (str, os.PathLike))
    return by_server.get(server_of(os.fspath(source))) if is_place else None


LABELS = ("label", "labels", "mask", "masks", "seg", "segmentation")
"""Keys that hold labels, by default, of ``open_volume(labels=...)``."""
STORED_SUFFIX = "_stored"  # appended to a key for the mask of its missing sections
# A tap in a missing section spoils a value by its weight: so the mask is interpolated as the image.
SHARE = Policy("linear", "constant", 0.0, np.dtype(np.float32))
"""How the mask of an intensity is sampled: the share of a value that is stored."""


_ARGUMENTS = ("labels", "keys", "policies", "override", "axis_map", "channels", "storage_options")


@chained_form("open_volume")
class OpenVolume(SeedStamper, SameLength):
    """Make a lazy volume of every path, URL, array or store in a sample.

    The parent may yield samples of :func:`list_cases` or :func:`from_cases`. Mappings of key to
    path from a torch pipe are taken, too; their position then is their identity.

    Parameters
    ----------
    labels
        Keys that hold labels: sampled by nearest neighbour, their type kept, constant 0
        outside. All other volumes are intensities: linear, border outside. Without the
        argument, a key that looks like a label but is none of these causes a
        ``LikelyLabel`` warning. Examples are gt, nuclei, cells, target and instances.
    keys
        Keys to open; by default every value that is a path, an array or a store.
    policies
        ``Policy`` by key, if it differs from the kind's own; or single fields of one,
        ``{"image": {"mode": "nearest"}}``, and the others are the kind's own.
    override
        Whether these policies override ``mode=``, ``padding=``, ``fill=``, ``dtype=`` and
        ``antialias=`` of later pipes: all of them by a ``Policy``, else the given fields. By
        default such a pipe is a conflict.
    axis_map
        ``AxisMap`` for missing, doubled or shifted sections, by key or of all volumes, whose
        labels are then filled with 0. Where cases differ, give each
        ``Volume(path).with_axis_map(...)`` instead of a path. With ``policy="mask"`` the sample
        also gets ``image_stored``, in float32: the stored share of each value of ``image``. It
        is 0 where all is filled in, or outside. For a label volume it is 0 or 1, in uint8.
    channels
        Names in the file, ``["DAPI"]``, or numbers from 0; no others are read. One
        value is for all volumes that are no labels; a mapping is by key.
    storage_options
        For fsspec, where paths are URLs. They never appear in messages or states. By default
        those of ``list_cases()``, for URLs in the bucket that it listed. They are by key where
        each value is a mapping, or None.
    io
        How bare voxels of local files are read: ``"mmap"``, ``"pread"`` or ``"auto"``. The last
        maps files on disks of this machine, and reads those on network file systems. The batches
        are the same.
    **reader_kwargs
        For :class:`Volume`: ``reader=``, ``affine=`` in place of the stored one, ``level=1`` for
        a pyramid, ``axes="zyx"`` for an array that does not name its axes, ``dataset="ct"`` of an
        HDF5 file, ``series=``, ``follow="anywhere"`` for headers and links that lead out of their
        folders, and arguments of your own backend or reader. These and ``io`` are one value for all
        volumes, or a mapping by key: ``affine={"label": matrix}``. A label without a voxel size
        takes the place of its image by ``affine={"label": "image"}``; both need one shape and
        one order of axes. A Volume takes ``affine=``, too, unless it has one of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> sample = next(iter(from_cases([{"image": np.zeros((4, 5, 6))}]).open_volume()))
    >>> sample["image"].shape
    (1, 4, 5, 6)
    """

    traits: ClassVar[Any] = Traits(per_item=True, opens=True)

    def __init__(
        self,
        parent: Pipe,
        *,
        labels: Collection[str] = LABELS,
        keys: Collection[str] | None = None,
        policies: Mapping[str, Policy | Mapping[str, Any]] | None = None,
        override: bool = False,
        axis_map: AxisMap | Mapping[str, AxisMap] | None = None,
        channels: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        io: str | Mapping[str, str] = "auto",
        **reader_kwargs: Any,
    ) -> None:
        super().__init__()
        self.parent = parent
        if not (custom_backends() or "reader" in reader_kwargs):  # with unknown options
            own = (*_ARGUMENTS, *BY_KEY)  # which have io=
            refuse_unknown_arguments("open_volume", reader_kwargs, own, only_misspelt=True)
        self.axis_map = _check_axis_map(axis_map)
        self.channels = _check_channels(channels)
        self.labels = tuple(sorted(as_keys("labels", labels)))
        self.guesses = labels is LABELS
        """Whether keys that the user has not named are taken for intensities."""
        self._once = WarnOnce()
        self._has_looked = False  # whether the first arrays were checked for planes of colours
        self._options = {**reader_kwargs, "io": io}
        self._by_key = named_by_key(self._options)  # more are found once the keys are known
        # Keys of volumes, and keys of other data, with the first case whose value is empty.
        self._known_keys, self._known_empty = set[str](), dict[str, str]()
        self._options_by_key: dict[str, dict[str, Any]] = {}  # options of each key
        # Keys that were named by the user, by argument; the first sample must have them.
        names: dict[str, tuple[str, ...]] = {
            # The usual names may be absent from the sample, as in LikelyLabel's advice.
            "labels": tuple(key for key in self.labels if key not in LABELS),
            "policies": tuple(policies or ()),
            "axis_map": tuple(axis_map) if isinstance(axis_map, Mapping) else (),
            "channels": tuple(channels) if isinstance(channels, Mapping) else (),
            **self._by_key,
        }
        self._new_names = self._names = {name: keys for name, keys in names.items() if keys}
        self.keys = None if keys is None else as_keys("open_volume(keys=)", keys)
        if self.keys == ():
            msg = f"open_volume(keys=) takes one key or more, got {keys!r}; leave it out for all"
            raise ValueError(msg)
        # Volumes of arrays: one per array for all epochs, so that each travels to workers once.
        self._of_objects: dict[tuple[int, str, str], tuple[Any, Volume]] = {}
        self._objects_last = _repeats_objects(parent)
        self.policies = check_policies(policies, self.origin)
        # Fields of policies that override later pipes, by key.
        self.overriding = overriding_fields(self.policies, override, self.labels, self.origin)
        self.storage_options = None if storage_options is None else RedactedDict(storage_options)
        self._by_server: BucketOptions | None = None
        for mode in io.values() if isinstance(io, Mapping) else (io,):
            as_choice("io", mode, IO_MODES)
        self.io, self.reader_kwargs = io, reader_kwargs
        self._placed_as = keys_of_places(reader_kwargs.get("affine"))
        warn_of_generators(self, reader_kwargs.get("reader"))

    def __iter__(self) -> Iterator[Sample]:
        this_pass = _Pass(self)
        for position, item in enumerate(self.parent):
            yield this_pass.open_item(item, position)

    def by_number(self, items: Any) -> Any:
        return None if items is None else _OpenItems(items, self)

    def _sample(self, item: Any, position: int, seed: int, epoch: int) -> Sample:
        if not isinstance(item, Mapping):
            do = 'Give mappings such as {"image": path, "label": path}, e.g. by .map().'
            raise wrong_item(self, item, "a mapping of key to path", do)
        data = {k: v for k, v in item.items() if k != CASE}
        name = str(item[CASE]) if CASE in item else name_of(data, position)
        return Sample(data, case=name, identity=self._identity(position), seed=seed, epoch=epoch)

    def _open(self, sample: Sample, by: str, *, renews: bool) -> Sample:
        keys, entries = self.keys, [*sample.items()] if self.keys is None else []
        if keys is None:
            keys = tuple(key for key, value in entries if is_volume_source(value, key))
        try:
            for key, value in entries:
                if key in keys or key in self._known_empty:
                    continue
                names = () if value is not None else self._names.values()
                if not any(key in one for one in names) and _has_empty_part(value):
                    self._refuse_empty(key, sample)
            has_lists = any(isinstance(value, (list, tuple)) for value in sample.values())
            if has_lists or not keys or not sample.keys() >= {*keys}:
                self._refuse_unusable(sample, keys)
            if self._names or not self._known_keys.issuperset(keys):
                self._refuse_unknown(sample, keys)
            volumes = {key: self._show(key, sample) for key in keys}
            for key in self._placed_as.keys() & volumes.keys():
                volumes[key] = placed_as(key, self._placed_as[key], volumes)
            volumes = {k: each.opened_anew(by, renews=renews) for k, each in volumes.items()}
            if not self._has_looked:
                self._warn_of_colours(sample, volumes)
            usual = {key: LABEL if v.kind == "label" else INTENSITY for key, v in volumes.items()}
            # A path alone has no axis map.
            own = [k for k in keys if self.axis_map is not None or type(sample[k]) is not str]
            for key, mask in [(key, volumes[key].stored_mask()) for key in own]:
                if mask is None:
                    continue
                name = f"{key}{STORED_SUFFIX}"
                if name in sample:
                    msg = f"the mask of {key!r} is called {name!r}, which the sample has already"
                    raise SampleError(msg, do="Call that volume otherwise.")
                volumes[name] = mask
                usual[name] = LABEL if volumes[key].kind == "label" else SHARE
            for key in self.policies.keys() & usual.keys():
                own_policy = self.policies[key]
                is_whole = isinstance(own_policy, Policy)
                usual[key] = own_policy if is_whole else replace(usual[key], **own_policy)
        except Exception as error:
            raise add_location(error, self.origin, sample.case)  # noqa: B904  the very same error
        pending = TransformChain(volumes, sample.seed, sample.epoch, sample.identity)
        patches: dict[str, LazyPatch] = {}
        for key, volume in volumes.items():
            fields = self.overriding.get(key, ())
            patches[key] = LazyPatch(volume, pending, usual[key], fixed_fields=fields)
        result = sample.with_identity(patches, sample.identity)
        return sampled_as_before(result, self.policies) if sample.patches else result

    def _refuse_unusable(self, sample: Sample, keys: Sequence[str]) -> None:
        """Raise where a key is missing, or is a list in a list, or there is none."""
        missing = [key for key in keys if key not in sample]
        if missing:
            have = ", ".join(map(repr, sample)) or "nothing"
            msg = f"keys= names {missing[0]!r}, but this sample has {have}"
            raise SampleError(msg, do=nearest_key("keys", missing[0], sample))
        for key in sample if self.keys is None else keys:
            value = sample[key]
            # Only lists of volumes, and not of numbers or words.
            parts = value if isinstance(value, (list, tuple)) else ()
            if any(isinstance(one, (list, tuple)) and is_volume_source(one) for one in parts):
                msg = f"{key!r} is a list in a list, {shorten(value)}"
                raise SampleError(msg, do="Write one list: its volumes are the channels of one.")
        if not keys:
            entries = ", ".join(f"{k}={shorten(v)}" for k, v in sample.items()) or "nothing"
            msg = f"there is no volume to open among {entries}"
            do = "A path has a slash or a suffix, an array two axes or more; else name it in keys=."
            raise SampleError(msg, do=do)

    def _refuse_empty(self, key: str, sample: Sample) -> None:
        """Raise where a value of a sample is empty, but a volume in other cases or by its key."""
        lists = [one.cases for one in walk(self.parent) if isinstance(one, FromCases)]
        cases = (case if isinstance(case, Mapping) else {} for cases in lists for case in cases)
        values = [case.get(key, sample) for case in cases]
        others = [one for one in values if one is not sample and not _has_empty_part(one)]
        is_volume = key in self._known_keys or any(map(is_volume_source, others))
        by_name = sample[key] is not None and _is_usual(key)
        if is_volume or (not others and by_name):
            rows = few_names(n for n, value in enumerate(values) if _has_empty_part(value))
            where = f", in row {rows} of the cases, counted from 0" if rows else ""
            raise _empty(key, f", {shorten(sample[key])}{where}")
        self._known_empty[key] = sample.case

    def _refuse_unknown(self, sample: Sample, keys: Sequence[str]) -> None:
        """Raise where an argument names a key that is no volume, or that the first sample lacks."""
        # An error of this sample is raised again for the next one: nothing is noted before.
        new, names, by_key = self._new_names, self._names, self._by_key
        if is_new := not self._known_keys.issuperset(keys):
            for key in self._known_empty.keys() & {*keys}:
                raise _empty(key, f" in case {self._known_empty[key]}, and a volume here")
            options = {**self._options, "storage_options": self.storage_options}
            by_key = named_by_key(options, self._known_keys | {*keys})
            new = {**new, **{name: by_key[name] for name in by_key.keys() - self._by_key}}
            names = names | new
            if all(isinstance(sample[key], Volume) for key in keys):
                for argument in self._options.keys() - {*by_key, "affine", "io"}:
                    msg = f"open_volume({argument}=) has no effect: {keys[0]!r} is a Volume already"
                    raise SampleError(msg, do=f"Give {argument}= to Volume(){_ORIGIN}")
        for argument, its_keys in names.items():
            for key in its_keys:
                if key not in keys and (argument in new or sample.get(key) is not None):
                    raise unknown_key(argument, key, keys).at(self.origin, sample.case)
        self._new_names, self._names, self._by_key = {}, names, by_key
        if is_new:
            self._known_keys.update(keys)
            self._options_by_key.clear()

    def _show(self, key: str, sample: Sample) -> Volume:
        """Return the volume of a key, seen through its axis map."""
        source = sample[key]
        try:
            again = None if isinstance(source, str) else self._again(key, sample)
            volume = again or self._volume(key, source)
        except VolumeReadError as error:
            raise error.at(key=key)  # noqa: B904  the very same error
        if self.axis_map is None and self.channels is None:
            return volume
        for axis_map in self._maps_of(key, volume.kind):
            volume = volume.with_axis_map(axis_map)
        return volume

    def _maps_of(self, key: str, kind: str) -> Iterator[AxisMap]:
        """Yield the axis map of a volume, and that of its channels."""
        axis_map, channels, is_label = self.axis_map, self.channels, kind == "label"
        if isinstance(axis_map, Mapping):
            axis_map = axis_map.get(key)
        elif axis_map is not None and is_label:
            # Given for all of them: the fill is one for intensities, a missing label is background.
            axis_map = axis_map.with_fill(0)
        if isinstance(channels, Mapping):
            channels = channels.get(key)
        elif is_label:
            channels = None
        yield from (one for one in (axis_map, channels) if one is not None)

    def _again(self, key: str, sample: Sample) -> Volume | None:
        """Return the volume of voxels that ``realize()`` made; None where something else is."""
        if not in_memory(sample[key]):
            return None
        options = options_of(key, self.reader_kwargs)
        if "affine" in options or (patch := realized_patch(sample, key)) is None:
            return None
        guess = "label" if key in self.labels else "intensity"
        kind = patch.kind if self.guesses and key in sample.patches else guess
        options["storage_options"] = self.storage_options
        return opened_again(sample[key], patch, kind, options)

    def _volume(self, key: str, source: Any) -> Volume:
        if isinstance(source, Volume):
            for name, its_keys in self._by_key.items():
                if key in its_keys and name != "affine":  # options and all
                    msg = f"{name}= names {key!r}, which is a Volume already"
                    raise SampleError(msg, do=f"Give {name}= to Volume(){_ORIGIN}")
            # ``labels=`` is for sources that are opened here, and not for a Volume.
            likely = looks_like_label(key) if self.guesses else key in self.labels
            if likely and source.kind != "label":
                is_so, write = "is a Volume of an intensity", 'Volume(..., kind="label")'
                self._warn_of_label(key, is_so, write)
            own = options_of(key, self._options) if "affine" in self._options else {}
            return placed_by(key, own["affine"], source) if "affine" in own else source
        is_label = key in self.labels
        if not is_label and (not isinstance(source, str) or "/labels/" in source):
            is_label = says_label(source)
        kind = "label" if is_label else "intensity"
        is_image = isinstance(self.channels, Mapping) and key in self.channels
        if self.guesses and kind == "intensity" and looks_like_label(key) and not is_image:
            write = f"⟦open_volume(labels={(*self.labels, key)!r})⟧"
            self._warn_of_label(key, "is sampled as an intensity", write)
        if key not in self._options_by_key:
            own = options_of(key, self._options, self._known_keys)
            if key in self._placed_as:
                del own["affine"]
            self._options_by_key[key] = own
        options = {"kind": kind, **self._options_by_key[key]}
        if not isinstance(source, (list, tuple)):
            return self._of_one(key, source, kind, options)
        # Made anew each time: the members of the list are checked, or held, one by one.
        return Volume([self._of_one(key, one, kind, options) for one in source], kind=kind)

    def _of_one(self, key: str, source: Any, kind: str, options: Mapping[str, Any]) -> Volume:
        if isinstance(source, Volume):
            return placed_by(key, options["affine"], source) if "affine" in options else source
        # One array may have two keys, of two kinds.
        own = key if any(key in its_keys for its_keys in self._by_key.values()) else ""
        entry = self._of_objects.get((id(source), kind, own))
        if entry is not None:
            return entry[1]
        by_key, storage = "storage_options" in self._by_key, self.storage_options
        if storage is None or (by_key and key not in storage):
            if self._by_server is None:
                self._by_server = inherited_options(self.parent)
            storage = options_for(source, self._by_server) if self._by_server else None
        elif by_key:
            storage = storage[key]
        volume = Volume(source, storage_options=storage, **options)
        if self._objects_last and not isinstance(source, (str, os.PathLike)):
            # The object is held with its volume: an id may be given anew once it is gone.
            self._of_objects[id(source), kind, own] = (source, volume)
        return volume

    def _warn_of_label(self, key: str, is_so: str, write: str) -> None:
        """Warn, once, of an intensity whose key says label."""
        text = (
            f"{key!r} {is_so}: interpolated, in float32\n  at {self.origin}\n"
            f"{_first_data(self.parent)}"
            f"  If it holds classes, write {write}. "
            "If not, give ⟦labels=⟧ without it: then nothing is guessed."
        )
        self._once.warn((is_so, key), text, LikelyLabel, self.origin)

    def _warn_of_colours(self, sample: Sample, volumes: Mapping[str, Volume]) -> None:
        """Warn where arrays look like planes of colours; labels of their shape say otherwise."""
        if self.axis_map is not None or is_looking_ahead():
            return
        self._has_looked = True
        if any(volume.kind == "label" for volume in volumes.values()):
            return
        for key in volumes:
            is_new = key not in sample.patches and in_memory(sample[key])
            if is_new and "affine" not in options_of(key, self._options):
                for hint in colours_hint(key, sample[key].shape):
                    self._once.warn(hint, hint, LikelyMistake, self.origin)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_of_objects": {}}

    def settings(self) -> Any:
        """Return the settings without credentials and settings that change no voxel."""
        own: tuple[Any, ...] = (self.labels, self.keys, self.policies, self.reader_kwargs)
        own += (tuple(self.overriding),) if self.overriding else ()
        if isinstance(self.channels, Mapping):
            own += (sorted((key, one.describe()) for key, one in self.channels.items()),)
        elif self.channels is not None:
            own += (self.channels.describe(),)
        if isinstance(self.axis_map, Mapping):
            return (*own, sorted((key, one.fingerprint()) for key, one in self.axis_map.items()))
        # States saved before there were axis maps still fit.
        return own if self.axis_map is None else (*own, self.axis_map.fingerprint())


class _Pass:
    """One pass of an ``open_volume()``."""

    def __init__(self, pipe: OpenVolume) -> None:
        self._pipe = pipe
        pipe._by_server = None
        # Loaders keep remote stores open from one epoch to the next.
        self._renews = pipe._run is None
        # Identifies this pass for processes that read together; no draw depends on it.
        self._by = uuid.uuid4().hex

    @cached_property
    def _run(self) -> tuple[int, int]:
        return self._pipe._next_run()

    def open_item(self, item: Any, position: int) -> Sample:
        """Return the sample of an item with its volumes."""
        if not isinstance(item, Sample):
            item = self._pipe._sample(item, position, *self._run)
        return self._pipe._open(item, self._by, renews=self._renews)


class _OpenItems(EachItem):
    """The opened samples of one pass by their numbers."""

    def __init__(self, items: NumberedItems, pipe: OpenVolume) -> None:
        super().__init__(items, str, pipe)
        self._pass = _Pass(pipe)
        is_plain = type(pipe) is OpenVolume and not (pipe.axis_map or pipe.channels)
        self.samples = items.cases if is_plain and "affine" not in pipe.reader_kwargs else None
        self.cases = None if self.samples is None else self

    def anew(self, volume: Volume) -> Volume:
        """Return a volume for this pass, without a header."""
        return volume.opened_anew(self._pass._by, renews=self._pass._renews)

    @property
    def has_one_server(self) -> bool:
        """Whether all places are opened with the same storage options."""
        return not self._pipe._by_server

    def is_no_volume(self, key: str, value: Any) -> bool:
        """Whether a value travels along, and needs no check."""
        if self._pipe.keys is not None or type(value) in (int, bool):
            return True
        is_plain = type(value) in (float, str) and not is_empty_cell(value)
        return is_plain and not is_volume_source(value, key)

    def __getitem__(self, number: int) -> Any:
        item = self._items[number]
        try:
            return self._pass.open_item(item, number)
        except Exception as error:
            raise self.with_number(error, number, item)  # noqa: B904  the very same error


def _repeats_objects(parent: Pipe) -> bool:
    """Whether every epoch brings the same arrays: given in a list of cases, and only moved."""
    # Objects that a function, a sequence or a case makes anew each time must not be held.
    every = list(walk(parent))
    if any(traits_of(pipe).runs_user_code or not traits_of(pipe).is_known for pipe in every):
        return False
    sources = [pipe for pipe in every if not parents_of(pipe)]
    cases = [pipe.cases if isinstance(pipe, FromCases) else None for pipe in sources]
    return all(isinstance(c, (list, tuple)) and all(isinstance(k, dict) for k in c) for c in cases)


def _check_axis_map(axis_map: Any) -> AxisMap | Mapping[str, AxisMap] | None:
    """Return the axis map, for all volumes or by key; TypeError for others."""
    maps = axis_map.values() if isinstance(axis_map, Mapping) else (axis_map,)
    wrong = [] if axis_map is None else [one for one in maps if not isinstance(one, AxisMap)]
    if wrong:
        msg = f"axis_map is an AxisMap, or a mapping of them by key, got {shorten(wrong[0])}"
        raise TypeError(f'{msg}; write vp.AxisMap.missing("K", [17]), for instance')
    return axis_map  # type: ignore[no-any-return]


def _check_channels(channels: Any) -> AxisMap | dict[str, AxisMap] | None:
    """Return the map of the channels to keep, for all volumes or by key."""
    if isinstance(channels, Mapping):
        return {key: AxisMap.of_channels(one) for key, one in channels.items()}
    return None if channels is None else AxisMap.of_channels(channels)


def _empty(key: str, where: str) -> SampleError:
    do = f"Give its path, leave {key!r} out of cases that lack it, or name keys=."
    return SampleError(f"the value of {key!r} is empty{where}", do=do)


def _has_empty_part(value: Any) -> bool:
    """Whether a value, or a part of a list with volumes, is empty."""
    parts = value if isinstance(value, (list, tuple)) and any(map(is_volume_source, value)) else ()
    return is_empty_cell(value) or any(map(is_empty_cell, parts))


def is_volume_source(value: Any, key: str = "") -> bool:
    """Whether a value of a sample is a volume's source rather than a number or a name."""
    if isinstance(value, (list, tuple)):
        is_flat = not any(isinstance(one, (list, tuple)) for one in value)
        return bool(value) and is_flat and all(is_volume_source(one, key) for one in value)
    if isinstance(value, (Volume, os.PathLike)):
        return True
    if isinstance(value, str):
        # Another word is a name ("male"), which may also be that of a folder of scans.
        is_path = "/" in value or "." in value or os.sep in value
        return is_path or (_is_usual(key) and os.path.isdir(value))
    kind = type(value)
    is_array_like = hasattr(kind, "__array__") or hasattr(kind, "__array_interface__")
    if int(getattr(value, "ndim", 2 * is_array_like)) >= 2:
        return True
    # Classes of the user may derive from those of a library.
    packages = {each.__module__.partition(".")[0] for each in kind.__mro__}
    is_image = hasattr(value, "dataobj") or hasattr(value, "affine") or packages & _LIBRARIES
    if is_image or any(hasattr(kind, member) for member in _MEMBERS):
        return True
    return source_by_package(value, USUAL_OPTIONS) is not None


def _is_usual(key: str) -> bool:
    """Whether a key is usual for volumes: a folder counts, and an empty value is a mistake."""
    return key in _IMAGES or looks_like_label(key)


_IMAGES = ("image", "images", "img", "scan", "volume")
_LIBRARIES = {"h5py", "mrcfile", "netCDF4", "torchio", "xarray", "zarr"}
"""Packages of volumes and of groups of them; ``Volume`` refuses those that it does not read."""
_MEMBERS = ("get_filename", "pixel_array", "asarray")
"""Members of other images' classes: nibabel's, pydicom's, tifffile's."""
