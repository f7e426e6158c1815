"""The source of OME data: images, wells, fields, time points and label groups as cases."""

from __future__ import annotations

import itertools
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.call_site import WarnOnce, warn
from ...core.errors import LikelyMistake, SampleError, UnknownFormat, VolumeNotFound
from ...core.suggest import few_names, path_hint
from ...core.validate import as_keys
from ...datapipes.case_lists import CaseFinder, Cases
from ...datapipes.case_names import CASE
from ...storage.location import is_url, public_name
from ...volumes import Volume
from ...volumes.catalog.find import list_below
from ...volumes.formats.chunked_backend import check_axes
from ...volumes.formats.stored_file import LocalStoredFile, RemoteStoredFile, import_package
from ...volumes.header import ONE_TIME, Times
from ..formats.tiff import read_tiff
from ..formats.tiff_metadata import MissingPlanes
from .bioio_reader import SUFFIXES as SCENES
from .bioio_reader import scenes_of
from .ome_metadata import OmeNode, join, node_of
from .result_times import IMAGE as IN_PLACE
from .result_times import JointTimes
from .tiff_sequence import (
    SUFFIXES,
    PlaneFiles,
    files_of_pattern,
    has_fields,
    without_word,
)
from .zipped_zarr import ZIP_SUFFIXES, split_zip

IMAGE, LABEL = "image", "label"
_ENDS = (
    ".ome.zarr.zip",
    ".ome.ozx",
    *ZIP_SUFFIXES,
    ".ome.zarr",
    ".zarr",
    *(f".ome{end}" for end in SUFFIXES),
    *SUFFIXES,
    *SCENES,
)
_TIMES = ("cases", "channels")
_MOST_NAMES = 6


@dataclass(frozen=True)
class OmeImage:
    """One image that was found: an image of OME-Zarr, a series of an OME-TIFF, or a sequence."""

    place: str
    """Path, URL or pattern."""
    name: str
    """Name of the case, below the root."""
    sizes: Mapping[str, int]
    """Lengths of its axes, by letter."""
    labels: tuple[str, ...] = ()
    """Names of its label groups."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of ``Volume``."""
    files: PlaneFiles | None = None
    """The files of a sequence."""
    missing: MissingPlanes | None = None
    """Planes of an OME-TIFF that are in no file."""
    is_node: bool = False
    """Whether it is an image of OME-Zarr."""

    @property
    def incomplete(self) -> Collection[int]:
        """Time points that lack files or planes."""
        if self.files is not None:
            return self.files.gaps
        return self.missing.times if self.missing is not None else ()

    def facts_of_gaps(self) -> tuple[str, str, str]:
        """Return a sentence with the missing files, their time points, and the cure."""
        name, times = public_name(self.place), sorted(self.incomplete)
        if self.files is not None:
            texts = few_names(itertools.chain(*self.files.gaps.values()), _MOST_NAMES)
            few = few_names(map(self.files.time_text, times), _MOST_NAMES)
            return f"{name} has no file for {texts}", few, "Copy the files"
        assert self.missing is not None
        few = few_names(map(str, times), _MOST_NAMES)
        return self.missing.facts(name), few, self.missing.cure


class FromOme(CaseFinder):
    """Begin a chain with the images of OME-Zarr or OME-TIFF below a folder, a case each.

    The root is an image, a plate, a well, a group of bioformats2raw, an OME-TIFF, a CZI, ND2 or
    LIF, or a folder of these. A pattern of TIFF files is a root too. A case is one time point of
    one image. Its name has the path of the image below the root: ``"A/1/0"`` is field 0 of well
    A1. If there are several time points, it has the time: ``"A/1/0 t3"``. Only metadata are read.
    A case holds paths, so its memory does not grow with the image.

    A sample also holds ``"ome"``, a mapping by which ``filter()`` can choose. Its keys are
    ``image`` (the path below the root), ``time`` and ``labels`` (the names of the groups). Images
    of a plate also have ``well`` and ``field``.

    A prediction of several time points to one OME-Zarr place has an axis of time. ``{image}`` in a
    place is the path of the image.

    Parameters
    ----------
    path
        Path or URL of the root.
    label
        The label group, which becomes the key ``"label"``. Several names become keys of their own
        names; a mapping gives the keys: ``{"seg": "nuclei"}``. Without it there are no labels.
    time
        ``"cases"``, the number of one time point, or ``"channels"`` (``"all"``). Then all time
        points of an image are channels of one case.
    level
        Level of the image; the finest is 0. A label group gives its level of the same shape, so
        labels that were predicted at a coarser level fit. A mapping has levels by key,
        ``{"image": 1}``. Other keys then have level 0.
    optional
        Keys that a case may lack.
    axes
        Names of stored axes, ``"tczyx"`` for instance. TIFF without names needs them.
    allow_gaps
        Close missing numbers in a pattern of TIFF files.
    storage_options
        For fsspec, where the root is a URL.

    Raises
    ------
    VolumeNotFound
        There is no image below the root, or an image lacks a label group. A time point of a
        pattern that you chose lacks files.
    LikelyMistake
        A plate lists missing wells or images. Time points of a pattern lack files. Neither are
        cases.
    SampleError
        An argument is invalid, an image has no such time point, or a label group has fewer time
        points than its image.

    Examples
    --------
    An image (T, Z, Y, X) of two time points:

    >>> import tempfile, numpy as np, tifffile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     voxels = np.zeros((2, 3, 8, 8), np.uint8)
    ...     tifffile.imwrite(f"{folder}/a.ome.tif", voxels, metadata={"axes": "TZYX"})
    ...     [(sample.case, sample["ome"]["time"]) for sample in from_ome(folder)]
    [('a t0', 0), ('a t1', 1)]
    """

    form_name = "from_ome"

    def __init__(
        self,
        path: str | os.PathLike[str],
        label: str | Iterable[str] | Mapping[str, str] | None = None,
        *,
        time: str | int = "cases",
        level: int | Mapping[str, int] = 0,
        optional: str | Iterable[str] = (),
        axes: str | None = None,
        allow_gaps: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.labels = _as_labels(label)
        time = "channels" if time == "all" else time  # as of Volume()
        is_number = isinstance(time, int) and not isinstance(time, bool) and time >= 0
        if not is_number and time not in _TIMES:
            msg = f"from_ome(time=) is {time!r}"
            raise SampleError(msg, do="Give 'cases', 'channels', or the number of a time point.")
        self.time, self.level = time, level
        self._refuse_levels(level)
        self.optional = as_keys("from_ome(optional=)", optional)
        unknown = sorted({*self.optional} - {*self.labels})
        if unknown:
            msg = f"from_ome(optional=) has the keys {few_names(unknown)}, which are no labels here"
            raise SampleError(msg, do=f"The labels are {few_names([*self.labels]) or 'none'}.")
        self._once = WarnOnce()
        self._how: dict[str, Any] = {"axes": axes} if axes is not None else {}
        self._how |= {"allow_gaps": True} if allow_gaps else {}
        super().__init__(path, storage_options)

    def _refuse_levels(self, level: Any) -> None:
        """Raise ``SampleError`` unless a level is a number from 0, or a mapping of known keys."""
        keys = [IMAGE, *self.labels]
        by_key = level if isinstance(level, Mapping) else {IMAGE: level}
        unknown = [key for key in by_key if key not in keys]
        numbers = [n for n in by_key.values() if isinstance(n, bool) or not isinstance(n, int)]
        if unknown or numbers or min(by_key.values(), default=0) < 0:
            do = f"Give a number from 0, or a mapping of {few_names(keys)} to such numbers."
            raise SampleError(f"from_ome(level=) is {level!r}", do=do)

    def _level_of(self, key: str) -> int:
        return self.level.get(key, 0) if isinstance(self.level, Mapping) else self.level

    def look(self) -> Cases:
        """Return the cases, from the metadata below the root."""
        how = self.storage_options, self._once, self._how
        images = _distinct([*images_below(self.location, *how)])
        if not images:
            msg = f"there is no image of OME-Zarr or OME-TIFF below {public_name(self.location)}"
            is_there = is_url(self.location) or os.path.exists(self.location)
            do = "Planes in files of their own need a pattern, 'exp/img_t{t}_z{z}.tif'. "
            do += "vp.from_cases() takes paths of other formats."
            raise VolumeNotFound(msg, do=do if is_there else path_hint(self.location))
        lacking = [image for image in images if image.missing is not None]
        if lacking and len(lacking) == len(images):  # no image has a complete time point
            missing = [image.missing for image in lacking if image.missing is not None]
            if all(len(one.times) == one.number_of_times for one in missing):
                raise missing[0].error(public_name(lacking[0].place))
        return [case for image in images for case in self._cases_of(image)]

    def _cases_of(self, image: OmeImage) -> Iterator[dict[str, Any]]:
        axes, own = self._how.get("axes"), "".join(image.sizes)
        if image.is_node and axes not in (None, own):
            msg = f"from_ome(axes={axes!r}) contradicts image {image.name}, which has {own!r}"
            raise SampleError(msg, do="Leave axes= out: OME-Zarr names its axes.")
        keys = {key: name for key, name in self.labels.items() if self._has(image, key, name)}
        count, times = image.sizes.get("t", 1), self._complete_times(image)
        if isinstance(self.time, int) and self.time >= count:
            have = f"0 to {count - 1}" if count > 1 else "only 0"
            msg = f"image {image.name} has no time point {self.time}, but {have}"
            raise SampleError(msg, do="Give time='cases' for all of them.")
        for time in times:
            name = image.name if count == 1 or time is None else f"{image.name} t{time}"
            case: dict[str, Any] = {CASE: name, IMAGE: self._volume(image, time)}
            for key, label in keys.items():
                case[key] = self._label(image, key, label, time)
            yield case | {"ome": _facts(image, time)}

    def _complete_times(self, image: OmeImage) -> list[int | None]:
        """Return the time points of the cases; a warning names the files of those left out."""
        if self.time != "cases" and image.files is not None:
            image.files.at_time(None if self.time == "channels" else self.time, image.name)
        times = image.incomplete if self.time == "channels" else [self.time]
        if image.missing is not None and {*times} & image.missing.times:
            raise image.missing.error(public_name(image.place))
        if self.time == "channels":
            return [None]
        if isinstance(self.time, int):
            return [self.time]
        if gaps := image.incomplete:
            facts, few, do = image.facts_of_gaps()
            msg = f"incomplete-times: {facts}. Time points left out: {few}. {do} to have them too."
            self._once.warn(image.name, msg, LikelyMistake)
        return [time for time in range(image.sizes.get("t", 1)) if time not in gaps]

    def _has(self, image: OmeImage, key: str, name: str) -> bool:
        """Whether an image has a label group; ``VolumeNotFound`` if it must have it."""
        # A writer may leave the list of label groups out.
        is_there = name in image.labels or self._is_unlisted(image, name)
        if is_there or key in self.optional:
            return is_there
        have = few_names(image.labels, _MOST_NAMES)
        msg = f"image {image.name} has no label group {name!r}"
        do = f"It has {have}. " if have else "It has no label groups. "
        raise VolumeNotFound(msg, do=f"{do}Or write optional={key!r} to have it without it.")

    def _is_unlisted(self, image: OmeImage, name: str) -> bool:
        is_zarr = image.is_node and "/" not in name
        place = join(image.place, f"labels/{name}")
        return is_zarr and OmeNode.at(place, self.storage_options).is_image

    def _volume(self, image: OmeImage, time: Any) -> Volume:
        options = dict(image.options)
        if image.sizes.get("t", 1) > 1 and time is not None:
            options["time"] = time
        elif image.files is not None or image.sizes.get("t", 1) > 1:
            options["time"] = "channels"
        if level := self._level_of(IMAGE):
            options["level"] = level
        return Volume(image.place, storage_options=self.storage_options, **options)

    def _label(self, image: OmeImage, key: str, name: str, time: Any) -> Volume:
        place = join(image.place, f"labels/{name}")
        node = OmeNode.at(place, self.storage_options)
        sizes, level = node.sizes(), self._level_of(key)
        if isinstance(self.level, int) and self.level:
            own = OmeNode.at(image.place, self.storage_options).spatial_shapes()
            level = _level_alike(node.spatial_shapes(), own, self.level)
        options: dict[str, Any] = {"level": level} if level else {}
        count, of_image = sizes.get("t", 1), image.sizes.get("t", 1)
        if count < of_image and not isinstance(self.time, int):
            group = f"label group {name!r} of image {image.name}"
            if count > 1:
                msg = f"{group} has {count} time points, and the image {of_image}"
                raise SampleError(msg, do="Give one time point, time=0 for instance.")
            text = f"{group} has one time point, and is the label of all {of_image} of the image"
            do = "If it belongs to one of them, give that: time=0."
            warn(f"label-of-all-times: {text}. {do}", LikelyMistake)
        if count > 1 and time is not None:
            options["time"] = time
        elif count > 1:
            options["time"] = "channels"
        return Volume(place, kind="label", storage_options=self.storage_options, **options)

    def join_results(
        self,
        destination: Any,
        *,
        stack: ExitStack,
        options: Mapping[str, Any],
        overwrite: bool,
        run: str | None,
        is_first: bool,
    ) -> tuple[Any, Callable[[Any], Any]]:
        """Return the place of each case of a prediction, and a function that joins times."""
        if not isinstance(destination, (str, os.PathLike)):
            return destination, dict
        text, cases = os.fspath(destination), [*self.cases]
        if IN_PLACE not in text and (len(cases) == 1 or f"{{{CASE}}}" in text):
            return destination, dict
        count = dict[str, int]()
        for case in cases:  # Incomplete times are no cases.
            image, time = case["ome"]["image"], case["ome"]["time"] or 0
            count[image] = max(count.get(image, 0), time + 1)
        by_image: dict[str, tuple[Mapping[str, int], Times]] = {}
        for case in cases:
            image = case["ome"]["image"]
            if image not in by_image:
                step = case[IMAGE].header.times if count[image] > 1 else ONE_TIME
                node = node_of(case[IMAGE])
                sizes = {} if node is None else node.sizes()
                by_image[image] = {**sizes, "t": count[image]}, step
        facts = [(case[CASE], case["ome"]) for case in cases]
        rows = [(name, ome["image"], ome["time"], *by_image[ome["image"]]) for name, ome in facts]
        how: dict[str, Any] = {"is_first": is_first, "overwrite": overwrite}
        times = JointTimes(text, rows, stack, options, keeps_parts=bool(run), **how)
        return times.place_of, times.join

    def data_texts(self) -> Iterator[str]:
        """Yield one line for each case."""
        for case in self.cases:
            yield f"case={case[CASE]}, {', '.join(k for k in case if k not in (CASE, 'ome'))}"


def _level_alike(labels: Sequence[Any], image: Sequence[Any], level: int) -> int:
    """Return the level of labels with the shape of a level of the image; else the same number.

    Examples
    --------
    >>> _level_alike([(4, 4), (2, 2)], [(8, 8), (4, 4), (2, 2)], 1)
    0
    """
    if level >= len(image) or (level < len(labels) and labels[level] == image[level]):
        return level
    return labels.index(image[level]) if image[level] in labels else level


def _as_labels(label: Any) -> dict[str, str]:
    """Return the label groups by key."""
    if label is None:
        return {}
    if isinstance(label, str):
        return {LABEL: label}
    pairs = label if isinstance(label, Mapping) else {name: name for name in label}
    wrong = [one for pair in pairs.items() for one in pair if not isinstance(one, str) or not one]
    if wrong or {IMAGE, "ome", CASE} & {*pairs}:
        msg = f"from_ome(label=) has {wrong[0] if wrong else [*pairs]!r}"
        raise SampleError(msg, do="Give names of label groups, other than image, ome and case.")
    return dict(pairs)


def _facts(image: OmeImage, time: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"image": image.name, "time": time, "labels": list(image.labels)}
    row, _, rest = image.name.partition("/")
    column, _, number = rest.partition("/")
    if column and number.isdecimal():
        facts |= {"well": f"{row}/{column}", "field": int(number)}
    return facts


def images_below(
    root: str, options: Mapping[str, Any], once: WarnOnce, how: Mapping[str, Any]
) -> Iterator[OmeImage]:
    """Yield the images of a root, in the order of its metadata, or of the names in a folder.

    ``how`` has options of the readers of TIFF.
    """
    if has_fields(root) and (is_url(root) or not os.path.exists(root)):
        files = files_of_pattern(root, options, allow_gaps=how.get("allow_gaps", False))
        sizes = dict(zip(files.axes, map(len, files.values), strict=True))
        if "t" not in sizes:  # each file may hold all time points
            own = {key: axes[len(sizes) :] for key, axes in how.items() if key == "axes"}
            first = next(_of_tiff(files.existing[0], "", options, own))
            sizes |= {"t": first.sizes["t"]} if "t" in first.sizes else {}
        name = without_word(posixpath.basename(root).partition("{")[0]) or "image"
        yield OmeImage(root, name, sizes, options=how, files=files)
        return
    if public_name(root).lower().endswith(SUFFIXES):
        yield from _of_tiff(root, plain(posixpath.basename(public_name(root))), options, how)
        return
    if root.lower().endswith(SCENES):
        yield from _of_scenes(root, plain(posixpath.basename(root)))
        return
    node = OmeNode.at(root, options)
    if node.is_image:
        yield _of_node(node, root, plain(posixpath.basename(public_name(root).rstrip("/"))))
        return
    paths = [*node.images()] if node.version else []
    if paths:
        yield from _images_in_list(node, root, paths, once)
    if paths or split_zip(root) is not None:
        return
    try:
        _, places = list_below(root, options)
    except VolumeNotFound:
        return
    except UnknownFormat:
        msg = f"from_ome() opens OME-Zarr, TIFF, CZI, ND2 and LIF, and {public_name(root)} is none"
        do = 'Give files of other formats as cases: vp.from_cases([{"image": path}]).'
        raise UnknownFormat(msg, do=do) from None
    is_list: dict[str, bool] = {}
    parts: set[str] = set()  # files of OME-TIFFs that were found by another of their files
    for name, place in sorted(places.items()):
        plate, is_first = _list_above(root, name, options, is_list)
        if plate and is_first:  # its list names missing images, too
            for each in images_below(join(root, plate), options, once, how):
                yield replace(each, name=f"{plain(plate)}/{each.name}")
        if plate:
            continue
        if public_name(place).lower().endswith((".ome.tif", ".ome.tiff")):
            if place not in parts:
                yield from _of_tiff(place, plain(name), options, how, parts)
        elif place.lower().endswith(SCENES) and not is_url(place):
            yield from _of_scenes(place, plain(name))
        elif not name.lower().endswith(SUFFIXES):
            is_zip = split_zip(place) is not None
            is_node = is_zip or is_url(place) or os.path.isdir(place)
            image = OmeNode.at(place, options) if is_node else None
            if image is not None and image.is_image:
                yield _of_node(image, place, plain(name))
            elif is_zip:
                for each in images_below(place, options, once, how):
                    yield replace(each, name=f"{plain(name)}/{each.name}")


def _list_above(
    root: str, name: str, options: Mapping[str, Any], is_list: dict[str, bool]
) -> tuple[str, bool]:
    """Return the outermost plate or group that lists an image, and whether it is new."""
    for folder in itertools.accumulate(name.split("/")[:-1], "{}/{}".format):
        is_new = folder not in is_list
        if is_new:
            is_list[folder] = next(OmeNode.at(join(root, folder), options).images(), "") != ""
        if is_list[folder]:
            return folder, is_new
    return "", False


def _images_in_list(
    node: OmeNode, root: str, paths: Sequence[str], once: WarnOnce
) -> Iterator[OmeImage]:
    """Yield the images that a plate or group lists; a warning names those that are missing."""
    missing = []
    for path in paths:
        below = node.below(path)
        if below.is_image:
            yield _of_node(below, join(root, path), path)
        else:
            missing.append(path)
    if missing:
        msg = f"missing-images: {node.name} lists {len(missing)} wells or images that are not there"
        few = few_names(missing, _MOST_NAMES)
        once.warn(root, f"{msg}: {few}. Copy them, or correct its list.", LikelyMistake)


def _of_node(node: OmeNode, place: str, name: str) -> OmeImage:
    return OmeImage(place, name, node.sizes(), tuple(node.label_names()), is_node=True)


def _of_tiff(
    place: str,
    name: str,
    options: Mapping[str, Any],
    how: Mapping[str, Any],
    parts: set[str] | None = None,
) -> Iterator[OmeImage]:
    """Yield the series of a TIFF, each of which may be a position; add its files to ``parts``."""
    tifffile, is_far = import_package("tifffile", place), is_url(place)
    file = RemoteStoredFile(place, options, place) if is_far else LocalStoredFile(place, place)
    base = posixpath.basename(public_name(place))
    with file.open() as stream, tifffile.TiffFile(stream if is_far else place, name=base) as tiff:
        several = len(tiff.series) > 1
        numbers = range(len(tiff.series)) if several else (None,)
        images = [read_tiff(tiff, 0, number, place) for number in numbers]
    if parts is not None:
        folder, names = os.path.dirname(place), (part for one in images for part in one.files)
        parts.update(os.path.join(folder, part) for part in names)
    for number, image in enumerate(images):
        own = {key: value for key, value in how.items() if key == "axes"}
        letters = check_axes(own["axes"], image.shape, place) if own else image.axes
        sizes = dict(zip(letters, image.shape, strict=True))
        own |= {"series": number} if several else {}
        own_name = f"{name}/{number}" if several else name
        yield OmeImage(place, own_name, sizes, options=own, missing=image.missing)


def _of_scenes(place: str, name: str) -> Iterator[OmeImage]:
    """Yield the scenes of a file that a reader of bioio opens."""
    scenes = [*scenes_of(place, place)]
    for scene, sizes in scenes:
        several = len(scenes) > 1
        own = {"scene": scene} if several else {}
        yield OmeImage(place, f"{name}/{scene}" if several else name, sizes, options=own)


def plain(name: str) -> str:
    """Return the name of an image without the suffixes of its formats.

    Examples
    --------
    >>> plain("exp/plate.ome.zarr/A/1/0"), plain("a.ome.tif")
    ('exp/plate/A/1/0', 'a')
    """
    parts = []
    for part in name.split("/"):
        end = next((end for end in _ENDS if part.lower().endswith(end)), "")
        parts.append(part[: len(part) - len(end)] or part)
    return "/".join(parts)


def _distinct(images: list[OmeImage]) -> list[OmeImage]:
    """Return images with distinct names; those that differ by suffix get their places."""
    counts = Counter(image.name for image in images)
    return [
        image
        if counts[image.name] == 1
        else replace(image, name=posixpath.basename(public_name(image.place)))
        for image in images
    ]


from_ome = FromOme
