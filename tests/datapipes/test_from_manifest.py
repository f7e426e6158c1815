"""A chain that begins with a manifest opens nothing to plan, and notices what is stale."""

import builtins
import os

import pytest
import torch
from manifests import index_cases, write_manifest
from scenes import write_scans
from torch.utils.data import IterDataPipe

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import BadManifest, StaleEntry
from voxpipe.dataloader2 import volumes_of
from voxpipe.volumes import close_volumes
from voxpipe.volumes.catalog import catalog
from voxpipe.volumes.catalog import manifest as manifests
from voxpipe.volumes.catalog.columns import write_columns


@pytest.fixture(params=["json", "parquet"])
def folder(request, tmp_path):
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
    write_scans(tmp_path)
    write_index(tmp_path, f"m.{request.param}")
    close_volumes()
    yield tmp_path
    close_volumes()


def write_index(folder, name):
    manifest, bad = index_cases(volumes_of(listed(folder)))
    assert bad == ()
    write_manifest(manifest, folder / name)


def place(folder):
    return next(folder.glob("m.*"))


def listed(folder):
    return vp.list_cases(f"{folder}/p*/", image="ct.nii.gz", seg="seg.nii")


def patches(cases):
    pipe = cases.open_volume().lazy_patch(8, samples_per_volume=2)
    return pipe.augment(rotate=20, flip=0.5).normalize()


def batches(cases, service=None):
    loader = vp.DataLoader2(patches(cases).batch_patches(2), None, service)
    loader.seed(5)
    found = [(b["image"].clone(), b["seg"].clone()) for b in loader]
    loader.shutdown()
    return found


def test_planning_an_epoch_opens_no_file(folder, monkeypatch):
    """Every plan of every patch is worked out from the manifest alone."""
    pipe = patches(vp.from_manifest(place(folder)))

    def refuse(path, *args, **kwargs):
        pytest.fail(f"{path} was opened")

    before = IO_COUNTERS.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        patch.setattr(os, "stat", refuse)
        plans = [(s["image"].plan, s["seg"].volume.dtype, s["image"].shape) for s in pipe]
    counted = IO_COUNTERS.snapshot() - before

    assert len(plans) == 6
    assert (counted.headers, counted.reads) == (0, 0)


def test_batches_are_those_of_a_listing(folder):
    """Bit for bit, here and in workers; statistics come from the manifest."""
    expected = batches(listed(folder))
    service = vp.MultiProcessingReadingService(num_workers=2)

    for found in (batches(vp.from_manifest(place(folder)), s) for s in (None, service)):
        for pair, pair_2 in zip(expected, found, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(pair, pair_2, strict=True))


def test_kinds_come_from_the_manifest(folder):
    """A label stays one whatever its key is called later."""
    sample = next(iter(vp.from_manifest(place(folder)).open_volume()))

    assert (sample["image"].kind, sample["seg"].kind, sample.case) == ("intensity", "label", "p0")


def test_a_stale_volume_ends_the_epoch_with_its_name(folder):
    """Where it is read, in a worker: the entry, and what changed."""
    os.utime(folder / "p1" / "seg.nii", ns=(1, 1))
    service = vp.MultiProcessingReadingService(num_workers=1)

    with pytest.raises(StaleEntry, match=r"'seg' of case p1 in .*m\.(json|parquet) is stale"):
        batches(vp.from_manifest(place(folder)), service)


def test_another_version_is_another_data_set(folder):
    """A saved state is not continued with other voxels."""
    first = vp.from_manifest(place(folder)).data_hash()
    os.utime(folder / "p1" / "seg.nii", ns=(1, 1))
    write_index(folder, place(folder).name)

    assert vp.from_manifest(place(folder)).data_hash() != first


def test_the_chain_says_where_it_begins(folder):
    """In explain(), and in the error for a file that is no manifest."""
    pipe = vp.from_manifest(place(folder))
    (folder / "x.json").write_text("{}")

    assert isinstance(pipe, IterDataPipe)
    assert pipe.describe().endswith(f"{place(folder).name}', 3 cases)")
    with pytest.raises(BadManifest, match="no voxpipe manifest") as caught:
        vp.from_manifest(folder / "x.json")
    assert "test_from_manifest.py" in str(caught.value)


def test_cases_by_number(folder):
    """In the order of a pass; the mapping is the caller's."""
    pipe = vp.from_manifest(place(folder))

    assert [pipe.case(n)[0] for n in range(len(pipe))] == [s.case for s in pipe]
    name, volumes = pipe.case(1)
    assert (name, volumes.pop("seg").kind) == ("p1", "label")
    assert list(pipe.case(1)[1]) == ["image", "seg"]


def test_no_volume_is_made_before_it_is_asked_for(folder, monkeypatch):
    """Neither where the chain is made, nor for its length, hash and description."""
    monkeypatch.setattr(manifests.ColumnEntries, "later", lambda *_: pytest.fail("an entry"))
    monkeypatch.setattr(catalog, "CataloguedSource", lambda *_: pytest.fail("a volume"))
    pipe = vp.from_manifest(place(folder))

    assert len(pipe) == 3
    assert len(pipe.data_hash()) == 16
    assert len([*pipe.data_texts()]) == 6
    assert "3 cases" in pipe.describe()


def by_columns(folder, **places):
    """Write a manifest by columns; ``places`` are other locations of images, by case."""
    pytest.importorskip("pyarrow")
    found, _ = index_cases(volumes_of(listed(folder)))
    rows = [(e.case, e.key, manifests.json_of_entry(e, f"{folder}/")) for e in found.entries]
    for case, _, volume in rows:
        volume["location"] = places.get(case, volume["location"])
    with open(folder / "rows.parquet", "wb") as file:
        write_columns(file, rows, list)
    return folder / "rows.parquet"


def test_planned_patches_need_no_row(tmp_path, monkeypatch):
    """Rows of a manifest by columns are read where a volume is first used."""
    write_scans(tmp_path)
    pipe = vp.from_manifest(by_columns(tmp_path)).shuffle().open_volume()
    with monkeypatch.context() as patch:
        patch.setattr(manifests.ColumnEntries, "whole", lambda *_: pytest.fail("a row"))
        found = [sample["seg"] for sample in pipe.lazy_patch(2, samples_per_volume=2)]

    names = sorted(patch.volume.name for patch in found)
    assert names == [str(tmp_path / f"p{n}" / "seg.nii") for n in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_elsewhere_is_refused_where_it_is_used(tmp_path, workers):
    """With its case, before anything is opened there."""
    write_scans(tmp_path)
    place = by_columns(tmp_path, p1="../elsewhere/ct.nii.gz")
    pipe = vp.from_manifest(place).open_volume().lazy_patch(2).batch_patches(1)
    service = vp.MultiProcessingReadingService(num_workers=1) if workers else None

    with (
        pytest.raises(BadManifest, match=r"of case p1 of .*rows\.parquet is at"),
        vp.DataLoader2(pipe, None, service, seed=0) as loader,
    ):
        list(loader)
