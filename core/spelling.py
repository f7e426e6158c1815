"""Right spellings of names that samples, paths, lazy patches and batches lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_OF_CASE = frozenset({"case", "case_id", "case_name", "id", "name", "patient", "subject"})
_OF_FILE = frozenset({"file", "file_name", "filename", "filepath", "path", "paths", "uri", "url"})
_OF_SAMPLE = frozenset({"epoch", "identity", "patches", "seed"})
_OF_VOLUME = frozenset({"affine", "dtype", "grid", "kind", "shape", "spacing"})
_OF_VOXELS = frozenset(
    {"all", "any", "astype", "bool", "clone", "copy", "detach", "flatten", "float", "int", "item"}
    | {"long", "max", "mean", "median", "min", "ndim", "nonzero", "numel", "numpy", "permute"}
    | {"ravel", "reshape", "size", "squeeze", "std", "sum", "to", "unique", "unsqueeze", "view"}
)


def of_sample(name: str, keys: Iterable[str]) -> str:
    """Return how a sample spells ``name``, as a clause; empty if nothing is like it.

    >>> of_sample("case", ["image"])
    'the name of the case is sample.case'
    """
    names = list(keys)
    key = repr(names[0]) if names else "KEY"
    if name in names:
        return f"write sample[{name!r}]"
    if name in _OF_CASE:
        return "the name of the case is sample.case"
    if name in _OF_SAMPLE:
        return f"it is sample.{name}"
    if name in _OF_FILE:
        return (
            f"the file is sample[{key}] before open_volume(), "
            f"and sample[{key}].volume.name after it"
        )
    if name in _OF_VOLUME:
        return f"after open_volume() it is sample[{key}].{name}"
    if name == "meta":
        return "meta is made with the batch: here it is sample.case, sample.provenance()"
    return ""


def of_error(error: BaseException) -> str:
    """Return the cure of a function that spells a name of an item otherwise; empty if unknown."""
    if isinstance(error, AttributeError):
        return _of_attribute(error.obj, str(error.name))
    if type(error) is KeyError and len(error.args) == 1:  # a sample's own error has its hint
        return _of_batch(error.args[0])
    return ""


def _of_attribute(owner: Any, name: str) -> str:
    kind = type(owner)
    if isinstance(owner, str):
        is_known = name in _OF_VOLUME | _OF_VOXELS
        return "Chain .open_volume() before it: until then a key has a path." if is_known else ""
    if hasattr(kind, "realize"):  # a lazy patch
        return _of_patch(name)
    if isinstance(owner, Mapping) and name in owner:
        return f"Write batch[{name!r}]."
    if kind is dict or kind.__name__ == "Tensor":
        return _of_batch(name)
    return ""


def _of_patch(name: str) -> str:
    if name in _OF_CASE:
        return "Write sample.case: a patch has no name of its own."
    if name in _OF_FILE:
        return "Write sample[KEY].volume.name."
    if name in _OF_VOXELS:
        return "Voxels are not read yet: put .realize() before .map(f), or map the batches."
    return ""


def _of_batch(name: object) -> str:
    if name in _OF_CASE:
        place = '["case"]'
    elif name in _OF_SAMPLE:
        place = f'["{name}"]'
    elif name in _OF_FILE:
        place = '["sources"][KEY]["file"]'
    elif name in ("affine", "spacing"):
        place = '["sources"][KEY]["affine"]'
    else:
        return ""
    return f'A batch has it for each of its items: batch["meta"][0]{place}.'
