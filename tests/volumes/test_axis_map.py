"""Missing, doubled and shifted sections: whatever the format, what is shown and what is read."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nifti_files import numbered, write_nifti
from zarr_files import write_v2

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, OrientedBox, Region
from voxpipe.core.errors import OutOfVolume, VolumeError
from voxpipe.volumes import (
    AxisMap,
    Volume,
    close_volumes,
    convert,
    describe_volume,
    volume_statistics,
)
from voxpipe.volumes.axis_map_source import section_runs
from voxpipe.volumes.conversion.convert import version_of

SHAPE = (2, 5, 6, 9)
LATE_GAP = AxisMap.from_table("K", [0, -1, -1, 5, 6, 8], "fill")


def expected(array, axis, table, fill=0):
    """Return what a table shows, section by section."""
    sections = [
        np.full_like(array.take(0, axis), fill) if index < 0 else array.take(index, axis)
        for index in table
    ]
    return np.stack(sections, axis)


@pytest.fixture(params=["array", "nii", "nii.gz", "npy", "zarr"])
def stored(request, tmp_path):
    """Yield a volume of one format, and its voxels."""
    array = numbered(SHAPE[1:]) if request.param.startswith(("nii", "zarr")) else numbered(SHAPE)
    if request.param == "array":
        source = array
    elif request.param == "zarr":
        source = write_v2(tmp_path / "a.zarr", array, (2, 3, 4))
    elif request.param == "npy":
        source = tmp_path / "a.npy"
        np.save(source, array)
    else:
        source = write_nifti(tmp_path / f"a.{request.param}", array)
    yield Volume(source), array if array.ndim == 4 else array[None]
    close_volumes()


def nearest(table):
    """Return the table with its gaps closed, by looking at every distance."""
    there = [at for at, index in enumerate(table) if index >= 0]
    return [table[min(there, key=lambda at: (abs(at - here), at))] for here in range(len(table))]


tables = st.lists(st.integers(-1, SHAPE[3] - 1), min_size=1, max_size=14).filter(
    lambda table: max(table) >= 0
)


@given(table=tables, data=st.data())
def test_any_part_of_any_table(table, data):
    """A region shows what the table says, under each policy, and the mask says where."""
    array = numbered(SHAPE)
    start = data.draw(st.integers(0, len(table) - 1))
    stop = data.draw(st.integers(start + 1, len(table)))
    region = Region((1, 0, start), (4, 6, stop))
    part = (slice(None), *region.slices)

    for policy, wanted in [("fill", table), ("mask", table), ("nearest", nearest(table))]:
        volume = Volume(array).with_axis_map(AxisMap.from_table("K", table, policy, fill=-3))
        found = volume.read(region).array
        assert np.array_equal(found, expected(array, 3, wanted, -3)[part])
        mask = volume.stored_mask()
        assert (mask is not None) == (policy == "mask")
        if mask is not None:
            assert mask.read(region).array[0, 0, 0].tolist() == [
                int(index >= 0) for index in table[start:stop]
            ]


@given(table=tables, chunk=st.integers(1, 5))
def test_runs_take_every_section_once_and_no_chunk_in_vain(table, chunk):
    """Runs are apart, cover exactly what is needed, and touch no chunk without a section of it."""
    runs = section_runs(np.array(table), 0, len(table), chunk)

    shown = np.full(len(table), -1)
    for run in runs:
        shown[run.places] = np.arange(run.start, run.stop)[run.sections]
    assert shown.tolist() == table
    read = [index for run in runs for index in range(run.start, run.stop)]
    assert len(read) == len(set(read))
    assert {i // chunk for i in read} == {i // chunk for i in table if i >= 0}


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_every_format_and_axis(stored, axis):
    """Sections that are doubled, turned around, left out and missing."""
    volume, array = stored
    table = [2, 1, 0, -1, 3, 3, 4]

    found = volume.with_axis_map(AxisMap.from_table(axis - 1, table, "fill", fill=7))

    assert found.shape[axis] == len(table)
    np.testing.assert_array_equal(found.numpy(), expected(array, axis, table, 7))
    np.testing.assert_array_equal(found[:, 2, ::-2].numpy(), found.numpy()[:, 2:3, ::-2])


def test_in_another_process_and_as_a_pickle(stored):
    """The volume travels with its map; its token is the same there."""
    volume, array = stored
    mapped = volume.with_axis_map(AxisMap.shift("K", 2, "mask", fill=-1))

    arrived = pickle.loads(pickle.dumps(mapped))

    assert arrived.token == mapped.token
    assert arrived.stored_mask().token == mapped.stored_mask().token
    table = [*range(2, array.shape[3]), -1, -1]
    np.testing.assert_array_equal(arrived.numpy(), expected(array, 3, table, -1))


def test_the_affine_stays(stored):
    """A place in the world keeps its index; what is shown there moves."""
    volume, array = stored

    moved = volume.with_axis_map(AxisMap.shift("I", -2))

    np.testing.assert_array_equal(moved.affine, volume.affine)
    np.testing.assert_array_equal(moved.numpy(), expected(array, 1, [0, 0, 0, 1, 2]))


def test_an_affine_of_the_users_own_stays():
    """Also one that was given instead of the stored one."""
    affine = np.diag([2.0, 3, 4, 1])
    volume = Volume(numbered(SHAPE), affine=affine)

    mapped = volume.with_axis_map(AxisMap.missing("K", [1], "mask"))

    np.testing.assert_array_equal(mapped.affine, affine)
    np.testing.assert_array_equal(mapped.stored_mask().affine, affine)


@pytest.mark.parametrize(
    ("axis_map", "table"),
    [
        (AxisMap.missing("K", [0, 4]), [1, 1, 2, 3, 3, 5, 6, 7, 8]),
        (AxisMap.missing("K", [8]), [0, 1, 2, 3, 4, 5, 6, 7, 7]),
        (AxisMap.missing("K", [0, 3], in_file=False), [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8]),
        (AxisMap.missing("K", [], in_file=False), list(range(9))),
        (AxisMap.shift("K", 20, "fill"), [-1] * 9),
        (AxisMap.shift("K", -3, "fill"), [-1, -1, -1, 0, 1, 2, 3, 4, 5]),
        (AxisMap.shift("K", 0), list(range(9))),
        (
            AxisMap.missing("K", [3], "fill", in_file=False).then(AxisMap.shift("K", 2)),
            [2, -1, 3, 4, 5, 6, 7, 8, 8, 8],
        ),
    ],
)
def test_rules_become_tables(axis_map, table):
    """Ends, everything missing, nothing missing, and one rule after another."""
    array = numbered(SHAPE)

    found = Volume(array).with_axis_map(axis_map)

    np.testing.assert_array_equal(found.numpy(), expected(array, 3, table))


def test_several_axes_channels_included():
    """Time is folded into the channels, where a frame may be missing; then the mask has them."""
    array = numbered(SHAPE)
    both = AxisMap.missing("C", [1], "mask", fill=-5).then(
        AxisMap.from_table("J", [5, -1, 0, 0], "mask", fill=-5)
    )

    volume = Volume(array).with_axis_map(both)

    wanted = expected(expected(array, 0, [0, -1], -5), 2, [5, -1, 0, 0], -5)
    np.testing.assert_array_equal(volume.numpy(), wanted)
    np.testing.assert_array_equal(volume.stored_mask().numpy(), wanted != -5)


def test_a_map_on_a_map_follows_it():
    """Twice is the same as one map made of both."""
    first, second = AxisMap.missing("K", [2], in_file=False), AxisMap.shift("K", 1)
    volume = Volume(numbered(SHAPE))

    twice = volume.with_axis_map(first).with_axis_map(second)

    assert twice.axis_map == first.then(second)
    assert twice.token == volume.with_axis_map(first.then(second)).token


def test_only_what_is_shown_is_read(tmp_path):
    """Chunks of sections that are not shown, and gaps, cost nothing."""
    array = numbered((4, 4, 12))
    volume = Volume(write_v2(tmp_path / "a.zarr", array, (4, 4, 2)))
    mapped = volume.with_axis_map(AxisMap.from_table("K", [0, 1, -1, -1, 10, 10, 5], "fill"))
    chunk = 4 * 4 * 2 * array.itemsize

    def bytes_of(start, stop):
        before = IO_COUNTERS.snapshot()
        mapped.read(Region((0, 0, start), (4, 4, stop)))
        counted = IO_COUNTERS.snapshot() - before
        assert counted.reads == 1
        return counted.bytes_read

    assert [bytes_of(0, 2), bytes_of(2, 4), bytes_of(4, 6), bytes_of(0, 7)] == [
        chunk,
        0,
        chunk,
        3 * chunk,
    ]


def test_the_store_is_asked_for_no_other_section():
    """Looking at what the store itself is asked."""
    volume = Volume(numbered(SHAPE)).with_axis_map(
        AxisMap.from_table("K", [8, 7, -1, 1, 1], "fill")
    )
    backend = volume.probe()
    asked = []
    inner, read = backend._inner, backend._inner.read
    inner.read = lambda region, channels: asked.append(region) or read(region, channels)

    volume.numpy()

    assert asked == [Region((0, 0, 1), (5, 6, 2)), Region((0, 0, 7), (5, 6, 9))]


def test_what_is_in_order_is_not_copied():
    """A run of sections is a view of the store, as without a map; turned around as well."""
    array = numbered(SHAPE)
    shifted = Volume(array).with_axis_map(AxisMap.shift("K", 3))
    turned = Volume(array).with_axis_map(AxisMap.from_table("K", [8, 7, 6, 5]))

    assert np.shares_memory(shifted.read(Region((0, 0, 0), (5, 6, 4))).array, array)
    assert np.shares_memory(turned.numpy(), array)


def test_chunks_beside_a_turned_patch_stay_unread(tmp_path):
    """The box of a patch moves with its sections, so that culling goes on."""
    array = numbered((24, 24, 24))
    volume = Volume(write_v2(tmp_path / "a.zarr", array, (4, 4, 4)))
    mapped = volume.with_axis_map(AxisMap.shift("K", 4, "fill"))
    turn = np.array([[0.7, -0.7, 0, 12], [0.7, 0.7, 0, 0], [0, 0, 1, 2.0]])
    box = OrientedBox(turn, (14, 14, 4), (1.0, 1.0, 1.0))
    there_turn = turn.copy()
    there_turn[2, 3] += 4
    moved = OrientedBox(there_turn, (14, 14, 4), (1.0, 1.0, 1.0))
    region, there = Region((2, 0, 1), (22, 20, 7), box), Region((2, 0, 5), (22, 20, 11), moved)

    before = IO_COUNTERS.snapshot()
    found = mapped.read(region).array
    through_map = IO_COUNTERS.snapshot() - before
    before = IO_COUNTERS.snapshot()
    volume.read(there)
    directly = IO_COUNTERS.snapshot() - before

    voxels = np.stack(np.indices(there.shape), -1).reshape(-1, 3) + there.start
    needed = moved.touches(voxels, voxels + 1).reshape(there.shape)
    assert needed.any()
    np.testing.assert_array_equal(found[0][needed], array[there.slices][needed])
    assert (through_map.reads, through_map.bytes_read) == (1, directly.bytes_read)
    assert through_map.bytes_read < volume.probe().touched_bytes(there.pad(0))


def test_what_is_fetched_ahead_is_what_will_be_read():
    """One run after another, closed as one; nothing for a region of which nothing is stored."""
    backend = Volume(numbered(SHAPE)).with_axis_map(LATE_GAP).probe()
    asked, closed = [], []

    class Held:
        def __init__(self, region):
            self.region = region

        def close(self):
            closed.append(self.region)

    backend._inner.prefetch = lambda region, _channels: asked.append(region) or Held(region)
    ticket = backend.prefetch(Region((0, 0, 0), (5, 6, 5)))
    wanted = [Region((0, 0, 0), (5, 6, 1)), Region((0, 0, 5), (5, 6, 7))]

    assert asked == wanted
    assert closed == []
    ticket.close()
    assert closed == wanted
    assert backend.prefetch(Region((0, 0, 1), (5, 6, 3))) is None
    assert backend.fetch(Region((0, 0, 1), (5, 6, 3))) == 0
    assert backend.fetch(Region((0, 0, 0), (5, 6, 5))) == 2 * 5 * 6 * 3 * 2


def test_the_layout_is_the_store_s_of_another_shape(tmp_path):
    """What is negotiated knows the chunks, the place, and how much of it is shown."""
    volume = Volume(write_v2(tmp_path / "a.zarr", numbered((4, 4, 12)), (4, 4, 2)))
    own = volume.layout(3)

    layout = volume.with_axis_map(AxisMap.missing("K", [1], in_file=False)).layout(3)

    assert layout.shape == (4, 4, 13)
    assert (layout.chunk, layout.volumes, layout.itemsize) == (own.chunk, 3, own.itemsize)


def test_the_map_is_part_of_every_key(tmp_path):
    """Tokens, content keys and versions: equal for equal maps, else not."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    maps = [AxisMap.missing("K", [1]), AxisMap.missing("K", [1], "fill"), AxisMap.shift("K", 1)]
    volumes = [Volume(path), *(Volume(path).with_axis_map(one) for one in maps)]

    for key in (lambda v: v.token, lambda v: v.content_key, version_of):
        assert len({key(volume) for volume in volumes}) == 4
        assert key(volumes[1]) == key(Volume(path).with_axis_map(AxisMap.missing("K", [1])))


def test_a_copy_in_the_cache_is_one_of_what_is_shown(tmp_path):
    """With and without the map, side by side."""
    array = numbered((5, 6, 7))
    volume = Volume(write_nifti(tmp_path / "a.nii", array))
    mapped = volume.with_axis_map(AxisMap.missing("K", [3]))

    for seen in (volume, mapped):
        pipe = vp.from_cases([{"image": seen}]).open_volume().cache(tmp_path / "kept", chunk=4)
        np.testing.assert_array_equal(next(iter(pipe))["image"].realize(), seen.numpy())
    assert len(list((tmp_path / "kept").glob("*.zarr"))) == 2
    convert(mapped, tmp_path / "a.zarr", chunk=4)
    np.testing.assert_array_equal(Volume(tmp_path / "a.zarr").numpy(), mapped.numpy())
    close_volumes()


def test_statistics_are_of_what_is_shown(tmp_path):
    """Not those that the file has without a map, nor those of its manifest."""
    array = numbered((5, 6, 7))
    volume = Volume(write_nifti(tmp_path / "a.nii", array))
    mapped = volume.with_axis_map(AxisMap.from_table("K", [1, 1, 2]))

    assert volume_statistics(volume).count == array.size
    assert volume_statistics(mapped).mean == expected(array, 2, [1, 1, 2]).mean()


def test_a_manifest_has_no_map(tmp_path):
    """It says so, and where to give the map instead."""
    volume = Volume(write_nifti(tmp_path / "a.nii", numbered((5, 6, 7))))

    with pytest.raises(VolumeError, match="axis map"):
        describe_volume(volume.with_axis_map(AxisMap.shift("K", 1)), "a", "image")


def test_a_file_written_again_is_noticed(tmp_path):
    """The map does not hide that what is stored has changed."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    axis_map = AxisMap.missing("K", [3])
    Volume(path).with_axis_map(axis_map).numpy()
    other = np.flip(numbered((5, 6, 8))).copy()
    write_nifti(path, other)

    found = Volume(path).with_axis_map(axis_map).numpy()

    np.testing.assert_array_equal(found[0], expected(other, 2, [0, 1, 2, 2, 4, 5, 6, 7]))


def test_fill_is_a_value(tmp_path):
    """After slope and intercept; what the stored type cannot hold is refused."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)), scaling=(0.5, 10.0))
    volume = Volume(path)

    found = volume.with_axis_map(AxisMap.missing("K", [3], "fill", fill=12.5)).numpy()

    assert (found[..., 3] == 12.5).all()
    with pytest.raises(VolumeError, match=r"cannot show 1e\+06"):
        volume.with_axis_map(AxisMap.missing("K", [3], "fill", fill=1e6)).numpy()
    with pytest.raises(VolumeError, match="cannot show nan"):
        volume.with_axis_map(AxisMap.missing("K", [3], "fill", fill=np.nan)).numpy()
    # Nothing is missing, so nothing has to be shown.
    volume.with_axis_map(AxisMap.missing("K", [], "fill", fill=np.nan)).numpy()


def test_what_makes_no_sense_is_refused():
    """At construction where the arguments show it, else when the header is there."""
    for wrong in (
        lambda: AxisMap.shift("X", 1),
        lambda: AxisMap.shift(3, 1),
        lambda: AxisMap.missing("K", [-1]),
        lambda: AxisMap.missing("K", [1], "skip"),
        lambda: AxisMap.from_table("K", []),
        lambda: AxisMap.from_table("K", [0, -2]),
    ):
        with pytest.raises(ValueError, match="got"):
            wrong()
    with pytest.raises(TypeError):
        AxisMap.shift("K", 0.5)
    with pytest.raises(ValueError, match="one fill value"):
        AxisMap.shift("K", 1, "fill", fill=1).then(AxisMap.shift("I", 1, "fill", fill=2))
    volume = Volume(numbered(SHAPE))
    with pytest.raises(OutOfVolume, match=r"section 9 on axis K .* which has 9"):
        volume.with_axis_map(AxisMap.missing("K", [9])).shape  # noqa: B018
    with pytest.raises(OutOfVolume, match="section 6 on axis J"):
        volume.with_axis_map(AxisMap.from_table("J", [6])).shape  # noqa: B018
    with pytest.raises(OutOfVolume, match="no section on axis I"):
        volume.with_axis_map(AxisMap.shift("I", 5)).shape  # noqa: B018


def test_it_is_told_in_words():
    """On one line, however long the table."""
    told = repr(AxisMap.from_table("K", range(999)).then(AxisMap.missing(0, [1], "mask", fill=2)))

    assert told == "AxisMap(K: 999 sections from a table, 0 of them missing, nearest; " + (
        "I: 1 sections not shown, mask 2)"
    )


@pytest.mark.parametrize("length", [2, 4, 9])
def test_a_mask_has_one_boolean_for_each_section(length):
    """A mask of another length is refused, as is one that keeps nothing."""
    stack = Volume(np.arange(5).reshape(1, 1, 5))
    axis_map = AxisMap.from_table("K", [True] * 2 + [False] * (length - 2))
    with pytest.raises(OutOfVolume, match=f"a mask of {length} sections .*has 5"):
        stack.with_axis_map(axis_map).numpy()
    with pytest.raises(ValueError, match="keeps none"):
        AxisMap.from_table("K", np.zeros(5, bool))
