"""What makes no sense is refused in words, before anything is opened where that can be known."""

import warnings

import nibabel as nib
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import (
    DestinationExists,
    NotFinite,
    PatchSizeError,
    SampleError,
    VolumeError,
    VolumeNotFound,
)
from voxpipe.stitching.windows import WindowPlace

ZEROS = np.zeros((8, 8, 8), np.float32)


def never(batch):
    raise AssertionError("the model ran")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mirror": (-1,)}, ValueError, "mirror is 0, 1 or 2, or .*several"),
        ({"mirror": (3,)}, ValueError, "mirror is 0, 1 or 2, or .*several"),
        ({"patch": (8, 8)}, PatchSizeError, "two numbers are a size of 2-D data"),
        ({"patch": (8, 8, None)}, PatchSizeError, "patch is a whole number"),
        ({"patch": 0}, PatchSizeError, "patch is a whole number"),
        ({"overlap": "half"}, PatchSizeError, "overlap is a share"),
        ({"dtype": "like"}, ValueError, "dtype is a type of real numbers.*'like'"),
        ({"dtype": "U3"}, ValueError, "dtype is a type of real numbers.*'U3'"),
        ({"dtype": torch.bfloat16}, ValueError, "dtype is a type of real numbers"),
        ({"dtype": "complex64"}, ValueError, "dtype is a type of real numbers"),
        ({"destination": "a\0b.nii"}, VolumeError, "a null byte in its name"),
        ({"destination": "out/"}, VolumeError, r'a folder.*\n(.*\n)*.*"out/\{case\}.nii.gz"'),
        ({"destination": "{case}_{key}.nii"}, VolumeError, r"only \{case\} stands for something"),
    ],
)
def test_before_the_model_runs(arguments, error, message):
    """Each error says what was given, and what is right."""
    with pytest.raises(error, match=message):
        vp.predict(never, ZEROS, **{"patch": 8, **arguments})


@pytest.mark.parametrize("channels", [1, 0])
def test_a_wrong_size_is_told_before_what_comes_after_it(channels):
    """Of the window for which it came, whatever its numbers are."""
    size = 8 if not channels else 4

    def wrong(batch):
        return torch.full((1, channels, size, size, size), torch.nan)

    with pytest.raises(PatchSizeError, match="a window of 8x8x8 voxels has the shape"):
        vp.predict(wrong, ZEROS, patch=8, output="logits")


def test_what_adding_a_window_raised_comes_before_the_next_window():
    """A model whose second output is NaN does not hide that the first could not be written."""

    class Full:
        shape = (1, 16, 8, 8)

        def __setitem__(self, place, voxels):
            raise OSError("no room")

    numbers, scan = iter([0.0, torch.nan]), np.zeros((16, 8, 8), np.float32)

    def model(batch):  # what it gives is nobody else's, so that adding it takes its time
        return torch.full((1, 2, 8, 8, 8), next(numbers))

    with pytest.raises(OSError, match="no room"):
        vp.predict(model, scan, Full(), patch=8, overlap=0)


def test_what_is_wrong_with_a_model_names_the_case():
    """One channel has no argmax; an error of its own keeps its class."""
    with pytest.raises(SampleError, match="one channel, whose argmax is 0 everywhere"):
        vp.predict(lambda batch: batch, ZEROS, patch=8)
    chain = vp.from_cases([{"case": "anna", "image": ZEROS}]).open_volume()
    with pytest.raises(ZeroDivisionError) as error:
        vp.predict(lambda batch: 1 / 0, chain, patch=8)
    assert error.value.__notes__[0] == "in case anna"


@pytest.mark.parametrize("options", [{}, {"output": "softmax", "dtype": "uint8"}])
def test_nan_becomes_no_label(options):
    """Nor another whole number; the error names case and window, and float results keep it."""

    def model(batch):
        return torch.cat([batch, 1 - batch], 1)

    scan = ZEROS.copy()
    scan[1, 2, 5] = np.nan
    chain = vp.from_cases([{"case": "anna", "image": scan}]).open_volume()
    window = r"NaN for the window of 4x4x4 voxels at \(0, 0, 4\), 2 of 128 numbers"
    with pytest.raises(SampleError, match=rf"{window}.*\n  in case anna\n") as error:
        vp.predict(model, chain, patch=4, overlap=0, **options)
    assert str(error.value).count("anna") == 1
    with pytest.warns(NotFinite, match=rf"{window}, in case anna.*weights"):
        kept = vp.predict(model, chain, patch=4, overlap=0, output="logits")["anna"].numpy()
    assert np.argwhere(np.isnan(kept)).tolist() == [[0, 1, 2, 5], [1, 1, 2, 5]]


def gives(number):
    """Return a model of two classes, the second of which is this number everywhere."""
    return lambda batch: torch.cat([batch, torch.full_like(batch, number)], 1)


def test_infinite_shares_are_no_label():
    """The largest of infinite numbers is a class; their share of each other is none."""
    with pytest.warns(NotFinite, match="infinite numbers"):
        assert (vp.predict(gives(np.inf), ZEROS, patch=8).numpy() == 1).all()
    chain = vp.from_cases([{"image": ZEROS}]).open_volume().spacing(0.7)
    with (
        pytest.warns(NotFinite),
        pytest.raises(SampleError, match="no class is the largest"),
    ):
        vp.predict(gives(np.inf), chain, patch=8)


@pytest.mark.parametrize(
    ("number", "output", "warned"),
    [
        *[(np.inf, "softmax", True), (np.nan, "sigmoid", True), (-np.inf, "logits", True)],
        *[(-np.inf, "softmax", False), (-np.inf, "argmax", False), (1.0, "logits", False)],
    ],
)
def test_what_is_not_finite_is_told_once_for_each_case(number, output, warned):
    """Whatever the number of windows, at the line of the user; a class that cannot be is fine."""
    cases = [{"image": ZEROS, "case": name} for name in ("anna", "bea")]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        vp.predict(gives(number), cases, patch=4, output=output)
    assert [str(one.message).count("in case anna") for one in told] == ([1, 0] if warned else [])
    assert {one.filename for one in told} <= {__file__}


@pytest.mark.parametrize(("number", "output"), [(np.nan, "softmax"), (np.inf, "logits")])
def test_stitch_tells_of_it_too(number, output):
    """At the line of the pipe."""
    chain = vp.from_cases([{"case": "anna", "image": ZEROS}]).open_volume()
    chain = chain.lazy_patch(4, sampling="grid").batch_patches(2)
    chain = chain.map(gives(number), "image", "p").stitch("p", output=output)
    with pytest.warns(NotFinite, match="in case anna") as told:
        list(chain)
    assert [one.filename for one in told] == [__file__]


@pytest.mark.parametrize("source", ["gone/scan.nii.gz", ["gone/scan.nii.gz"], "gone/*.nii.gz"])
def test_errors_name_the_call_and_no_pipe_that_nobody_wrote(source):
    """Reading and stitching alike."""
    with pytest.raises(VolumeNotFound, match=r"\n  at vp.predict\(never, .*test_mistakes") as error:
        vp.predict(never, source, patch=4)
    assert not any(word in str(error.value) for word in ("lazy_patch", "list_cases", "open_volume"))
    with pytest.raises(PatchSizeError, match=r"in case 0\n  at vp.predict\(<lambda>, \.\.\.\)"):
        vp.predict(lambda batch: batch[..., :2], ZEROS, patch=4)


def test_errors_of_pipes_that_somebody_wrote_name_them():
    """A chain keeps its lines."""
    chain = vp.from_cases([{"image": "gone/scan.nii"}]).open_volume()
    chain = chain.lazy_patch(4, sampling="grid")
    with pytest.raises(VolumeNotFound, match=r"at \.lazy_patch\(4, sampling='grid'\)"):
        vp.predict(never, chain)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, "scan.nii"), "a model, then a source, got None and 'scan.nii'"),
        (("scan.nii", never), "a model, then a source, got 'scan.nii' and never"),
        ((never, None), "a model, then a source, got never and None"),
        ((never, never), "a model, then a source, got never and never"),
    ],
)
def test_model_and_source_have_their_places(arguments, message):
    """Nothing, or the one in the place of the other, is told at once."""
    with pytest.raises(SampleError, match=message):
        vp.predict(*arguments)


@pytest.mark.parametrize(
    ("argument", "ours"),
    [
        *[("roi_size", "patch"), ("sw_batch_size", "batch_size"), ("mode", "blend")],
        *[("mirror_axes", "mirror"), ("overlaps", "overlap")],
    ],
)
def test_an_argument_of_monai_is_told_with_ours(argument, ours):
    """As pipes do."""
    with pytest.raises(TypeError, match=f"predict.. has no argument {argument!r}; .* {ours!r}"):
        vp.predict(never, ZEROS, **{argument: 8})


def test_an_array_in_the_place_of_the_path():
    """Saving says which of the two comes first."""
    with pytest.raises(TypeError, match=r"destination first, .*got a ndarray first: write"):
        vp.save(ZEROS, "a.nii")


def test_a_case_that_is_not_among_the_results():
    """The error is a KeyError that names those that are, the nearest first."""
    cases = [{"image": ZEROS, "case": f"patient{n}"} for n in range(12)]
    results = vp.predict(lambda batch: batch, cases, patch=8, output="logits")
    with pytest.raises(KeyError) as error:
        results["patient11.nii.gz"]
    assert str(error.value).startswith(
        "there is no case 'patient11.nii.gz'; there are 'patient11', "
    )
    assert str(error.value).endswith("and 4 more\n  Did you mean 'patient11'?")
    assert results.get("anna") is None


@pytest.mark.parametrize("batch_size", [1, 2])
def test_results_are_told_by_the_names_of_cases(batch_size):
    """Two of one name would be one, in one mapping or in two; the model runs for none of both."""
    ran = []

    def model(batch):
        ran.append(len(batch))
        return batch

    chain = vp.from_cases([{"case": "anna", "image": ZEROS}] * 2).open_volume()
    chain = chain.lazy_patch(8, sampling="grid")
    with pytest.raises(SampleError, match="two cases are called 'anna'"):
        vp.predict(model, chain, output="logits", batch_size=batch_size)
    assert sum(ran) < 2
    batches = chain.batch_patches(batch_size).map(lambda image: image, "image", "same")
    with pytest.raises(SampleError, match="two cases are called 'anna'"):
        list(batches.stitch("same", output="logits"))


@pytest.mark.parametrize("mirror", [1, (1,), (1, 1)])
def test_an_axis_that_is_mirrored(mirror):
    """One axis is as good as a list of it, and counts once."""
    ways = []

    def model(batch):
        ways.append(batch)
        return batch

    scan = np.arange(8**3, dtype=np.float32).reshape(8, 8, 8)
    vp.predict(model, scan, patch=8, mirror=mirror, output="logits")
    assert len(ways) == 2
    assert (ways[0].flip(3) == ways[1]).all()


@pytest.mark.parametrize("way", ["predict", "stitch"])
def test_a_model_that_leaves_rows_out(way):
    """The error has both numbers."""
    chain = vp.from_cases([{"image": ZEROS}]).open_volume()
    batches = chain.lazy_patch(4, sampling="grid").batch_patches(4)
    stitched = batches.map(lambda image: image[:3], "image", "p").stitch("p")
    runs = {
        "predict": lambda: vp.predict(lambda batch: batch[:3], batches),
        "stitch": lambda: list(stitched),
    }
    with pytest.raises(SampleError, match="3 rows for a batch of 4 windows"):
        runs[way]()


@pytest.mark.parametrize(
    ("classes", "dtype", "fits"),
    [
        *[(256, "uint8", True), (257, "uint8", False), (128, "int8", True), (129, "int8", False)],
        *[(300, "float16", True), (2, "bool", True), (3, "bool", False), (300, None, True)],
    ],
)
def test_labels_fit_their_type(classes, dtype, fits):
    """The last of the classes comes out as it is, or is refused; it never becomes another."""

    def model(batch):
        found = torch.zeros((len(batch), classes, *batch.shape[2:]))
        found[:, -1] = 1
        return found

    if fits:
        found = vp.predict(model, ZEROS[:2, :2, :2], patch=2, dtype=dtype).numpy()
        assert (found == classes - 1).all()
        return
    with pytest.raises(ValueError, match=f"cannot hold the labels of {classes} classes"):
        vp.predict(model, ZEROS[:2, :2, :2], patch=2, dtype=dtype)


def test_types_of_torch():
    """They are as good as those of NumPy."""
    found = vp.predict(torch.nn.Identity(), ZEROS, patch=8, output="logits", dtype=torch.float16)
    assert found.numpy().dtype == np.float16


class Stateful(torch.nn.Module):
    """Keeps something that is no tensor."""

    def __init__(self, word):
        super().__init__()
        self.word = word

    def get_extra_state(self):
        return {"word": self.word}

    def set_extra_state(self, state):
        self.word = state["word"]

    def forward(self, batch):
        return batch


def test_a_module_with_state_of_its_own(tmp_path):
    """It counts among what a run is known by."""
    nib.save(nib.Nifti1Image(ZEROS, np.eye(4)), tmp_path / "scan.nii")
    named = {"patch": 8, "output": "logits", "run": "stateful"}
    how = (str(tmp_path / "scan.nii"), tmp_path / "out.nii")
    vp.predict(Stateful("a"), *how, **named)
    vp.predict(Stateful("a"), *how, **named)
    with pytest.raises(FileExistsError, match="there already"):
        vp.predict(Stateful("b"), *how, **named)


def test_a_field_that_is_drawn_behind_the_grid():
    """Each window would be bent by itself: refused, though matrix and shape are the same."""
    chain = vp.from_cases([{"image": np.zeros((16, 16, 16), np.float32)}]).open_volume()
    bent = chain.lazy_patch(8, sampling="grid").elastic(1.0, spacing=4.0)
    with pytest.raises(SampleError, match="behind lazy_patch"):
        vp.predict(lambda batch: batch, bent)
    before = chain.elastic(1.0, spacing=4.0).lazy_patch(8, sampling="grid")
    assert vp.predict(lambda batch: batch, before, output="logits")["0"].shape == (1, 16, 16, 16)


def test_a_grid_that_leads_a_voxel_away_at_its_far_corner():
    """What differs by little in each entry, and by a voxel where it counts, is another grid."""
    turned = np.eye(4)
    turned[0, 1] = 9e-7
    for shape, is_stored in (((100, 100, 100), True), ((2000, 2000, 100), False)):
        plan = vp.SpatialPlan(vp.Grid(shape, np.eye(4)), turned, shape)
        place = WindowPlace("a", (0,), {}, (0, 0, 0), (8, 8, 8), (0, 0, 0), plan)
        assert place.is_stored is is_stored


def identity(batch):
    """A model that gives its input."""
    return batch


ONES = np.ones((6, 6, 6), np.float32)


@pytest.mark.parametrize("destination", [np.zeros((1, 6, 6, 6), np.float32), "one.nii"])
def test_several_results_are_not_one(destination, tmp_path, monkeypatch):
    """Told before a window is run, of a list, and as the second volume begins, of a chain."""
    monkeypatch.chdir(tmp_path)
    calls = []

    def model(batch):
        calls.append(len(batch))
        return batch

    with pytest.raises(DestinationExists, match="the results of two cases would be one"):
        vp.predict(model, [ONES, 2 * ONES], destination, patch=6, output="logits")
    assert not calls
    chain = vp.from_cases([{"image": n * ONES, "case": str(n)} for n in (1, 2)]).open_volume()
    with pytest.raises(DestinationExists, match="the results of two cases would be"):
        vp.predict(identity, chain, destination, patch=6, output="logits")


@pytest.mark.parametrize("destination", [3, ["a.nii"]])
def test_a_destination_is_a_place(destination):
    """And else the sentence says what it may be."""
    with pytest.raises(TypeError, match=r"a path, an array \(C, I, J, K\), f\(case\) or None, got"):
        vp.predict(identity, ONES, destination, patch=6)


def test_an_array_holds_what_is_written():
    """Numbers with fractions do not become whole ones unnoticed."""
    array = np.zeros((1, 6, 6, 6), np.uint8)

    with pytest.raises(TypeError, match="the destination holds uint8, and the result is float32"):
        vp.predict(identity, 0.5 * ONES, array, patch=6, output="logits")
    vp.predict(identity, 2.4 * ONES, array, patch=6, output="logits", dtype="uint8")
    assert (array == 2).all()


def test_one_of_several_volumes_is_named():
    """The label of a case is none of them."""
    with pytest.raises(SampleError, match="the case has 't1', 't2', but the model gets one volume"):
        vp.predict(identity, {"t1": ONES, "t2": ONES}, patch=6)
    found = vp.predict(identity, {"label": 2 * ONES, "ct": ONES}, patch=6, output="logits")
    assert (found.numpy() == 1).all()
