"""Divide cases into folds, at random, by groups, or with equal proportions.

Write a JSON file with the lists train_0, val_0, train_1 and so on, which from_decathlon() reads:
vp.from_decathlon("split.json", part="train_0"). Its list "training" has every case with its fold.
With --format nnunet, write splits_final.json for from_nnunet(splits=...). With --format names,
write lists of names alone, for cases that are more than paths: time points, channels, arrays.
The same cases and seed give the same folds, in any order of the cases.

example: voxpipe split cases.csv --group patient --stratify diagnosis -o split.json
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import DestinationExists, SampleError, UsageError
from ...core.redact import public_name
from ...core.suggest import closest
from ...storage.location import is_url, local_path
from .options import output_file, positive
from .printing import (
    print_json,
    print_table,
    print_text,
    remark,
    warnings_as_remarks,
    write_whole,
)
from .targets import add_target, open_target

Case = dict[str, Any]
_FILTER = "filter(lambda sample: sample.case in names)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the cases, the kind of the split, and the file."""
    add_target(parser)
    about = "number of folds (default: %(default)s)"
    parser.add_argument("--folds", type=_folds, default=5, metavar="N", help=about)
    about = "seed of the random order (default: %(default)s)"
    none_too = positive(int, or_zero=True)
    parser.add_argument("--seed", type=none_too, default=0, metavar="N", help=about)
    about = "column whose equal values stay in one fold, such as the patient"
    parser.add_argument("--group", metavar="COLUMN", help=about)
    about = "column whose values have equal proportions in every fold, such as the diagnosis"
    parser.add_argument("--stratify", metavar="COLUMN", help=about)
    about = "a table (.csv, .tsv, .json, .jsonl) with a column 'case' and further columns of cases"
    parser.add_argument("--table", metavar="FILE", help=about)
    about = "lists of from_decathlon(), splits_final.json, or names (default: %(default)s)"
    forms = ("decathlon", "nnunet", "names")
    parser.add_argument("--format", choices=forms, default="decathlon", help=about)
    about = "the file to write, .json (default: split.json, and none with --json)"
    kind = output_file(".json")
    parser.add_argument("-o", "--output", type=kind, metavar="FILE", help=about)
    parser.add_argument("--overwrite", action="store_true", help="replace another split in FILE")


def _folds(text: str) -> int:
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError(f"{text} is not at least 2")
    return count


def run(arguments: argparse.Namespace) -> int:
    """Write the folds, and print their sizes."""
    with warnings_as_remarks(arguments):
        cases = _cases_in(open_target(arguments.target, arguments))
        if arguments.table is not None:
            cases = _with_columns(cases, arguments.table)
    groups = None if arguments.group is None else _column(cases, arguments.group)
    classes = None if arguments.stratify is None else _column(cases, arguments.stratify)
    names = [case["case"] for case in cases]
    folds = folds_of(names, arguments.folds, arguments.seed, groups=groups, classes=classes)
    if groups is None and (image := _divided_image(cases, folds)) is not None:
        text = f"Time points of {image} are in several folds, so validation has images of training."
        remark(f"{text} --group image keeps them in one fold.")
    if arguments.format == "decathlon":
        cases = [_as_json(case) for case in cases]
    else:
        _refuse_equal_names(cases)
    document = _document(cases, folds, arguments.folds, arguments.format)
    place = arguments.output or (None if arguments.json else "split.json")
    output = None if place is None else Path(local_path(place))
    if output is not None:
        _write(output, document, overwrite=arguments.overwrite)
    if arguments.json:
        print_json(document)
        return 0
    counts = [
        Counter(v for v, f in zip(classes or (), folds, strict=False) if f == n)
        for n in range(arguments.folds)
    ]
    kinds = sorted({value for count in counts for value in count}, key=str)
    rows = [(n, folds.count(n), *(count[kind] for kind in kinds)) for n, count in enumerate(counts)]
    print_table(("fold", "cases", *map(str, kinds)), rows)
    print_text(f"{output}: {_use_of(arguments.format, output)}")
    return 0


def _use_of(form: str, output: Any) -> str:
    if form == "nnunet":
        return f"vp.from_nnunet(FOLDER, splits={str(output)!r}, fold=0, part='train')"
    if form == "names":
        return f"names = json.load(open({str(output)!r}))['train_0'], and pipe.{_FILTER}"
    return f"vp.from_decathlon({str(output)!r}, part='train_0')"


def folds_of(
    names: Sequence[str],
    count: int,
    seed: int = 0,
    *,
    groups: Sequence[Any] | None = None,
    classes: Sequence[Any] | None = None,
) -> list[int]:
    """Return the fold of each case, 0 to ``count - 1``.

    Sizes of folds differ by one at most, and so do the numbers of a class. With ``groups`` all
    cases of a group are in one fold, and sizes and proportions are as even as groups allow.

    Raises
    ------
    UsageError
        There are fewer cases or groups than folds.

    Examples
    --------
    >>> folds = folds_of(["a", "b", "c", "d"], 2, classes=["x", "x", "y", "y"])
    >>> sorted(folds[:2]), sorted(folds[2:])  # one of each class in each fold
    ([0, 1], [0, 1])
    """
    units = list(range(len(names))) if groups is None else list(groups)
    different = len(set(map(str, units)))
    if different < count:
        noun = "cases" if groups is None else "groups"
        msg = f"{different} {noun} cannot be divided into {count} folds"
        do = f"Give --folds of at most {different}."
        raise UsageError(msg, do=do if different > 1 else f"Give several {noun}.")
    order = sorted(range(len(names)), key=lambda number: names[number])
    permutation = [order[n] for n in np.random.default_rng(seed).permutation(len(order)).tolist()]
    kinds = [""] * len(names) if classes is None else [str(value) for value in classes]
    if groups is None:
        permutation.sort(key=lambda number: kinds[number])
        folds = [0] * len(names)
        for place, number in enumerate(permutation):
            folds[number] = place % count
        return folds
    return _folds_of_groups([str(value) for value in groups], kinds, permutation, count)


def _folds_of_groups(
    groups: Sequence[str], kinds: Sequence[str], permutation: Sequence[int], count: int
) -> list[int]:
    """Assign groups, the largest first, each to the fold that stays the most even."""
    members: dict[str, list[int]] = {}
    for number in permutation:
        members.setdefault(groups[number], []).append(number)
    names = sorted(set(kinds))
    vectors = {
        group: np.array([sum(kinds[n] == kind for n in some) for kind in names], float)
        for group, some in members.items()
    }
    totals = np.maximum(sum(vectors.values()), 1)
    sums = np.zeros((count, len(names)))
    folds = [0] * len(groups)
    # The order of equal sizes is that of the shuffle.
    for group in sorted(members, key=lambda name: -len(members[name])):
        vector = vectors[group]

        def unevenness(fold: int, vector: Any = vector) -> tuple[float, float]:
            after = sums.copy()
            after[fold] += vector
            return float((after / totals).std(axis=0).mean()), float(after[fold].sum())

        best = min(range(count), key=unevenness)
        sums[best] += vector
        for number in members[group]:
            folds[number] = best
    return folds


def _divided_image(cases: Sequence[Case], folds: Sequence[int]) -> str | None:
    """Return the first image of ``from_ome()`` whose time points are in several folds."""
    first: dict[str, int] = {}
    image: str
    for case, fold in zip(cases, folds, strict=True):
        image = case["ome"]["image"] if isinstance(case.get("ome"), Mapping) else case["case"]
        if first.setdefault(image, fold) != fold:
            return image
    return None


def _cases_in(target: Any) -> list[Case]:
    """Return the cases of a pipe, a loader or a list: names, and values as they are.

    Each ``map()`` and ``filter()`` right after the source may change them.
    """
    from torch.utils.data.datapipes.iter import Filter, Mapper

    from ...dataloader2 import DataLoader2
    from ...datapipes.case_lists import pipe_of
    from ...graph import parents_of, walk
    from ...volumes import Volume

    if isinstance(target, Volume):
        msg = f"{target.name} is one volume, and folds divide several cases"
        raise UsageError(msg, do="Give a folder, a glob in quotes, a table or a manifest.")
    target = target.datapipe if isinstance(target, DataLoader2) else target
    pipes = [*walk(pipe_of(target, None))]
    sources = [pipe for pipe in pipes if not parents_of(pipe)]
    each_case = getattr(sources[0], "each_case", None)
    if len(sources) != 1 or each_case is None:
        msg = "the cases of this chain are not known before it runs"
        raise SampleError(msg, do="Give a folder, a glob, a table or a manifest.")
    last = sources[0]
    while after := [one for one in pipes if last in parents_of(one)]:
        if not isinstance(after[0], (Filter, Mapper)):
            break
        last = after[0]
    if last is sources[0]:
        return [{**case, "case": name} for name, case in each_case()]
    return [{**sample, "case": sample.case} for sample in last]


def _as_json(case: Case) -> Case:
    """Return a case with its values as JSON; SampleError for an array or a part of a file."""
    values: Case = {"case": case["case"]}
    for key, value in case.items():
        try:
            values[key] = _json_of(value)
        except TypeError as error:
            msg = f"case {case['case']}: {key} is {error}, and a JSON list holds paths only"
            do = "Divide the images themselves, by a folder or a glob of their files. Or give "
            do += f"--format names, and keep those cases: pipe.{_FILTER}."
            raise SampleError(msg, do=do) from error
    return values


def _refuse_equal_names(cases: Sequence[Case]) -> None:
    """Raise ``SampleError`` if two cases have one name, which a list of names would mix."""
    name, count = Counter(case["case"] for case in cases).most_common(1)[0] if cases else ("", 0)
    if count > 1:
        msg = f"{count} cases have the name {name}, so names do not tell them apart"
        raise SampleError(msg, do="Give each case a name of its own, as its key 'case'.")


def _json_of(value: Any) -> Any:
    """Return a place as an absolute path or a URL without credentials; else the JSON value.

    A ``TypeError`` is raised for a value that JSON cannot hold.
    """
    from ...volumes import Volume

    if isinstance(value, Volume):
        return _place_of(value)
    if isinstance(value, Mapping):
        return {str(key): _json_of(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_of(one) for one in value]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        if is_url(value):
            return public_name(value)
        return os.path.abspath(local_path(value)) if os.path.exists(local_path(value)) else value
    if isinstance(value, np.generic):
        return _json_of(value.item())
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"of type {type(value).__name__}")


def _place_of(volume: Any) -> Any:
    """Return the path or URL of a volume that is read by its place alone; a list of its parts."""
    if volume.has_given_affine:
        raise TypeError("a volume with an affine of its own")
    if volume.axis_map_key or volume.axis_map is not None:
        raise TypeError("a part of a volume, such as some of its channels")
    source = volume.located_source
    if source is None:
        if len(volume.parts) > 1:
            return [_place_of(part) for part in volume.parts]
        raise TypeError("a volume without a path")
    options = source.options
    if options.reader is not None or options.affine is not None or options.reader_kwargs:
        texts = ", ".join(f"{key}={value!r}" for key, value in options.reader_kwargs.items())
        raise TypeError(f"a volume with options ({texts or 'reader'})")
    return source.path or public_name(source.location)


def _with_columns(cases: list[Case], place: str) -> list[Case]:
    """Return the cases with the columns of a table that names them."""
    from ...datapipes.iter import from_table

    rows = dict(from_table(place).each_case())
    if lacks := [case["case"] for case in cases if case["case"] not in rows]:
        msg = f"{place} has no row of case {lacks[0]}"
        raise SampleError(msg, do="Its column 'case' needs the name of every case.")
    return [{**rows[case["case"]], **case} for case in cases]


def _column(cases: Sequence[Case], name: str) -> list[Any]:
    for case in cases:
        if name not in case:
            near = closest(name, case, 0.5)
            have = ", ".join(case)
            do = (
                f"Did you mean {near[0]}?" if near else f"It has {have}; --table FILE adds columns."
            )
            raise UsageError(f"case {case['case']} has no column {name!r}", do=do)
    return [getattr(case[name], "name", case[name]) for case in cases]  # times share a place


def _document(cases: Sequence[Case], folds: Sequence[int], count: int, form: str) -> Any:
    pairs = list(zip(cases, folds, strict=True))
    lists = []
    for fold in range(count):
        train = [case for case, own in pairs if own != fold]
        lists.append({"train": train, "val": [case for case, own in pairs if own == fold]})
    if form == "nnunet":
        return [{part: [c["case"] for c in some] for part, some in fold.items()} for fold in lists]
    if form == "names":
        return {
            f"{part}_{number}": [case["case"] for case in some]
            for number, fold_lists in enumerate(lists)
            for part, some in fold_lists.items()
        }
    document: dict[str, Any] = {"training": [{**case, "fold": fold} for case, fold in pairs]}
    for number, fold_lists in enumerate(lists):
        document |= {f"{part}_{number}": some for part, some in fold_lists.items()}
    return document


def _write(output: Path, document: Mapping[str, Any] | list[Any], *, overwrite: bool) -> None:
    text = f"{json.dumps(document, indent=1)}\n"
    if output.exists() and not overwrite and output.read_text(encoding="utf-8") != text:
        msg = f"{output} holds another split"
        raise DestinationExists(msg, do="Give another -o FILE, or --overwrite.")
    write_whole(output, text)
