"""Sources for standard folder layouts: nnU-Net's raw datasets, BIDS, trees of DICOM."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...core.call_site import shorten, warn
from ...core.errors import CasesLeftOut, SampleError, VolumeNotFound
from ...core.suggest import closest, few_names, path_hint
from ...core.validate import as_keys, is_integer
from ...datapipes.case_lists import CaseFinder, Cases, place_in, read_json
from ...datapipes.case_names import CASE
from ...storage.location import absolute_place, is_url, public_name
from ...volumes import Volume, is_picture
from ...volumes.catalog.find import list_below, plain_name

FOLDS = 5
"""Number of folds of nnU-Net's default split."""
_SEED_OF_SPLIT = 12345  # nnU-Net's
_MOST_LINES = 10  # series that a warning names
_ENTITY = re.compile(r"([a-zA-Z0-9]+)-([a-zA-Z0-9+.]+)")
# Environment variables that nnU-Net writes into dataset.json.
_NNUNET_FOLDER = re.compile(r"\$\{?(nnUNet_(?:raw|preprocessed|results))\b\}?")


class FromNNUNet(CaseFinder):
    """Begin a chain with the cases of a raw dataset of nnU-Net.

    Images are ``imagesTr/CASE_0000.nii.gz``, a file for each channel, and labels are in
    ``labelsTr``, unless the dataset's ``dataset.json`` lists other files.

    Parameters
    ----------
    path
        Path or URL of the dataset, ``nnUNet_raw/Dataset002_Heart``.
    fold
        Which split: a number, or ``"all"``, where every case is for training and validation.
    part
        ``"train"`` or ``"val"`` of the split, or ``"test"``: ``imagesTs``, without labels.
    splits
        Path of ``splits_final.json``; by default the one in the folder of ``dataset.json``, else
        nnU-Net's split of the names in five.
    separate_channels
        Whether channels are volumes of their own, ``image_0000``, ``image_0001``; by default the
        files of a case are the channels of one volume, ``image``. A case of one channel is an
        ``image`` either way.
    storage_options
        As in ``from_decathlon``.

    Raises
    ------
    VolumeNotFound
        There is no such folder, file, or image of a case.
    SampleError
        A split names cases that are not there, or there is no such split.
    """

    form_name = "from_nnunet"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fold: int | str = "all",
        part: str = "train",
        splits: str | os.PathLike[str] | None = None,
        separate_channels: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.fold = int(fold) if isinstance(fold, str) and fold.isdecimal() else fold
        self.part, self.splits, self.separate_channels = part, splits, separate_channels
        super().__init__(path, storage_options)

    def look(self) -> Cases:
        if self.part not in ("train", "val", "test"):
            raise SampleError(f"part is 'train', 'val' or 'test', got {self.part!r}")
        if self.fold != "all" and not (is_integer(self.fold) and int(self.fold) >= 0):
            raise SampleError(f"fold is a number from 0 or 'all', got {self.fold!r}")
        document = read_json(_below(self.location, "dataset.json"), self.storage_options)
        every = self._cases(document if isinstance(document, Mapping) else {})
        return [{CASE: name, **every[name]} for name in self.names(sorted(every))]

    def names(self, every: Sequence[str]) -> list[str]:
        """Return which cases are of this part."""
        if self.part == "test" or self.fold == "all":
            return list(every)
        fold = int(self.fold)
        place = _below(self.location, "splits_final.json") if self.splits is None else self.splits
        try:
            splits = read_json(absolute_place(place), self.storage_options)
        except VolumeNotFound:
            if self.splits is not None:
                raise
            splits = split_in_five(every)
        if not isinstance(splits, list):
            msg = f"{public_name(os.fspath(place))} is no list of splits"
            raise SampleError(msg, do='It is [{"train": [...], "val": [...]}, ...], one each fold.')
        if fold >= len(splits):
            msg = f"there is no split {fold} in {public_name(os.fspath(place))}"
            raise SampleError(msg, do=f"It has {len(splits)}; fold='all' takes every case.")
        split = splits[fold].get(self.part) if isinstance(splits[fold], Mapping) else None
        if not isinstance(split, list):
            msg = f"split {fold} in {public_name(os.fspath(place))} has no list {self.part!r}"
            raise SampleError(msg, do='It is {"train": [...], "val": [...]} for each fold.')
        names = [str(name) for name in split]
        missing = [name for name in names if name not in set(every)]
        if missing:
            msg = f"split {fold} names cases that are not there: {few_names(missing)}"
            raise SampleError(msg, do="Give splits= of this dataset, or add the cases.")
        return names

    def _cases(self, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        files = document.get("dataset")
        if self.part != "test" and isinstance(files, Mapping):
            return {str(name): self._of_entry(entry) for name, entry in files.items()}
        end = str(document.get("file_ending", ".nii.gz"))
        split = "Ts" if self.part == "test" else "Tr"
        images = _files(_below(self.location, f"images{split}"), end, self.storage_options)
        if not images:
            _, places = list_below(_below(self.location, f"images{split}"), self.storage_options)
            msg = f"images{split} of {public_name(self.location)} has no file that ends in {end}"
            do = f"It has {few_names(places) or 'none'}: write their suffix as file_ending into "
            raise VolumeNotFound(msg, do=f"{do}dataset.json.")
        place = _below(self.location, "labelsTr")
        labels = _files(place, end, self.storage_options) if split == "Tr" else {}
        channels: dict[str, list[str]] = {}
        for name in sorted(images):
            case, mark, number = name.rpartition("_")
            if mark and len(number) == 4 and number.isdigit():
                channels.setdefault(case, []).append(images[name])
        if not channels:
            msg = f"images{split} of {public_name(self.location)} has no file CASE_0000{end}, "
            msg += f"but {few_names([name + end for name in sorted(images)])}"
            raise VolumeNotFound(msg, do="Is it Decathlon's? Then write vp.from_decathlon().")
        channel_names = document.get("channel_names") or document.get("modality") or ()
        if not isinstance(channel_names, (Mapping, list, tuple)):
            msg = f"channel_names in dataset.json is {shorten(channel_names)}"
            raise SampleError(msg, do='It is {"0": "CT", ...}, a name for each channel.')
        count = len(channel_names)
        cases: dict[str, dict[str, Any]] = {}
        for case, files in channels.items():
            if count and len(files) != count:
                names = [plain_name(posixpath.basename(file)) for file in files]
                msg = f"case {case} has {few_names(names)}, and dataset.json {count} channels"
                do = f"Have files from {case}_0000 to {case}_{count - 1:04d}."
                raise VolumeNotFound(msg, do=do)
            if split == "Tr" and case not in labels:
                msg = f"case {case} has no label {case}{end} in labelsTr"
                raise VolumeNotFound(msg, do="Add it, or take the images away.")
            label = {"label": labels[case]} if split == "Tr" else {}
            cases[case] = {**self._images(files), **label}
        return cases

    def _images(self, files: Sequence[str]) -> dict[str, Any]:
        if len(files) == 1:
            return {"image": files[0]}
        if self.separate_channels:
            return {f"image_{number:04d}": file for number, file in enumerate(files)}
        return {"image": list(files)}

    def _of_entry(self, entry: Any) -> dict[str, Any]:
        is_right = isinstance(entry, Mapping) and {"images", "label"} <= {*entry}
        if not is_right or not isinstance(entry["images"], list):
            msg = "a case in dataset.json has no images and label"
            raise SampleError(msg, do='It is {"images": [...], "label": ...} for each case.')
        base = _below(self.location, "dataset.json")
        images = [_place(one, base) for one in entry["images"]]
        return {**self._images(images), "label": _place(entry["label"], base)}


def _place(entry: Any, base: str) -> str:
    place = _NNUNET_FOLDER.sub(lambda match: os.environ.get(match[1], match[0]), str(entry))
    return place_in(place, base)


def split_in_five(names: Sequence[str]) -> list[dict[str, list[str]]]:
    """Return the split that nnU-Net makes of sorted names, where there is no ``splits_final.json``.

    It is scikit-learn's ``KFold(5, shuffle=True, random_state=12345)``.

    Examples
    --------
    >>> split_in_five(["a", "b", "c", "d", "e", "f"])[0]
    {'train': ['a', 'b', 'c', 'e'], 'val': ['d', 'f']}
    """
    if len(names) < FOLDS:
        msg = f"{len(names)} cases cannot be split in {FOLDS}"
        raise SampleError(msg, do="Give splits=, or fold='all'.")
    order = np.arange(len(names))
    np.random.RandomState(_SEED_OF_SPLIT).shuffle(order)
    folds = []
    for numbers in np.array_split(order, FOLDS):
        out = set(numbers.tolist())
        parts = {"train": [n for n in range(len(names)) if n not in out], "val": sorted(out)}
        folds.append({part: [names[n] for n in each] for part, each in parts.items()})
    return folds


class FromBids(CaseFinder):
    """Begin a chain with the subjects of a BIDS dataset and its derivatives.

    Files are found by the entities in their names, ``sub-01_ses-2_space-T1w_dseg.nii.gz``, below
    the folder, ``derivatives`` included. A case is a subject, or a session of one.

    Parameters
    ----------
    path
        Path or URL of the dataset, or of a derivative alone.
    space
        Of which space: files with ``space-...`` of this name. By default those without: in the
        space of the scan. A mapping gives each key its own, ``{"label": "orig"}``; keys that it
        lacks are without.
    where
        Other entities that files have, ``{"desc": "preproc", "run": 1}``; a file without the
        entity is taken where no other fits. None: files with the entity are left out.
    optional
        Keys that a case may lack.
    storage_options
        As in ``from_decathlon``.
    **suffixes
        Per key, the suffix of its file: ``image="T1w", label="dseg"``.

    Raises
    ------
    VolumeNotFound
        A case lacks a key, or there is none with all of them.
    SampleError
        Several files of a case fit one key; the message names the entities that distinguish them.
    """

    form_name = "from_bids"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        space: str | Mapping[str, str | None] | None = None,
        where: Mapping[str, str | int | None] | None = None,
        optional: str | Iterable[str] = (),
        storage_options: Mapping[str, Any] | None = None,
        **suffixes: str,
    ) -> None:
        self.suffixes = suffixes or {"image": "T1w"}
        is_each = isinstance(space, Mapping)
        self.space = dict(space) if is_each else dict.fromkeys(self.suffixes, space)  # type: ignore[arg-type]
        unknown = sorted(self.space.keys() - self.suffixes.keys())
        if unknown:
            msg = f"from_bids(space=) has the keys {few_names(unknown)}, which are no keys here"
            raise SampleError(msg, do=f"Its keys are {few_names(sorted(self.suffixes))}.")
        self.where = {k: None if v is None else str(v) for k, v in (where or {}).items()}
        self.optional = as_keys("from_bids(optional=)", optional)
        super().__init__(path, storage_options)

    def look(self) -> Cases:
        folders, places = list_below(self.location, self.storage_options)
        names_by_case: dict[str, dict[str, list[str]]] = {}
        suffixes: dict[str, None] = {}
        spaces: dict[str, dict[str | None, None]] = {}
        names_of_entities: set[str] = set()
        for name in (name for names in folders.values() for name in names):
            *parts, suffix = plain_name(name).split("_")
            entities = {m[1]: m[2] for m in map(_ENTITY.fullmatch, parts) if m}
            if "sub" not in entities:
                continue
            suffixes[suffix] = None
            names_of_entities |= entities.keys()
            space = entities.get("space")
            case = "/".join(entities[one] for one in ("sub", "ses") if one in entities)
            for key in (key for key, own in self.suffixes.items() if suffix == own):
                spaces.setdefault(key, {})[space] = None
                if space == self.space.get(key):
                    names_by_case.setdefault(case, {}).setdefault(key, []).append(name)
        if not names_by_case:
            raise self._found_nothing(suffixes, spaces)
        for entity in self.where:
            if entity not in names_of_entities:
                msg = f"no file of {public_name(self.location)} has the entity {entity!r}"
                near = closest(entity, names_of_entities, 0.5)
                there = few_names(sorted(names_of_entities))
                do = f"Did you mean {near[0]!r}?" if near else f"They have {there}."
                raise SampleError(msg, do=do)
        cases = sorted(names_by_case.items())
        return [{CASE: case, **self._of(case, names, places, spaces)} for case, names in cases]

    def _found_nothing(
        self, suffixes: Collection[str], spaces: Mapping[str, Collection[str | None]]
    ) -> VolumeNotFound:
        what = ", ".join(f"{key}={suffix!r}" for key, suffix in self.suffixes.items())
        own = ", ".join(dict.fromkeys(map(repr, filter(None, self.space.values()))))
        space = f" in the space {own}" if own else ""
        msg = f"{public_name(self.location)} has no file with {what}{space}"
        near = closest(next(iter(self.suffixes.values())), suffixes, 0.5)
        do = f"Did you mean {near[0]!r}?" if near else f"It has {few_names(suffixes) or 'none'}."
        return VolumeNotFound(msg, do=self._of_spaces(spaces, self.suffixes) or do)

    def _of_spaces(self, spaces: Mapping[str, Collection[str | None]], keys: Iterable[str]) -> str:
        """Return the advice for keys of which there are files in other spaces."""
        others = {key: {*spaces.get(key, ())} - {self.space.get(key)} for key in keys}
        there = {key: sorted(each, key=str) for key, each in others.items() if each}
        spaces_of_keys = {**self.space, **{key: each[0] for key, each in there.items()}}
        example = {key: name for key, name in spaces_of_keys.items() if name is not None}
        others_text = "; ".join(f"{k}: {few_names(map(str, each))}" for k, each in there.items())
        text = f"Files in other spaces are there ({others_text}): give space={example}."
        return text if there else ""

    def _of(
        self,
        case: str,
        names: Mapping[str, Sequence[str]],
        places: Mapping[str, str],
        spaces: Mapping[str, Collection[str | None]],
    ) -> dict[str, str]:
        volumes = {}
        for key, suffix in self.suffixes.items():
            fits = self._best(names.get(key, ()))
            if not fits and key in self.optional:
                continue
            if not fits:
                msg = f"case {case} has no {key} ({suffix})"
                do = f"Add the file, or write optional={key!r} to have the case without it."
                raise VolumeNotFound(msg, do=self._of_spaces(spaces, [key]) or do)
            if len(fits) > 1:
                msg = f"case {case} has {len(fits)} files for {key}: {few_names(fits)}"
                do = 'Say which: where={"run": 1}, or another entity; None for those without it.'
                raise SampleError(msg, do=do)
            volumes[key] = places[fits[0]]
        return volumes

    def _best(self, names: Sequence[str]) -> list[str]:
        """Return the files with most of the wanted entities, and none of another value."""
        ranks: dict[int, list[str]] = {}
        for name in names:
            entities = dict(_ENTITY.findall(plain_name(name)))
            pairs = [(entities[k], v) for k, v in self.where.items() if k in entities]
            if all(_index(one) == _index(other) for one, other in pairs):
                ranks.setdefault(len(pairs), []).append(name)
        return ranks[max(ranks)] if ranks else []


def _index(value: str | None) -> str | int | None:
    """Return a value of an entity, an index as a number: BIDS pads it with zeros as it likes."""
    return int(value) if value and value.isdecimal() else value


class FromDicom(CaseFinder):
    """Begin a chain with the series of a tree of DICOM files, a case each.

    Every folder below is looked through, and its files are grouped by SeriesInstanceUID; pydicom
    reads them. Headers are read once, when the pipe is made; all passes have the same cases. A
    sample also holds ``"dicom"``, a mapping with ``modality``, ``description``, ``study`` and
    ``series`` of the first slice: ``filter()`` can choose by them. The slices of a series are
    joined from all folders; folders that share their places (phases, copies) are a case each.

    Parameters
    ----------
    path
        A local path.
    key
        The key of the volumes.

    Raises
    ------
    VolumeNotFound
        There is no DICOM file below.
    MissingDependency
        There are such files, and pydicom is not installed.
    """

    form_name = "from_dicom"
    looks_once = True

    def __init__(self, path: str | os.PathLike[str], *, key: str = "image") -> None:
        (self.key,) = as_keys("from_dicom(key=)", [key])
        super().__init__(path)

    def look(self) -> Cases:
        from ..formats.dicom import series_below

        if is_url(self.location):
            raise SampleError("from_dicom looks through local folders", do="Copy them to a disk.")
        cases = []
        volumes, bad = series_below(os.fspath(self.location))
        here: dict[str, set[str]] = {}
        for folder, options, _ in volumes:
            here.setdefault(folder, set()).add(options["series"])
        for folder, options, facts in volumes:
            place = os.path.relpath(folder, self.location).replace(os.sep, "/")
            place = "" if place == "." else place
            parts = [] if len(here[folder]) == 1 and place else [options["series"]]
            parts += [f"{key}={value}" for key, value in options.get("where", {}).items()]
            about = {**facts, **options.get("where", {}), "series": options["series"]}
            name = posixpath.join(place, *parts)
            cases.append({CASE: name, self.key: Volume(folder, **options), "dicom": about})
        if bad and not cases:
            raise bad[0]
        if bad:
            text = "\n".join(f"{error.message} {error.do}" for error in bad[:_MOST_LINES])
            more = f"\n... and {len(bad) - _MOST_LINES} more" if len(bad) > _MOST_LINES else ""
            text = f"from_dicom() leaves out files and series that cannot be read:\n{text}{more}"
            warn(text, CasesLeftOut, self.origin)
        if not cases:
            msg = f"there is no DICOM series below {self.location}"
            is_there = os.path.isdir(self.location)
            raise VolumeNotFound(msg, do="" if is_there else path_hint(self.location))
        return cases

    def data_texts(self) -> Iterator[str]:
        for case in self.cases:
            yield f"case={case[CASE]}, series={case['dicom']['series']}"


def _below(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


def _files(folder: str, end: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the places of the files of a folder by name, without ``end``."""
    place = _below(folder, f"*{end}") if is_picture(end) else folder
    _, places = list_below(place, options)
    names = {name: place for name, place in places.items() if "/" not in name}
    return {n[: -len(end)]: place for n, place in names.items() if n.endswith(end)}


from_nnunet, from_bids, from_dicom = FromNNUNet, FromBids, FromDicom
