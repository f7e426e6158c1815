"""Headers and links that lead out of their folder are refused, with the target named."""

import json
import os
import random
import re
import subprocess
import sys
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest
from manifests import index_cases, write_manifest

import voxpipe as vp
from voxpipe.core.errors import BadManifest, LeadsOutside
from voxpipe.core.redact import RedactedDict, server_of
from voxpipe.datapipes.open_volume import options_for
from voxpipe.volumes import read_manifest
from voxpipe.volumes.catalog.manifest import parse_manifest

VOXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
SECRET = VOXELS + 100
MHD = "NDims = 3\nDimSize = 4 3 2\nElementType = MET_UCHAR\n{text}ElementDataFile = {file}\n"
NRRD = "NRRD0004\ntype: uchar\ndimension: 3\nsizes: 4 3 2\nencoding: {encoding}\ndatafile: {file}\n"


@pytest.fixture
def folders(tmp_path):
    """Return a folder of scans, beside one of which nothing may be read."""
    for name, voxels in (("scans", VOXELS), ("secrets", SECRET)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.raw").write_bytes(voxels.tobytes())
    return tmp_path / "scans", tmp_path / "secrets"


def mhd(scans, file, text=""):
    (scans / "a.mhd").write_text(MHD.format(file=file, text=text))
    return scans / "a.mhd"


def nhdr(scans, file, encoding="raw"):
    (scans / "a.nhdr").write_text(NRRD.format(file=file, encoding=encoding))
    return scans / "a.nhdr"


def linked(scans, secrets):
    os.unlink(scans / "a.raw")
    (scans / "a.raw").symlink_to(secrets / "a.raw")
    return mhd(scans, "a.raw")


def linked_twice(scans, secrets):
    """A header that is a link, beside a link of voxels that leads elsewhere."""
    (scans / "real").mkdir()
    mhd(scans / "real", "a.raw")
    (scans / "x").mkdir()
    (scans / "x" / "a.mhd").symlink_to("../real/a.mhd")
    (scans / "x" / "a.raw").symlink_to(secrets / "a.raw")
    return scans / "x" / "a.mhd"


def linked_nrrd(scans, secrets):
    (scans / "real").mkdir()
    (scans / "a.nhdr").symlink_to(nhdr(scans / "real", "a.raw"))
    os.unlink(scans / "a.raw")
    (scans / "a.raw").symlink_to(secrets / "a.raw")
    return scans / "a.nhdr"


def linked_pair(scans, secrets):
    import nibabel

    nibabel.save(nibabel.Nifti1Pair(VOXELS, None), scans / "a.hdr")
    os.unlink(scans / "a.img")
    (scans / "a.img").symlink_to(secrets / "a.raw")
    return scans / "a.hdr"


def listed(scans, secrets):
    return mhd(scans, "LIST\na.raw\n../secrets/a.raw")


def zarr_of(folder, voxels, **how):
    import zarr

    array = zarr.create_array(folder, shape=voxels.shape, dtype="u1", chunks=(1, 3, 4), **how)
    array[...] = voxels
    return folder


def linked_chunk(scans, secrets):
    zarr_of(secrets / "a.zarr", SECRET)
    path = zarr_of(scans / "a.zarr", VOXELS)
    (path / "c/0/0/0").unlink()
    (path / "c/0/0/0").symlink_to(secrets / "a.zarr/c/0/0/0")
    return path


def linked_folder(scans, secrets):
    zarr_of(secrets / "a.zarr", SECRET)
    path = zarr_of(scans / "a.zarr", VOXELS)
    (path / "c/0").rename(scans / "moved")
    (path / "c/0").symlink_to("../../../secrets/a.zarr/c/0")
    return path


def linked_metadata(scans, secrets):
    zarr_of(secrets / "a.zarr", SECRET)
    path = zarr_of(scans / "a.zarr", VOXELS)
    (path / "zarr.json").unlink()
    (path / "zarr.json").symlink_to(secrets / "a.zarr/zarr.json")
    return path


def linked_chunk_of_zarr_python(scans, secrets):
    import numcodecs

    how = {"zarr_format": 2, "filters": [numcodecs.Delta("u1")]}  # which is left to zarr-python
    zarr_of(secrets / "a.zarr", SECRET, **how)
    path = zarr_of(scans / "a.zarr", VOXELS, **how)
    (path / "0.0.0").unlink()
    (path / "0.0.0").symlink_to(secrets / "a.zarr/0.0.0")
    return path


def ome_zarr(scans, secrets, path="../../secrets/a.zarr"):
    import zarr

    zarr_of(secrets / "a.zarr", SECRET)
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    scale = {"type": "scale", "scale": [1.0, 1.0, 1.0]}
    levels = [{"path": path, "coordinateTransformations": [scale]}]
    image = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    zarr.create_group(scans / "a.zarr", attributes={"ome": image})
    return scans / "a.zarr"


def ome_tiff(scans, secrets, file):
    import tifffile

    how = {"photometric": "minisblack"}
    tifffile.imwrite(secrets / "b.ome.tif", SECRET, metadata={"axes": "ZYX"}, **how)
    tifffile.imwrite(scans / "a.ome.tif", VOXELS, metadata={"axes": "ZYX"}, **how)
    with tifffile.TiffFile(scans / "a.ome.tif") as tiff:
        text = tiff.ome_metadata
    named = f'<TiffData IFD="0" PlaneCount="2"><UUID FileName="{file}">urn:uuid:1</UUID></TiffData>'
    start, stop = text.index("<TiffData"), text.index("/>", text.index("<TiffData")) + 2
    changed = (text[:start] + named + text[stop:]).encode()
    tifffile.imwrite(scans / "a.ome.tif", VOXELS, description=changed, metadata=None, **how)
    return scans / "a.ome.tif"


def external(scans, file, name="a.h5"):
    import h5py

    with h5py.File(scans / name, "w") as opened:
        opened.create_dataset("x", VOXELS.shape, "u1", external=[(os.fspath(file), 0, 24)])
    return scans / name


def moved_link(scans, secrets):
    """A file that is a link: HDF5 looks beside the link first, and beside its target last."""
    import h5py

    hdf5(secrets, SECRET)
    (scans / "deep").mkdir()
    hdf5(scans / "deep", VOXELS)
    layout = h5py.VirtualLayout(VOXELS.shape, "u1")
    layout[...] = h5py.VirtualSource("b.h5", "x", VOXELS.shape)
    with h5py.File(scans / "deep" / "c.h5", "w") as opened:
        opened.create_virtual_dataset("x", layout)
    (scans / "a.h5").symlink_to("deep/c.h5")
    (scans / "b.h5").symlink_to(secrets / "b.h5")
    return scans / "a.h5"


def hdf5(folder, voxels):
    import h5py

    with h5py.File(folder / "b.h5", "w") as opened:
        opened["x"] = voxels
    return folder / "b.h5"


def virtual(scans, secrets, file):
    import h5py

    hdf5(secrets, SECRET)
    layout = h5py.VirtualLayout(VOXELS.shape, "u1")
    layout[...] = h5py.VirtualSource(os.fspath(file), "x", VOXELS.shape)
    with h5py.File(scans / "a.h5", "w") as opened:
        opened.create_virtual_dataset("x", layout)
    return scans / "a.h5"


def external_in_virtual(scans, secrets):
    path = virtual(scans, secrets, "b.h5")
    external(scans, secrets / "a.raw", "b.h5")
    return path


def link(scans, secrets, file):
    import h5py

    hdf5(secrets, SECRET)
    with h5py.File(scans / "a.h5", "w") as opened:
        opened["x"] = h5py.ExternalLink(os.fspath(file), "/x")
        opened["soft"] = h5py.SoftLink("/x")
    return scans / "a.h5"


def chain(scans, secrets, file="b.h5", path="/y"):
    """A link to a link that leads out, and a virtual dataset of it."""
    import h5py

    hdf5(secrets, SECRET)
    with h5py.File(scans / "b.h5", "w") as opened:
        opened["y"] = h5py.ExternalLink(os.fspath(secrets / "b.h5"), "/x")
        opened["group"] = h5py.ExternalLink(os.fspath(secrets / "b.h5"), "/")
    layout = h5py.VirtualLayout(VOXELS.shape, "u1")
    layout[...] = h5py.VirtualSource(file, path, VOXELS.shape)
    with h5py.File(scans / "a.h5", "w") as opened:
        opened["link"] = h5py.ExternalLink("b.h5", "/y")
        opened["all"] = h5py.ExternalLink("b.h5", "/")
        opened.create_virtual_dataset("v", layout)
    return scans / "a.h5"


MINC, ITK = "/minc-2.0/image/0/image", "/ITKImage/0/VoxelData"


def in_disguise(scans, secrets, name, change):
    """HDF5 that SimpleITK reads, under a name that is not one of HDF5."""
    import h5py
    import SimpleITK

    suffix, path = (".mnc", MINC) if name.endswith(".mnc") else (".hdf5", ITK)
    for folder, file, voxels in ((secrets, f"a{suffix}", SECRET), (scans, f"b{suffix}", VOXELS)):
        SimpleITK.WriteImage(SimpleITK.GetImageFromArray(voxels), os.fspath(folder / file))
    (scans / f"b{suffix}").rename(scans / name)
    with h5py.File(scans / name, "r+", libver=("v108", "v110")) as opened:
        old = dict(opened[path].attrs)
        del opened[path]
        change(opened, path, os.fspath(secrets / f"a{suffix}"), os.fspath(secrets / "a.raw"))
        if isinstance(opened.get(path, getlink=True), h5py.HardLink):
            for key in {"dimorder", "signtype", "valid_range"} & set(old):
                opened[path].attrs[key] = old[key]
    return scans / name


def by_link(opened, path, other, _):
    import h5py

    opened[path] = h5py.ExternalLink(other, path)


def by_virtual(opened, path, other, _):
    import h5py

    layout = h5py.VirtualLayout(VOXELS.shape, "u1")
    layout[...] = h5py.VirtualSource(other, path, VOXELS.shape)
    opened.create_virtual_dataset(path, layout)


def by_external(opened, path, _, raw):
    opened.create_dataset(path, VOXELS.shape, "u1", external=[(raw, 0, 24)])


TEXT = "BinaryData = False\n"
OUTSIDE = {
    "mhd, above": (lambda s, _: mhd(s, "../secrets/a.raw"), {}),
    "mhd, absolute": (lambda s, o: mhd(s, o / "a.raw"), {}),
    "mhd, above and back": (lambda s, _: mhd(s, "../scans/../secrets/a.raw"), {}),
    "mhd, pattern": (lambda s, _: mhd(s, "../secrets/%d.raw 1 2 1"), {}),
    "mhd, list": (listed, {}),
    "mhd, link": (linked, {}),
    "mhd, both links": (linked_twice, {}),
    "nhdr, both links": (linked_nrrd, {}),
    "nifti pair, link": (linked_pair, {}),
    "mhd of text": (lambda s, o: mhd(s, o / "a.raw", TEXT), {}),
    "nhdr, above": (lambda s, _: nhdr(s, "../secrets/a.raw"), {}),
    "nhdr, absolute": (lambda s, o: nhdr(s, o / "a.raw"), {}),
    "nhdr of text": (lambda s, o: nhdr(s, o / "a.raw", "ascii"), {}),
    "zarr, chunk": (linked_chunk, {}),
    "zarr, folder": (linked_folder, {}),
    "zarr, metadata": (linked_metadata, {}),
    "zarr by zarr-python": (linked_chunk_of_zarr_python, {}),
    "ome-zarr": (ome_zarr, {}),
    "ome-tiff, above": (lambda s, o: ome_tiff(s, o, "../secrets/b.ome.tif"), {}),
    "ome-tiff, absolute": (lambda s, o: ome_tiff(s, o, o / "b.ome.tif"), {}),
    "hdf5, external data": (lambda s, o: external(s, o / "a.raw"), {}),
    "hdf5, external above": (lambda s, _: external(s, "../secrets/a.raw"), {}),
    "hdf5, external above and back": (lambda s, _: external(s, "../scans/../secrets/a.raw"), {}),
    "hdf5, external in a virtual": (external_in_virtual, {}),
    "hdf5, virtual of a link": (moved_link, {}),
    "hdf5, virtual": (lambda s, o: virtual(s, o, o / "b.h5"), {}),
    "hdf5, virtual above": (lambda s, o: virtual(s, o, "../secrets/b.h5"), {}),
    "hdf5, link": (lambda s, o: link(s, o, o / "b.h5"), {"dataset": "x"}),
    "hdf5, link above": (lambda s, o: link(s, o, "../secrets/b.h5"), {"dataset": "x"}),
    "hdf5, link by a link": (lambda s, o: link(s, o, o / "b.h5"), {"dataset": "soft"}),
    "itk, link": (lambda s, o: in_disguise(s, o, "a.dat", by_link), {}),
    "itk, virtual": (lambda s, o: in_disguise(s, o, "a.dat", by_virtual), {}),
    "itk, external": (lambda s, o: in_disguise(s, o, "a.dat", by_external), {}),
    "minc, link": (lambda s, o: in_disguise(s, o, "a.mnc", by_link), {}),
    "hdf5, link to a link": (chain, {"dataset": "link"}),
    "hdf5, link in a linked group": (chain, {"dataset": "all/y"}),
    "hdf5, two groups of links": (chain, {"dataset": "all/group/x"}),
    "hdf5, link with a dot": (chain, {"dataset": "./all/./y"}),
    "hdf5, virtual of a link to a link": (lambda s, o: chain(s, o, ".", "/link"), {}),
    "hdf5, virtual of a link elsewhere": (chain, {}),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_leads_out_is_refused(folders, name):
    """With the target named, and what allows it."""
    write, options = OUTSIDE[name]
    path = write(*folders)

    with pytest.raises(LeadsOutside, match=r'secrets(?s:.)*follow="anywhere"'):
        vp.Volume(path, **options).numpy()


# Some make no sense as a volume, whoever is trusted.
SENSELESS = ("mhd, pattern", "mhd, list", "mhd of text", "nhdr of text", "zarr, metadata")
SENSELESS += ("minc, link",)  # scaled by what the first file says of its own voxels
READ = [name for name in OUTSIDE if name not in SENSELESS]


@pytest.mark.parametrize("name", READ)
def test_who_trusts_it_reads_it(folders, name):
    """By the option, in a chain as well."""
    write, options = OUTSIDE[name]
    path = write(*folders)
    chain = vp.from_cases([{"image": path}]).open_volume(follow="anywhere", **options)

    assert next(iter(chain))["image"].realize().max() > 100


def farm(scans, secrets):
    """Return a header that is a link, beside its voxels, another one."""
    mhd(secrets, "a.raw")
    os.unlink(scans / "a.raw")
    for name in ("a.mhd", "a.raw"):
        (scans / name).symlink_to(secrets / name)
    return scans / "a.mhd"


def farm_of_pairs(scans, secrets):
    import nibabel

    nibabel.save(nibabel.Nifti1Pair(VOXELS, None), secrets / "a.hdr")
    for name in ("a.hdr", "a.img"):
        (scans / name).symlink_to(secrets / name)
    return scans / "a.hdr"


def partly_a_farm(scans, secrets):
    """Return a header that is a link, beside voxels that are none."""
    (scans / "a.mhd").symlink_to(mhd(secrets, "a.raw"))
    return scans / "a.mhd"


def linked_top(scans, secrets):
    zarr_of(secrets / "a.zarr", VOXELS)
    (scans / "a.zarr").symlink_to(secrets / "a.zarr")
    return scans / "a.zarr"


def linked_above(scans, secrets):
    zarr_of(secrets / "a.zarr", VOXELS)
    (scans / "all").symlink_to(secrets)
    return scans / "all" / "a.zarr"


def linked_inside(scans, secrets):
    path = zarr_of(scans / "a.zarr", VOXELS)
    (path / "c/0/0/0").rename(path / "kept")
    (path / "c/0/0/0").symlink_to("../../../kept")
    return path


def below(scans, secrets):
    (scans / "b").mkdir()
    (scans / "a.raw").rename(scans / "b" / "a.raw")
    return mhd(scans, "b/a.raw")


def external_below(scans, secrets):
    (scans / "b").mkdir()
    (scans / "a.raw").rename(scans / "b" / "a.raw")
    return external(scans, "b/a.raw")


def chain_inside(scans, secrets):
    """Three files in a row, the last of which holds voxels."""
    import h5py

    hdf5(scans, VOXELS)
    for name, other, path in (("c", "b", "/x"), ("d", "c", "/x")):
        with h5py.File(scans / f"{name}.h5", "w") as opened:
            opened["x"] = h5py.ExternalLink(f"{other}.h5", path)
    return virtual(scans, secrets, "d.h5")


INSIDE = {
    "hdf5, links in a row": chain_inside,
    "beside": lambda s, _: mhd(s, "a.raw"),
    "dot": lambda s, _: mhd(s, "./a.raw"),
    "absolute, but beside": lambda s, _: mhd(s, s / "a.raw"),
    "below": below,
    "nhdr": lambda s, _: nhdr(s, "a.raw"),
    "links to both": farm,
    "link to the header": partly_a_farm,
    "nifti pair, links to both": farm_of_pairs,
    "zarr, the folder itself": linked_top,
    "zarr, a folder above": linked_above,
    "zarr, link inside": linked_inside,
    "hdf5, virtual": lambda s, _: virtual(s, s, hdf5(s, VOXELS).name),
    "hdf5, virtual above and back": lambda s, _: virtual(s, s, f"../scans/{hdf5(s, VOXELS).name}"),
    "hdf5, virtual of a name elsewhere": lambda s, _: virtual(s, s, "/no" / hdf5(s, VOXELS)),
    "hdf5, external": lambda s, _: external(s, "a.raw"),
    "hdf5, external dot": lambda s, _: external(s, "./a.raw"),
    "hdf5, external above and back": lambda s, _: external(s, "../scans/a.raw"),
    "hdf5, external absolute": lambda s, _: external(s, s / "a.raw"),
    "hdf5, external below": external_below,
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_stays_inside_is_read(folders, name):
    """Files beside a header and below, and folders that the user linked."""
    found = vp.Volume(INSIDE[name](*folders)).numpy().ravel()

    assert sorted(found.tolist()) in (list(range(24)), list(range(100, 124)))


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [("", "LeadsOutside\n"), ("${ORIGIN}", "LeadsOutside\n"), ("elsewhere", "23\n")],
)
def test_names_of_external_storage_are_looked_up_where_hdf5_does(folders, prefix, expected):
    """Beside the file, or where its variable says, and not wherever the process stands."""
    scans, _ = folders
    (scans / "deep" / "elsewhere").mkdir(parents=True)
    external(scans, "../secrets/a.raw")
    code = (
        "import os, sys, voxpipe as vp\n"
        "os.chdir('deep')\n"
        "try:\n"
        "    volume = vp.Volume('../a.h5')\n"
        "    volume.shape\n"
        "    os.chdir('/')\n"
        "    print(volume.numpy().max())\n"
        "except vp.VoxpipeError as error:\n"
        "    print(type(error).__name__)\n"
    )
    # From deep or from deep/elsewhere that name stays inside.
    for place in (scans / "secrets", scans / "deep" / "secrets"):
        place.mkdir()
        (place / "a.raw").write_bytes(VOXELS.tobytes())
    where = os.fspath(scans / "deep" / prefix) if prefix == "elsewhere" else prefix
    environment = {**os.environ, "HDF5_EXTFILE_PREFIX": where}
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=scans,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert found.stdout == expected


def test_behind_a_url_nothing_leads_out():
    """A server may take ``..`` and its escapes for the folder above."""
    system = fsspec.filesystem("memory")
    system.pipe("/outside/secrets/a.raw", SECRET.tobytes())
    for file in ("../secrets/a.raw", "..\\secrets/a.raw", "/outside/secrets/a.raw"):
        system.pipe("/outside/scans/a.mhd", MHD.format(file=file, text="").encode())

        with pytest.raises(LeadsOutside, match="secrets"):
            vp.Volume("memory://outside/scans/a.mhd").numpy()


def test_follow_is_one_of_two_words():
    """A typo does not open the door, nor close it."""
    with pytest.raises(ValueError, match="follow is one of 'same_folder', 'anywhere', got 'all'"):
        vp.Volume("a.mhd", follow="all")


ELSEWHERE = ["https://169.254.169.254/a.nii", "s3://other/a.zarr", "file:///etc/passwd"]


def manifest_with(folders, location):
    """Write a manifest beside its volume, then let it name another place; return where it is."""
    scans, _ = folders
    np.save(scans / "a.npy", VOXELS)
    found, _ = index_cases([("a", "image", vp.Volume(scans / "a.npy"))])
    write_manifest(found, scans / "manifest.json")
    document = json.loads((scans / "manifest.json").read_text())
    document["cases"][0]["volumes"]["image"]["location"] = location
    (scans / "manifest.json").write_text(json.dumps(document))
    return scans / "manifest.json"


@pytest.mark.parametrize(
    "location", [*ELSEWHERE, "/etc/passwd", "../secrets/a.npy", "%2e%2e/a.npy"]
)
def test_a_manifest_that_leads_elsewhere(folders, location):
    """Not even where its own folder lies below the same one; credentials would go there."""
    path = manifest_with(folders, location)
    system = fsspec.filesystem("memory")
    system.pipe("/manifests/manifest.json", path.read_bytes())

    if location[0] not in "/hsf":  # that all are elsewhere may be meant, of a local one
        with pytest.raises(BadManifest, match=r"follow=.anywhere"):
            vp.from_manifest(path)
    with pytest.raises(BadManifest, match=r"follow=.anywhere"):
        vp.from_manifest("memory://manifests/manifest.json")
    assert len(vp.from_manifest(path, follow="anywhere")) == 1


@pytest.mark.parametrize("location", [*ELSEWHERE, "/etc/passwd"])
def test_a_local_manifest_names_what_it_was_made_of(folders, location):
    """One of a bucket is read from anywhere; one volume elsewhere among them is refused."""
    path = manifest_with(folders, "s3://bucket/a.nii")
    assert len(vp.from_manifest(path)) == 1
    write_manifest(read_manifest(path), path)
    document = json.loads(path.read_text())
    assert document["made_of"] == ["s3://bucket"]
    volumes = document["cases"][0]["volumes"]
    volumes["label"] = {**volumes["image"], "location": location}
    path.write_text(json.dumps(document))

    with pytest.raises(
        BadManifest, match=r"'label' of case a .* is at .* is of volumes at s3://buc"
    ):
        vp.from_manifest(path)


GOOD, EVIL = "good.example", "evil.example"
HOSTS_IN_DISGUISE = {
    "query": f"https://{EVIL}?@{GOOD}/a.nii",
    "fragment": f"https://{EVIL}#@{GOOD}/a.nii",
    "backslash": rf"https://{EVIL}\@{GOOD}/a.nii",
    "backslash, the other way": rf"https://{GOOD}\@{EVIL}/a.nii",
    "query behind the host": f"https://{GOOD}?@{EVIL}/a.nii",
    "user": f"https://{GOOD}@{EVIL}/a.nii",
    "chain": f"zip://a.nii::https://{EVIL}/a.zip",
    "chain to a file": "simplecache::file:///etc/passwd",
    "chain behind the host": f"https://{GOOD}/a::https://{EVIL}/b",
}


def location_is_taken(folders, location, folder):
    """Whether a manifest in ``folder`` may name a location."""
    text = manifest_with(folders, location).read_text()
    try:
        parse_manifest(text, folder=folder)
    except BadManifest:
        return False
    return True


@pytest.mark.parametrize("name", HOSTS_IN_DISGUISE)
def test_no_client_takes_another_host_for_that_of_the_manifest(folders, name):
    """The key of the manifest's host would go to it."""
    assert location_is_taken(folders, f"https://{GOOD}/a.nii", f"https://{GOOD}/")
    assert not location_is_taken(folders, HOSTS_IN_DISGUISE[name], f"https://{GOOD}/")


def test_members_of_a_chain_are_of_the_hosts_that_a_manifest_names(folders):
    """An archive on one server does not stand for archives on all of them."""
    path = manifest_with(folders, f"zip://a.nii::https://{GOOD}/a.zip")
    write_manifest(read_manifest(path), path)
    document = json.loads(path.read_text())
    assert document["made_of"] == [f"zip://::https://{GOOD}"]
    assert len(vp.from_manifest(path)) == 1
    volume = document["cases"][0]["volumes"]["image"]
    volume["location"] = f"zip://a.nii::https://{EVIL}/a.zip"
    path.write_text(json.dumps(document))

    with pytest.raises(BadManifest, match="evil"):
        vp.from_manifest(path)


@pytest.mark.parametrize("name", HOSTS_IN_DISGUISE)
def test_credentials_of_a_listing_stay_on_its_server(name):
    """They are for the server that they were given for, in a chain as well."""
    cases = {"image": f"https://{GOOD}/b.nii", "label": f"zip://b.nii::https://{GOOD}/b.zip"}
    inherited = {server_of(url): RedactedDict(key="k") for url in cases.values()}
    for url in cases.values():
        assert options_for(url, inherited) == {"key": "k"}

    assert options_for(HOSTS_IN_DISGUISE[name], inherited) is None


def hosts_asked(url):
    """Return the hosts to which clients go, as those of Python and of browsers read a URL."""
    members = re.split("::(?=[a-z]+://)", url)
    for member in members:
        if not member.startswith("zip://"):
            browsers = re.sub(r"[\t\r\n]", "", member).replace("\\", "/")
            for one in (member, re.sub("^(https?:)/*", r"\1//", browsers)):
                try:
                    yield urlsplit(one).hostname
                except ValueError:
                    yield None  # no client asks anybody


def test_a_manifest_names_no_other_host_however_it_is_written(folders, attacks):
    """Every string of the marks that clients cut a URL at."""
    marks = [
        *"@?#\\/" * 6,
        *":.;[]%",
        "%40",
        "%2F",
        "\t",
        "\n",
        " ",
        "::",
        "zip://x::",
        "https://",
        ":80",
    ]
    path = manifest_with(folders, "LOCATION")
    text = path.read_text()
    taken = []

    def attempt(seed):
        draw = random.Random(seed)
        hosts = draw.choices([GOOD, EVIL], k=3)
        between = ["".join(draw.choices(marks, k=draw.randint(0, 3))) for _ in hosts]
        url = f"https://{''.join(map(''.join, zip(hosts, between, strict=True)))}/a.nii"
        document = text.replace('"LOCATION"', json.dumps(url))
        try:
            parse_manifest(document, folder=f"https://{GOOD}/")
        except BadManifest:
            return
        taken.append(url)
        assert set(hosts_asked(url)) <= {GOOD, None}, url

    attacks.each(attempt, quick=300, whole=100_000)
    attacks.told(f"{len(taken)} taken")
