"""A state of another chain or of other cases is refused, and what differs is named."""

import importlib
import json
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import StateMismatch


class Scale:
    def __init__(self, by, device="cpu"):
        self.by = by
        self._device = device

    def __call__(self, item):
        return item * self.by

    def twice(self, item):
        return item * self.by * 2


class Both:
    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, item):
        return item


def numbers(*functions):
    chain = IterableWrapper([1, 2, 3])
    for function in functions:
        chain = chain.map(function)
    return chain


def refusal(saved, other):
    """Return what is said of the state of one chain under another; nothing if it is taken."""
    with vp.DataLoader2(saved, seed=7) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
    with vp.DataLoader2(other) as loader:
        try:
            loader.load_state_dict(state)
        except StateMismatch as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("saved", "other"),
    [
        (Scale(2), Scale(3)),
        (Scale(2).twice, Scale(3).twice),
        (Both(Scale(1), Scale(2)), Both(Scale(1), Scale(3))),
        (SimpleNamespace(a=np.zeros(3)).a.sum, len),
    ],
    ids=["object", "method", "object in an object", "function"],
)
def test_objects_count_by_their_public_attributes(saved, other):
    """The pipe that holds them is named, with its place in the chain."""
    told = refusal(numbers(abs, saved), numbers(abs, other))

    assert "map(" in told
    assert "(pipe 2) had other settings" in told


def test_what_an_object_keeps_to_itself_does_not_count():
    """A device may be another one when a run goes on."""
    assert refusal(numbers(Scale(2, "cuda:0")), numbers(Scale(2, "cpu"))) == ""


def cases(count, changed=()):
    return vp.from_cases(
        [
            {"image": f"/scans/{'new' if n in changed else 'old'}{n}.nii", "case": f"case{n}"}
            for n in range(count)
        ]
    )


@pytest.mark.parametrize(
    ("saved", "other", "said"),
    [
        (numbers(abs), numbers(abs, abs), "map(abs) was not there"),
        (numbers(abs, abs), numbers(abs), "pipe 2, map, is not there any more"),
        (numbers(abs).batch(2), numbers(abs).shuffle(), "pipe 2 was batch and is shuffle("),
        (cases(5), cases(4), "there were 5 cases, and are 4"),
        (cases(5), cases(5, {3}), "the first that differs is case 3, now image=/scans/new3.nii"),
        (cases(1000), cases(1000, {500}), "one of the cases 496 to 511"),
        (
            cases(2).open_volume(level=0),
            cases(2).open_volume(level=1),
            "open_volume(level=1) (pipe 1) had other settings",
        ),
    ],
)
def test_the_difference_is_named(saved, other, said):
    """A pipe more, less or another; more or other cases; another setting."""
    assert said in refusal(saved, other)


@pytest.mark.parametrize(("count", "pipes"), [(20_000, 1), (3, 300)])
def test_a_state_stays_small(count, pipes):
    """With many cases, and with hundreds of pipes."""
    chain = cases(count).open_volume()
    for _ in range(pipes):
        chain = chain.map(abs)
    with vp.DataLoader2(chain, seed=7) as loader:
        assert len(json.dumps(loader.state_dict())) < 4096


def _staged(folder):
    for number in range(4):
        (folder / f"case{number}").mkdir(parents=True)
        np.save(folder / f"case{number}" / "ct.npy", np.full((4, 4, 4), number, np.int16))
    return folder


def _listed(folder):
    return vp.list_cases(f"{folder}/*/", image="ct.npy").shuffle().open_volume().lazy_patch(4)


def _given(folder):
    cases = [{"case": f"c{n}", "image": f"{folder}/case{n}/ct.npy"} for n in range(4)]
    return vp.from_cases(cases).shuffle().open_volume().lazy_patch(4)


@pytest.mark.parametrize("chain", [_listed, _given])
def test_the_same_data_under_another_name(tmp_path, monkeypatch, chain):
    """Spellings of one folder are one; another folder is the same data where you say so."""
    here, there = _staged(tmp_path / "job1"), _staged(tmp_path / "job2")
    saved = vp.DataLoader2(chain(here).batch_patches(1), seed=1)
    batches = iter(saved)
    next(batches)
    state, rest = saved.state_dict(), [batch["image"].max().item() for batch in batches]
    monkeypatch.chdir(tmp_path)

    for place in (f"{here}/", "job1", "./job2/../job1"):
        vp.DataLoader2(chain(place).batch_patches(1)).load_state_dict(state)
    again = vp.DataLoader2(chain(there).batch_patches(1))
    with pytest.raises(vp.errors.StateMismatch, match=r"folders=\{saved: here\}"):
        again.load_state_dict(state)
    with pytest.raises(vp.errors.StateMismatch, match="was saved for"):
        again.load_state_dict(state, folders={str(tmp_path): str(there)})
    with pytest.raises(vp.errors.StateMismatch, match="wrong way round") as refused:
        again.load_state_dict(state, folders={"job2/": str(here)})
    assert f"folders={{{str(here)!r}: 'job2/'}}" in str(refused.value)
    with pytest.raises(TypeError, match=r"folders is \{saved folder: folder here\}, got 'job2'"):
        again.load_state_dict(state, folders="job2")
    again.load_state_dict(state, folders={str(here): "job2/"})

    assert [batch["image"].max().item() for batch in again] == rest


def test_from_state_takes_folders(tmp_path):
    """Of several that fit a place the innermost counts."""
    here, there = _staged(tmp_path / "job1"), _staged(tmp_path / "scratch" / "job2")
    state = vp.DataLoader2(_listed(here).batch_patches(1), seed=1).state_dict()
    folders = {tmp_path / "elsewhere": tmp_path / "scratch", str(here): there}

    again = vp.DataLoader2.from_state(state, _listed(there).batch_patches(1), folders=folders)

    assert (
        again.state_dict() == vp.DataLoader2(_listed(there).batch_patches(1), seed=1).state_dict()
    )


SCRIPT = """
import functools, voxpipe as vp
from torch.utils.data.datapipes.iter import IterableWrapper
def double(item, by=2):
    return item * by
class Twice:
    @staticmethod
    def apply(item):
        return 2 * item
    def __call__(self, item):
        return 2 * item
chain = IterableWrapper([1, 2, 3]).map(double).map(functools.partial(double, by=3))
chain = chain.map(Twice.apply).map(Twice().__call__)
with vp.DataLoader2(chain, seed=7) as loader:
    state = loader.state_dict()
"""


def test_a_script_is_the_module_of_its_name(tmp_path, monkeypatch):
    """A state of ``python train.py`` or ``python -m`` fits the chain of an import."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "package_of_states").mkdir()
    for name in ("script_of_states", "package_of_states/train_states", "other_states"):
        (tmp_path / f"{name}.py").write_text(SCRIPT)

    def of_import(name):
        return importlib.import_module(name).state

    def of_module(name):
        return runpy.run_module(name, run_name="__main__", alter_sys=True)["state"]

    script = tmp_path / "script_of_states.py"
    of_script = runpy.run_path(str(script), run_name="__main__")["state"]
    inner = "package_of_states.train_states"

    assert of_script == of_module("script_of_states") == of_import("script_of_states")
    assert of_module(inner) == of_import(inner)
    assert len({s["graph"] for s in (of_script, of_import(inner), of_import("other_states"))}) == 3
