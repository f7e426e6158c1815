"""Which version of a remote volume there is: asked of the store, in few requests."""

import pytest

pytest.importorskip("s3fs")

from voxpipe.volumes import find_volumes
from voxpipe.volumes.catalog.catalog import MOST_NAMES, stamp_at
from voxpipe.volumes.source import LocatedSource, Options


def located(server, url):
    return LocatedSource(url, Options(storage_options=server.storage_options))


def test_a_file_written_again_after_a_listing_has_another_stamp(server):
    """s3fs remembers the listing; the store is asked nevertheless."""
    file = server.bucket / "c1" / "ct.nii"
    file.parent.mkdir()
    file.write_bytes(bytes(1000))
    assert find_volumes("s3://bucket", server.storage_options)
    before = stamp_at(located(server, "s3://bucket/c1/ct.nii"))

    file.write_bytes(bytes(1200))

    now = stamp_at(located(server, "s3://bucket/c1/ct.nii"))
    assert before.change(now) == "it had 1000 bytes and has 1200"


def test_a_folder_written_again_after_a_listing_has_another_stamp(server):
    """Also where an object was added."""
    folder = server.bucket / "a.zarr"
    folder.mkdir()
    (folder / "zarr.json").write_text("{}")
    before = stamp_at(located(server, "s3://bucket/a.zarr"))

    (folder / "0").write_bytes(b"x")

    assert before.change(stamp_at(located(server, "s3://bucket/a.zarr")))


def test_of_very_many_objects_only_the_metadata_are_compared(server):
    """Two pages are listed, whatever their number; a rewritten document is seen."""
    folder = server.bucket / "z.zarr"
    folder.mkdir()
    for number in range(5 * MOST_NAMES):
        (folder / str(number)).touch()
    (folder / "zarr.json").write_text("{}")
    server.forget()

    stamp = stamp_at(located(server, "s3://bucket/z.zarr"))

    assert (stamp.how, stamp.size, stamp.objects) == ("metadata", 2, 1)
    # Of 5 pages 2 are listed; asking whether there is a folder may be a third.
    full_pages = [each for each in server.requests if each.sent > 50_000]
    assert len(full_pages) <= 3
    (folder / "0").write_bytes(b"changed")
    assert stamp_at(located(server, "s3://bucket/z.zarr")) == stamp
    (folder / "zarr.json").write_text("{ }")
    assert stamp.change(stamp_at(located(server, "s3://bucket/z.zarr")))
