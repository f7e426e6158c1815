"""Small cases on disk, written by nibabel, and the chain that most loader tests run."""

import nibabel
import numpy as np

import voxpipe as vp

SHAPE = (12, 13, 14)


def write_cases(folder, count=3, shape=SHAPE):
    """Write ``count`` cases of int16 image and uint8 label as .nii and return them."""
    rng = np.random.default_rng(0)
    affine = np.array([[0, -1.1, 0, 5], [1.0, 0, 0, -3], [0, 0, 2.0, 1], [0, 0, 0, 1]])
    cases = []
    for number in range(count):
        image = rng.integers(-1000, 1000, shape, dtype=np.int16)
        label = (image > 0).astype(np.uint8) * (number + 1)
        case = {"case": f"case{number}"}
        for key, array in (("image", image), ("label", label)):
            path = folder / f"case{number}_{key}.nii"
            nibabel.save(nibabel.Nifti1Image(array, affine), path)
            case[key] = str(path)
        cases.append(case)
    return cases


def write_scans(folder, count=3):
    """Write ``p0/ct.nii.gz``, ``p0/seg.nii`` and so on, with anisotropic voxels."""
    for n in range(count):
        (folder / f"p{n}").mkdir()
        voxels = np.random.default_rng(n).integers(0, 99, (20, 21, 22)).astype(np.int16)
        image = nibabel.Nifti1Image(voxels, np.diag([1, 2, 3, 1.0]))
        nibabel.save(image, folder / f"p{n}" / "ct.nii.gz")
        nibabel.save(image, folder / f"p{n}" / "seg.nii")


def numbers_of_cases(monkeypatch):
    """Return a list that gets the number of each case that is made from now on."""
    numbers, own = [], vp.datapipes.iter.from_cases.case

    def counted(source, number):
        numbers.append(number)
        return own(source, number)

    monkeypatch.setattr(vp.datapipes.iter.from_cases, "case", counted)
    return numbers


def full_chain(cases, size=6, samples=4, batch=4):
    """Return the chain of the README on ``cases``."""
    return (
        vp.from_cases(cases)
        .shuffle()
        .open_volume()
        .lazy_patch(size, samples_per_volume=samples)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
        .normalize(mean=10.0, std=500.0)
        .batch_patches(batch)
    )


def six_batches(cases):
    """Return that chain on three cases, of which it makes six batches in an epoch."""
    return full_chain(cases, samples=4, batch=2)


def same(a, b):
    """Whether two lists of batches are bit-identical, provenance included."""
    return len(a) == len(b) and all(_same_batch(x, y) for x, y in zip(a, b, strict=True))


def _same_batch(a, b):
    tensors = [k for k in a if k != "meta"]
    return (
        list(a) == list(b)
        and a["meta"] == b["meta"]
        and all(a[k].dtype == b[k].dtype and bool((a[k] == b[k]).all()) for k in tensors)
    )
