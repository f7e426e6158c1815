"""The pipes, with their arguments, that equal MONAI's dictionary transforms.

An equal pipe returns the same values, or draws from the same distribution. docs/ops.md and
docs/values.md have a row for each with the test that proves it. Transforms with statistics of the
current voxels have no equal, because pipes use those of the whole volume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...core import Sample
from ...core.call_site import shorten
from ...core.errors import SampleError
from ...core.validate import is_number
from ...graph import Pipe
from ...spatial import Flip, Rotate, Translate, Zoom
from ...spatial.lazy.lazy_patch import patches_of

_MODES = {"bilinear": "linear", "nearest": "nearest"}
_PADDINGS = {"border": "border", "reflection": "reflection", "zeros": "zeros"}
_EAGER = "Write map_monai(..., lazy=False): then MONAI does it, on voxels."


@dataclass(frozen=True)
class EqualPipe:
    """The pipe that a transform becomes."""

    form: str  # the chained form
    arguments: Mapping[str, Any]
    moves: bool = False  # whether it moves voxels, of all volumes of a sample
    one_channel: bool = False  # whether it is equal for one channel only
    keys: tuple[str, ...] = ()  # of the transform, which is named ``of``
    of: str = ""
    sampling: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Mode and padding by their name and key, for transforms that interpolate."""

    def after(self, parent: Any, name: str) -> Pipe:
        options: dict[str, Any] = {"name": f"{name} {self.form}"} if name else {}
        for (what, key), value in self.sampling.items():
            options.setdefault(what, {})[key] = value
        if not self.moves:
            options["keys"] = self.keys
        pipe: Pipe = getattr(parent, self.form)(**self.arguments, **options)
        return pipe

    def refuse_others(self, sample: Sample) -> None:
        """Raise where MONAI would do something else to a sample than the pipe has done."""
        lazy = patches_of(sample)
        others = [key for key in lazy if key not in self.keys]
        if self.moves and others:
            msg = f"{self.of} moves {', '.join(self.keys)}, and as the pipe {self.form}() all "
            msg += f"volumes of the sample, which has {', '.join(others)} too"
            raise SampleError(msg, do=_EAGER)
        for key in self.keys:
            if self.one_channel and key in lazy and lazy[key].shape[0] != 1:
                msg = f"{self.of} of {key!r} takes its {lazy[key].shape[0]} channels together, and "
                raise SampleError(f"{msg}the pipe {self.form}() each by itself", do=_EAGER)


def split_transform(transform: Any, *, lazy: bool) -> tuple[tuple[EqualPipe, ...], Any]:
    """Return the pipes that a transform begins with, and a Compose of the rest; None if none."""
    import monai.transforms as mt

    if not callable(transform):
        msg = f"map_monai() takes a dictionary transform of MONAI, got {shorten(transform)}"
        raise SampleError(msg, do="For several write Compose([...]).")
    is_compose = isinstance(transform, mt.Compose)
    each = list(_flatten(transform, getattr(transform, "lazy", None)))
    for one in each:
        _refuse(one)
    equals = tuple(_leading_equals(each)) if lazy else ()
    rest = each[len(equals) :]
    if not rest:
        return equals, None
    if equals or not is_compose:
        # Also for one alone: a Compose runs the pending operations of a lazy transform.
        how = {"lazy": transform.lazy, "log_stats": transform.log_stats} if is_compose else {}
        return equals, mt.Compose(rest, **{"lazy": None, **how})
    return (), transform


def _flatten(transform: Any, lazy: Any) -> Iterator[Any]:
    """Yield the transforms of a Compose, and of those in it that run as it does."""
    import monai.transforms as mt

    plain = type(transform) is mt.Compose and not transform.overrides and not transform.unpack_items
    if not plain or transform.lazy != lazy:
        yield transform
        return
    for one in transform.transforms:
        yield from _flatten(one, lazy)


def _leading_equals(transforms: Sequence[Any]) -> Iterator[EqualPipe]:
    """Yield the pipes of the first transforms, up to one that has no equal."""
    sampling: dict[tuple[str, str], str] = {}
    for one in transforms:
        equal = equal_of(one)
        # A volume is interpolated once, in one mode; a transform of another mode runs in MONAI.
        if equal is None or any(sampling.get(k, v) != v for k, v in equal.sampling.items()):
            return
        sampling.update(equal.sampling)
        yield equal


def _refuse(transform: Any) -> None:
    """Raise for transforms that cannot run on one sample of voxels, also nested ones."""
    import monai.transforms as mt
    from monai.transforms.traits import MultiSampleTrait

    name = type(transform).__name__
    members = getattr(transform, "transforms", ())
    for one in members if isinstance(members, Sequence) else ():
        _refuse(one)
    if isinstance(transform, MultiSampleTrait):
        msg = f"{name} makes several samples of one, and here one sample stays one"
        do = "Write .lazy_patch(size, samples_per_volume=n) before it, with mask= or weights=: "
        raise SampleError(msg, do=f"{do}docs/coming-from.md says which is which.")
    if isinstance(transform, mt.LoadImaged):
        msg = f"{name} reads the file of a path, and a sample has voxels"
        raise SampleError(msg, do="Leave it out: open_volume() opens files.")
    is_array = type(transform).__module__.startswith("monai.transforms.")
    if is_array and type(transform).__module__.endswith(".array"):
        kind = f"{name}d" if hasattr(mt, f"{name}d") else "a dictionary transform"
        msg = f"{name} is for arrays, and map_monai() hands over samples"
        raise SampleError(msg, do=f"Write {kind}(keys, ...).")


def equal_of(transform: Any) -> EqualPipe | None:
    """Return the pipe that a transform becomes; None if there is none that does the same.

    Examples
    --------
    >>> from monai.transforms import RandGaussianSmoothd, RandScaleIntensityd
    >>> equal = equal_of(RandScaleIntensityd("image", 0.1, prob=0.5))
    >>> equal.form, equal.arguments
    ('brightness', {'factor': (0.9, 1.1), 'p': 0.5})
    >>> equal_of(RandGaussianSmoothd("image")) is None
    True
    """
    kind = type(transform)
    make = _EQUALS.get(kind.__name__) if kind.__module__.startswith("monai.transforms.") else None
    # Optional keys are unknown until a sample is read.
    if make is None or transform.allow_missing_keys:
        return None
    equal = make(transform)
    keys = tuple(map(str, transform.keys))
    return None if equal is None else replace(equal, keys=keys, of=kind.__name__)


def _moves(form: str, **arguments: Any) -> EqualPipe:
    return EqualPipe(form, arguments, moves=True)


def _values(form: str, *, one_channel: bool = False, **arguments: Any) -> EqualPipe:
    return EqualPipe(form, arguments, one_channel=one_channel)


def _interpolates(transform: Any, form: str, **arguments: Any) -> EqualPipe | None:
    """Return a pipe that samples each volume as the transform does; None if none can."""
    sampling: dict[tuple[str, str], str] = {}
    rows = zip(transform.keys, transform.mode, transform.padding_mode, strict=True)
    for key, mode, padding in rows:
        ours, outside = _MODES.get(_word(mode)), _PADDINGS.get(_word(padding))
        if ours is None or outside is None:
            return None
        sampling["mode", str(key)], sampling["padding", str(key)] = ours, outside
    return replace(_moves(form, **arguments), sampling=sampling)


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def _axes(value: Any) -> tuple[int, ...]:
    """Return the spatial axes that MONAI's argument names; None is all."""
    axes = (0, 1, 2) if value is None else value if isinstance(value, Sequence) else (value,)
    return tuple(int(axis) % 3 for axis in axes)


def _rand_flip(t: Any) -> EqualPipe:
    axes = _axes(t.flipper.spatial_axis)
    if len(axes) == 1:
        return _moves("flip", axes=axes, p=float(t.prob))
    return _moves("random_apply", ops=[Flip(axes)], p=float(t.prob))  # one draw for all axes


def _rand_rotate(t: Any) -> EqualPipe | None:
    inner = t.rand_rotate
    ranges = [inner.range_x, inner.range_y, inner.range_z]
    if not inner.keep_size or any(t.align_corners):
        return None
    return _interpolates(t, "rotate", degrees=_backward(ranges), space="voxel", p=float(t.prob))


def _rand_affine(t: Any) -> EqualPipe | None:
    inner = t.rand_affine
    grid = inner.rand_affine_grid
    kinds = ("rotate", "shear", "translate", "scale")
    turns, slides, moves, scales = (_ranges(getattr(grid, f"{kind}_range")) for kind in kinds)
    if None in (turns, slides, moves, scales) or slides or inner.spatial_size is not None:
        return None
    ops: list[Any] = []
    if turns:
        ops.append(Rotate(_backward(_three(turns)), space="voxel"))
    if moves:
        amounts: Any = tuple((-high, -low) for low, high in _three(moves))
        ops.append(Translate(amounts, space="voxel"))
    if scales:
        if any(low <= -1 for low, _ in scales):
            return None
        # MONAI draws evenly how much of the volume is seen, which is 1 / factor.
        factors: Any = tuple((1 / (1 + high), 1 / (1 + low)) for low, high in _three(scales))
        ops.append(Zoom(factors, space="voxel", by_inverse=True))
    return _interpolates(t, "random_apply", ops=ops, p=float(t.prob)) if ops else None


def _ranges(values: Any) -> list[tuple[float, float]] | None:
    """Return the range of each number that MONAI draws; None where it draws otherwise."""
    if not isinstance(values, (list, tuple)):
        return [] if values is None else None
    numbers = [value for value in values if value is not None]  # which it passes over, too
    each = [value if isinstance(value, Sequence) else (-value, value) for value in numbers]
    return [(float(min(ends)), float(max(ends))) for ends in each]


def _three(ranges: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [*ranges, (0.0, 0.0), (0.0, 0.0)][:3]


def _backward(radians: Sequence[Any]) -> Any:
    """Return in degrees how content turns where the grid turns by ranges in radians."""
    return tuple((-math.degrees(max(ends)), -math.degrees(min(ends))) for ends in radians)


def _orientation(t: Any) -> EqualPipe | None:
    inner = t.ornt_transform
    if [tuple(pair) for pair in inner.labels or _LETTERS] != _LETTERS:
        return None
    codes = {} if inner.as_closest_canonical else {"axcodes": inner.axcodes}
    return _moves("orientation", **codes)


_LETTERS = [("L", "R"), ("P", "A"), ("I", "S")]  # of axes in RAS, MONAI's default for long


def _spacing(t: Any) -> EqualPipe | None:
    inner = t.spacing_transform
    sizes = np.ravel(inner.pixdim)
    limits = np.concatenate([np.ravel(inner.min_pixdim), np.ravel(inner.max_pixdim)])
    special = [inner.diagonal, inner.recompute_affine, *t.scale_extent, *t.align_corners]
    if any(special) or not np.isnan(limits.astype(float)).all() or not (sizes > 0).all():
        return None
    mm = tuple(map(float, sizes)) if sizes.size == 3 else (float(sizes[0]),) * 3
    fits = sizes.size in (1, 3)
    return _interpolates(t, "spacing", spacing=mm, extent="centers") if fits else None


def _center_crop(t: Any) -> EqualPipe | None:
    size = _size(t.cropper.roi_size)
    return None if size is None else _moves("center_crop", size=size, side="center")


def _rand_crop(t: Any) -> EqualPipe | None:
    inner, size = t.cropper, _size(t.cropper.roi_size)
    plain = inner.random_center and not inner.random_size and inner.max_roi_size is None
    return _moves("random_crop", size=size) if plain and size is not None else None


def _size(value: Any) -> tuple[int, int, int] | None:
    sizes = np.ravel(value)
    if sizes.size not in (1, 3) or not (sizes > 0).all():
        return None  # 0 and below mean the size of the volume
    i, j, k = (int(n) for n in np.broadcast_to(sizes, 3))
    return i, j, k


def _normalize(t: Any) -> EqualPipe | None:
    inner = t.normalizer
    has_numbers = is_number(inner.subtrahend) and is_number(inner.divisor)
    if not has_numbers or inner.nonzero or inner.channel_wise or not _is_float32(inner):
        return None
    return _values("normalize", mean=float(inner.subtrahend), std=float(inner.divisor))


def _scale_range(t: Any) -> EqualPipe | None:
    inner = t.scaler
    numbers = (inner.a_min, inner.a_max, inner.b_min, inner.b_max)
    if not all(map(is_number, numbers)) or not _is_float32(inner):
        return None
    low, high, out_low, out_high = map(float, numbers)
    if low >= high or out_low >= out_high:
        return None
    out, ends = (out_low, out_high), (low, high)
    return _values("rescale", out_range=out, in_range=ends, clamp=bool(inner.clip))


def _rand_shift(t: Any) -> EqualPipe | None:
    if not _is_plain_shift(t) or t.shifter.channel_wise:
        return None
    return _values("brightness", add=_pair(t.shifter.offsets), p=float(t.prob))


def _is_plain_shift(t: Any) -> bool:
    inner = getattr(t.shifter, "_shifter", t.shifter)
    return not inner.safe and not any(t.factor_key)


def _rand_scale(t: Any) -> EqualPipe | None:
    if t.scaler.channel_wise or not _is_float32(t.scaler):
        return None
    low, high = _pair(t.scaler.factors)
    return _values("brightness", factor=(1 + low, 1 + high), p=float(t.prob))


def _rand_noise(t: Any) -> EqualPipe | None:
    inner = t.rand_gaussian_noise
    if len(t.keys) != 1 or not _is_float32(inner):
        return None  # several volumes get the very same noise there
    std = float(inner.std)
    amount = (0.0, std) if inner.sample_std else std
    return _values("noise", std=amount, mean=float(inner.mean), p=float(t.prob))


def _rand_gamma(t: Any) -> EqualPipe | None:
    inner = t.adjuster
    how: dict[str, Any] = {"invert": bool(inner.invert_image), "statistics_over": "patch"}
    how |= {"keep_statistics": bool(inner.retain_stats), "p": float(t.prob)}
    return _values("gamma", one_channel=True, gamma=_pair(inner.gamma), **how)


def _pair(values: Any) -> tuple[float, float]:
    low, high = values
    return float(low), float(high)


def _is_float32(inner: Any) -> bool:
    return inner.dtype is not None and np.dtype(inner.dtype) == np.float32


_EQUALS: dict[str, Callable[[Any], EqualPipe | None]] = {
    "Flipd": lambda t: _moves("flip", axes=_axes(t.flipper.spatial_axis)),
    "RandFlipd": _rand_flip,
    "RandAxisFlipd": lambda t: _moves("flip", exactly_one=True, p=float(t.prob)),
    "Rotate90d": lambda t: _moves(
        "rotate90", k=int(t.rotator.k), axes=_axes(t.rotator.spatial_axes)
    ),
    "RandRotate90d": lambda t: _moves(
        "rotate90", k=(1, int(t.max_k)), axes=_axes(t.spatial_axes), p=float(t.prob)
    ),
    "RandRotated": _rand_rotate,
    "RandAffined": _rand_affine,
    "Orientationd": _orientation,
    "Spacingd": _spacing,
    "CenterSpatialCropd": _center_crop,
    "RandSpatialCropd": _rand_crop,
    "NormalizeIntensityd": _normalize,
    "ScaleIntensityRanged": _scale_range,
    "ShiftIntensityd": lambda t: (
        _values("brightness", add=float(t.shifter.offset)) if _is_plain_shift(t) else None
    ),
    "RandShiftIntensityd": _rand_shift,
    "RandScaleIntensityd": _rand_scale,
    "RandGaussianNoised": _rand_noise,
    "RandAdjustContrastd": _rand_gamma,
}
