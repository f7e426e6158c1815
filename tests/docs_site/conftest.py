"""Cases for the programs of the pages."""

import json

import nibabel
import numpy as np
import pytest
import tifffile

import voxpipe as vp


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Return a folder with the files that the pages name: scans, embryos, wells and brains."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(1)
    for number in range(1, 5):
        case = folder / "scans" / f"p{number}"
        case.mkdir(parents=True)
        label = np.zeros((40, 36, 32), np.uint8)
        label[10:20, 12:24, 8:16] = 1
        scan = (label * 300.0 + rng.normal(0, 50, label.shape)).astype(np.int16)
        affine = np.diag([1.0, 1.0, 1.5, 1.0])
        nibabel.save(nibabel.Nifti1Image(scan, affine), case / "ct.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, affine), case / "seg.nii.gz")
    write_embryos(folder / "embryos", rng)
    write_wells(folder / "wells", rng)
    write_brains(folder / "brains", rng)
    return folder


def write_embryos(folder, rng):
    """Write two stacks of microscopes with a label group, as OME-Zarr."""
    affine = np.diag([0.5, 0.5, 2.0, 1000]) / 1000
    for number in (1, 2):
        place = folder / f"e{number}.ome.zarr"
        labels = np.zeros((16, 64, 64), np.uint16)
        labels[4:12, 16:48, 20:40] = 1
        light = (labels * 500.0 + rng.normal(300, 40, labels.shape)).astype(np.uint16)
        image = vp.Volume(light, axes="zyx", affine=affine)
        vp.save(place, image, levels=2)
        name_channels(place / "zarr.json", ["DAPI"])
        mask = vp.Volume(labels, axes="zyx", affine=affine, kind="label")
        vp.save(place / "labels" / "nuclei", mask, like=place)


def name_channels(file, names):
    """Add names of channels, as OMERO writes them."""
    header = json.loads(file.read_text("utf-8"))
    header["attributes"]["ome"]["omero"] = {"channels": [{"label": name} for name in names]}
    file.write_text(json.dumps(header), "utf-8")


def write_wells(folder, rng):
    """Write 2-D images and labels, as TIFF."""
    for well in ("A1", "A2"):
        (folder / well).mkdir(parents=True)
        cells = np.zeros((96, 120), np.uint8)
        cells[20:50, 30:90] = 1
        light = (cells * 500.0 + rng.normal(300, 40, cells.shape)).astype(np.uint16)
        tifffile.imwrite(folder / well / "dapi.tif", light, metadata={"axes": "YX"})
        tifffile.imwrite(folder / well / "cells.tif", cells, metadata={"axes": "YX"})


def write_brains(folder, rng):
    """Write two contrasts and labels of two heads, as NIfTI."""
    for case in ("b1", "b2"):
        (folder / case).mkdir(parents=True)
        label = np.zeros((24, 24, 20), np.uint8)
        label[6:14, 8:16, 6:12] = 1
        contrasts = {
            name: label * 100.0 + rng.normal(0, 9, label.shape) for name in ("t1", "flair")
        }
        for name, voxels in {**contrasts, "seg": label}.items():
            stored = voxels.astype(np.int16 if name in contrasts else np.uint8)
            nibabel.save(nibabel.Nifti1Image(stored, np.eye(4)), folder / case / f"{name}.nii.gz")
