"""MONAI's chain for organs in CT, and two views of one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.extensions.recipes import monai_segmentation, two_views
from voxpipe.graph import chain_code, fingerprint


def ct_cases(count: int = 3) -> Any:
    cases = []
    for number in range(count):
        random = np.random.default_rng(number)
        label = np.zeros((24, 24, 24), np.uint8)
        label[9:13, 9:13, 9:13] = 1
        image = random.normal(40, 60, label.shape).astype(np.float32)
        cases.append({"image": image, "label": label, "case": f"c{number}"})
    return vp.from_cases(cases)


def test_monai_s_chain_has_as_many_patches_about_labels() -> None:
    """Values from 0 to 1 but for the shift, half of the middles in the label, both kinds drawn."""
    pipe = monai_segmentation(ct_cases(), (8, 8, 8), spacing=(1, 1, 1), samples_per_volume=20)
    middles = []
    for batch in vp.DataLoader2(pipe, None, seed=1):
        assert batch["image"].shape == (4, 1, 8, 8, 8)
        assert -0.1 <= batch["image"].min()
        assert batch["image"].max() <= 1.1
        middles += [meta["draws"]["lazy_patch"]["class"] for meta in batch["meta"]]

    assert 15 < sum(map(bool, middles)) < 45
    assert "not fused" not in pipe.explain()
    plain = monai_segmentation(ct_cases(), (8, 8, 8), augment=False)
    assert "flip" not in plain.explain()


def places(pipe: Any) -> list[Any]:
    return [
        (batch["meta"][n]["case"], batch["meta"][n]["draws"]["lazy_patch"]["start"])
        for batch in vp.DataLoader2(pipe, None, seed=2)
        for n in range(len(batch["meta"]))
    ]


def test_views_are_of_one_place() -> None:
    """Without augmentation both are the same voxels; with it they differ, in every patch."""
    same = two_views(ct_cases(), (8, 8, 8), view=lambda pipe: pipe)
    for batch in vp.DataLoader2(same, None, seed=2):
        assert (batch["view_1"] == batch["view_2"]).all()
    other = two_views(ct_cases(), (8, 8, 8))
    for batch in vp.DataLoader2(other, None, seed=2):
        assert (batch["view_1"] != batch["view_2"]).flatten(1).any(1).all()
    assert places(same) == places(other)


def test_views_keep_the_values_of_the_file_on_request() -> None:
    """By default they are normalized, over all channels."""
    voxels = np.stack([np.arange(512.0).reshape(8, 8, 8), np.zeros((8, 8, 8))])
    how: dict[str, Any] = {"view": lambda pipe: pipe, "samples_per_volume": 1, "batch_size": 1}
    [usual] = two_views([{"image": voxels}], (8, 8, 8), **how)
    [plain] = two_views([{"image": voxels}], (8, 8, 8), **how, normalize=False)

    np.testing.assert_array_equal(plain["view_1"][0], voxels)
    expected = (voxels - voxels.mean()) / voxels.std()
    np.testing.assert_allclose(usual["view_2"][0], expected, atol=1e-5)


def test_explain_says_what_a_fork_shares() -> None:
    """And what a patch of both branches costs; voxels wait where they were made before it."""
    text = two_views(ct_cases(), (8, 8, 8)).explain()
    assert "6 fork(…)[0]" in text
    assert "per patch: 2 reads" in text
    assert "fork(2): its branches share one pass over what is before it; up to 1000 items" in text
    assert "as plans, without voxels" in text
    one, other = ct_cases().open_volume().lazy_patch(8).realize().fork(2, buffer_size=7)
    assert (
        "up to 7 items wait for the slowest, with their voxels"
        in one.zip(other).map(side_by_side).batch_patches(2).explain()
    )


def side_by_side(pair: Any) -> Any:
    return pair[0]


def test_views_are_the_same_with_workers_and_after_a_resume() -> None:
    """A pure function of seed, epoch and number of the batch."""
    pipe = two_views(ct_cases(2), (8, 8, 8), samples_per_volume=4)

    def sums(loader: Any) -> list[float]:
        return [float(b["view_1"].double().sum() - 2 * b["view_2"].double().sum()) for b in loader]

    alone = sums(vp.DataLoader2(pipe, None, seed=3))
    loader = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(1, "fork"), seed=3)
    it = iter(loader)
    first = next(it)
    state = loader.state_dict()
    rest = sums(it)
    loader.shutdown()
    again = vp.DataLoader2(pipe, None, seed=3)
    again.load_state_dict(state)

    assert sums([first]) + rest == alone
    assert sums(again) == alone[1:]


def files(folder: Path) -> Any:
    for key in ("image", "label"):
        (folder / key).mkdir()
        for case in ct_cases():
            np.save(folder / key / f"{case.case}.npy", case[key])
    return vp.list_cases(image=f"{folder}/image/*.npy", label=f"{folder}/label/*.npy")


def test_what_is_printed_is_the_chain(tmp_path: Path) -> None:
    """Pasted into an empty module, the text makes the same batches; branches too."""
    source = files(tmp_path)
    for pipe in (monai_segmentation(source, (8, 8, 8)), two_views(source, (8, 8, 8))):
        names: dict[str, Any] = {}
        exec(str(pipe), names)
        assert fingerprint(names["pipe"]) == fingerprint(pipe)
        assert places(names["pipe"]) == places(pipe)


def test_a_lambda_and_arrays_are_left_out_with_their_words() -> None:
    """``...`` stands for them, and behind it what the pipe is."""
    pipe = two_views(ct_cases(), view=lambda pipe: pipe.map(lambda sample: sample))
    lines = str(pipe).splitlines()
    assert sum(".map(...)  # map(<lambda> test_other_recipes.py:" in line for line in lines) == 2
    assert "{'image': ..., 'label': ..., 'case': 'c0'}" in str(pipe)


@dataclass(frozen=True)
class Scale:
    factors: Any
    token: str = field(default="", repr=False)

    def __call__(self, sample: Any) -> Any:
        return sample


def test_no_credentials_are_printed_and_arrays_do_no_harm() -> None:
    """Of URLs, of options, and of fields that a class keeps out of its ``repr``."""
    secret = "https://me:s3cret@host/a.nii?sig=s3cret"
    options = {"key": "s3cret"}
    pipe = IterableWrapper([secret]).map(Scale(np.ones(3), "s3cret")).map(Scale(np.float32(2)))
    text = chain_code(pipe) + str(
        vp.from_cases([{"image": secret}]).open_volume(storage_options=options)
    )

    listing = vp.list_cases(
        "https://host/*/", image="ct.nii?sig=s3cret", optional="image", storage_options=options
    )
    line = (
        "vp.list_cases('https://host/*/', image='ct.nii', optional=('image',), storage_options=...)"
    )
    assert line in str(listing)
    assert "s3cret" not in text + str(listing)
    assert "IterableWrapper(['https://host/a.nii'])" in text
    assert "Scale(..., token=...)" in text
    assert "Scale(np.float32(2.0))" in text
    hidden = IterableWrapper([]).map(Scale(np.str_(secret))).map(Scale(secret.encode()))
    assert "s3cret" not in chain_code(hidden)
    assert "Scale('https://host/a.nii')" in chain_code(hidden)
    assert "open_volume(storage_options=...)" in text
