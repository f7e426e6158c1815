"""What every value pipe promises in a chain: a row in the docs, fusion or a name, equal patches."""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from manifests import index_cases, write_manifest
from tables import names_of_tests, proofs_of, rows_of

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes import values
from voxpipe.datapipes.cost import explain
from voxpipe.intensity import Brightness
from voxpipe.volumes import close_volumes

SHAPE = (22, 18, 12)
ARGUMENTS: dict[str, dict[str, Any]] = {
    "anisotropy": {"factor": 2.5, "axes": 1},
    "bias_field": {"strength": 0.5},
    "blur": {"sigma": 1.0},
    "brightness": {"factor": 1.5, "add": -3},
    "clamp": {"low": 0, "high": 500},
    "contrast": {"factor": 1.5},
    "drop_boxes": {"size": 3, "fraction": 0.2},
    "drop_channels": {"p_channel": 0.5},
    "drop_component": {"max_fraction": 0.5, "keys": "label"},
    "gamma": {"gamma": 1.5},
    "low_resolution": {"factor": 1.7},
    "map_values": {"function": np.sqrt},
    "mean_of_channels": {},
    "noise": {"std": 10},
    "normalize": {},
    "one_hot": {"classes": (0, 1)},
    "per_channel": {"op": Brightness((0.5, 2))},
    "random_morphology": {"radius": 1, "keys": "label"},
    "regions": {"classes": ((1,), (0, 1))},
    "remap_labels": {"mapping": {1: 2}},
    "rescale": {},
    "rescale_percentiles": {"lower": 1, "upper": 99},
    "rician_noise": {"std": 10},
    "select_channels": {"indices": (0,)},
    "sharpen": {"sigma": 1.0},
}
"""Every value pipe, and something that it does."""
LATE = {"anisotropy", "blur", "low_resolution", "map_values", "sharpen"}
LATE |= {"drop_component", "random_morphology"}
"""Those that cannot wait until after a later spatial pipe."""
OPS = {
    one.op_class.name: one.op_class
    for one in vars(values).values()
    if getattr(one, "op_class", None) is not None and issubclass(one, values.ValuePipe)
}


def opened() -> Any:
    """A chain of one case: image and label on unequal voxels."""
    image = np.random.default_rng(0).integers(0, 900, SHAPE).astype(np.int16)
    affine = np.diag([1.0, 1.2, 2.0, 1.0])
    volumes = {
        "image": vp.Volume(image, affine=affine),
        "label": vp.Volume((image > 400).astype(np.uint8), affine=affine, kind="label"),
    }
    return vp.from_cases([volumes]).open_volume()


def having(pipe: Any, name: str) -> Any:
    """Return the chain with one value pipe more."""
    return getattr(pipe, name)(**ARGUMENTS[name])


def test_every_pipe_is_here_in_the_docs_and_under_the_contract() -> None:
    """A row in docs/values.md, a subclass of ValueOpContract: none is forgotten."""
    rows = (ROOT / "docs" / "values.md").read_text("utf-8")
    made = set()
    for file in (ROOT / "tests" / "intensity").glob("test_*.py"):
        if "ValueOpContract" in (source := file.read_text("utf-8")):
            made |= {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}

    assert set(ARGUMENTS) == set(OPS), "each value pipe has an entry in ARGUMENTS of this file"
    for name, op in OPS.items():
        assert f"| `{name}(" in rows, f"{name} has no row in docs/values.md"
        assert op.__name__ in made, f"no ValueOpContract in tests/intensity makes a {op.__name__}"
        # Of one that holds another op it is a matter of that.
        commutes = op(Brightness(2)).commutes if name == "per_channel" else op.commutes
        assert commutes == (name not in LATE), f"LATE of this file is wrong about {name}"


def test_every_pipe_has_a_proof_beside_the_peers() -> None:
    """A row that names a test that there is; none where the row says that it is no equal."""
    rows = rows_of(ROOT / "docs" / "values.md", "proved by")
    proved = " ".join(row[2] for row in rows if proofs_of(row))

    assert {name for name in OPS if not re.search(rf"\b{name}\b", proved)} == set()
    for row in rows:
        assert ("is the nearest" in row[2]) != bool(proofs_of(row)), row
        assert proofs_of(row) <= names_of_tests(), row


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_what_commutes_fuses_and_what_does_not_is_named(name: str) -> None:
    """Image and label are interpolated once each; else the image twice, and explain() says why."""
    pipe = having(opened().rotate(10), name).rotate(5).batch_patches(1)
    before = IO_COUNTERS.snapshot()

    list(pipe)
    done = IO_COUNTERS.snapshot() - before
    text = explain(pipe)

    assert done.interpolations == (3 if name in LATE else 2)
    key = "label" if ARGUMENTS[name].get("keys") else "image"
    assert (f"not fused: {key} is sampled anew after {name} at" in text) == (name in LATE)
    assert ("not fused" in text) == (name in LATE)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_patches_that_overlap_agree(name: str, turned: bool) -> None:
    """A value pipe before the patches are cut gives a voxel one value, whichever patch it is in."""
    pipe = having(opened().rotate((0, 0, 20)) if turned else opened(), name)
    key = "label" if name in ("one_hot", "remap_labels") else "image"
    whole = next(iter(pipe))[key].realize()
    patches = [s[key] for s in pipe.lazy_patch((9, 8, 6), sampling="grid", overlap=(4, 3, 2))]
    total, times = np.zeros(whole.shape), np.zeros(whole.shape)
    squares = np.zeros(whole.shape)

    for patch in patches:
        start = np.rint(np.linalg.solve(next(iter(pipe))[key].affine, patch.affine)[:3, 3])
        place = tuple(slice(int(a), int(a) + n) for a, n in zip(start, (9, 8, 6), strict=True))
        found = patch.realize().astype(float)
        total[(slice(None), *place)] += found
        squares[(slice(None), *place)] += found**2
        times[(slice(None), *place)] += 1

    assert (times >= 1).all()
    assert (times > 1).mean() > 0.5
    spread = squares / times - (total / times) ** 2
    assert np.abs(spread).max() < 1e-3 * max(1.0, np.abs(whole).max())


def test_normalize_takes_given_recorded_and_masked_numbers(tmp_path: Any) -> None:
    """Given ones read nothing, a catalog's nothing, those of the volume once, then never again."""
    import nibabel

    image = np.random.default_rng(1).integers(0, 900, SHAPE).astype(np.int16)
    for key, array in (("ct", image), ("seg", (image > 400).astype(np.uint8))):
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / f"{key}.nii")
    listed = vp.from_cases([{k: str(tmp_path / f"{k}.nii") for k in ("ct", "seg")}])

    def reads(pipe: Any) -> tuple[int, Any]:
        sample = next(iter(pipe))
        before = IO_COUNTERS.snapshot()
        found = np.asarray(sample["ct"])
        return (IO_COUNTERS.snapshot() - before).bytes_read, found

    patch = 6**3 * 2
    given, _ = reads(listed.open_volume().crop((0, 0, 0), 6).normalize(100, 50))
    first, found = reads(listed.open_volume().crop((0, 0, 0), 6).normalize())
    second, again = reads(listed.open_volume().crop((0, 0, 0), 6).normalize())
    _, masked = reads(listed.open_volume().crop((0, 0, 0), 6).normalize(inside="seg"))
    from voxpipe.dataloader2 import volumes_of

    manifest, _ = index_cases(volumes_of(listed))
    write_manifest(manifest, tmp_path / "m.json")
    recorded = vp.from_manifest(tmp_path / "m.json").open_volume().crop((0, 0, 0), 6)
    catalogued, same = reads(recorded.normalize())
    close_volumes()
    cut, inside = image[:6, :6, :6].astype(float), image[image > 400].astype(float)

    assert given == second == catalogued == patch
    assert first > patch
    assert np.array_equal(found, again)
    assert np.allclose(found[0], (cut - image.mean()) / image.std(), atol=1e-5)
    assert np.allclose(found, same, atol=1e-6)
    assert np.allclose(masked[0], (cut - inside.mean()) / inside.std(), atol=1e-5)


def test_statistics_are_those_of_what_the_pipe_is_given() -> None:
    """clamp().normalize() is what the words say; normalize().clamp() takes all voxels."""
    image = np.asarray(next(iter(opened()))["image"]).astype(np.float64)
    clamped = np.clip(image, 100, 500)

    after = np.asarray(next(iter(opened().clamp(100, 500).normalize()))["image"])
    before = np.asarray(next(iter(opened().normalize().clamp(-1, 1)))["image"])

    assert np.allclose(after, (clamped - clamped.mean()) / clamped.std(), atol=1e-5)
    assert np.allclose(before, np.clip((image - image.mean()) / image.std(), -1, 1), atol=1e-5)


def test_a_bias_field_turns_with_the_content_and_stays_under_a_displacement() -> None:
    """It is the coil's: elastic anatomy moves below it; after a flush it is part of the anatomy."""
    moves = {"amount": 3, "spacing": 12}

    def field(pipe: Any) -> Any:
        torch.manual_seed(3)  # a pass over a chain draws its seed from torch
        ones = np.ones((30, 30, 30), np.float32)
        return np.asarray(next(iter(pipe(vp.from_cases([{"image": ones}]).open_volume())))["image"])

    plain = field(lambda p: p.bias_field(0.5))
    elastic = field(lambda p: p.bias_field(0.5).elastic(**moves))
    flushed = field(lambda p: p.bias_field(0.5).flush().elastic(**moves))
    turned = field(lambda p: p.bias_field(0.5).rotate90(1, (0, 1)))

    assert np.allclose(plain, elastic, rtol=1e-5)
    assert np.allclose(turned, np.rot90(plain, 1, (1, 2)), rtol=1e-4)
    assert not np.allclose(plain, flushed, rtol=1e-2)
