"""Two sessions in one process share nothing: neither files nor chunks, nor what was asked for."""

from __future__ import annotations

import copy
import io
import os
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.volumes import AxisMap, Volume, close_volumes
from voxpipe.volumes.session import SESSION, Session

VOXELS = np.random.default_rng(0).integers(-500, 500, (16, 16, 16)).astype(np.int16)
EVERYTHING = Region((0, 0, 0), VOXELS.shape)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A zarr of 64 chunks."""
    zarr.create_array(tmp_path / "a.zarr", data=VOXELS, chunks=(4, 4, 4))
    return str(tmp_path / "a.zarr")


def test_a_volume_reads_in_the_session_that_it_is_bound_to(path: str) -> None:
    """The file is open there and nowhere else, its chunks are kept there, and closed there."""
    close_volumes()
    one, other = Session(), Session()
    with closing(one.chunks.lend(VOXELS.nbytes)):
        for session in (one, other):
            assert np.array_equal(Volume(path).in_session(session).numpy()[0], VOXELS)
        assert (len(one.handles), len(other.handles), len(SESSION.handles)) == (1, 1, 0)
        assert one.chunks.held_bytes == VOXELS.nbytes
        assert other.chunks.held_bytes == SESSION.chunks.held_bytes == 0

        other.close()
        close_volumes()
        assert (len(one.handles), len(other.handles)) == (1, 0)
        missed = one.chunks.misses
        Volume(path).in_session(one).read(EVERYTHING)
        assert one.chunks.misses == missed


def test_bytes_of_a_remote_file_are_asked_for_in_its_session() -> None:
    """Not beside those of the process, which another loader bounds and empties."""
    content, session = io.BytesIO(), Session()
    np.save(content, VOXELS)
    fsspec.filesystem("memory").pipe_file("/sessions/a.npy", content.getvalue())
    volume = Volume("memory://sessions/a.npy").in_session(session)

    ticket: Any = volume.prefetch(EVERYTHING)

    assert (len(session.ahead), len(SESSION.ahead)) == (1, 0)
    assert np.array_equal(volume.numpy()[0], VOXELS)
    ticket.close()
    assert len(session.ahead) == 0


def test_documents_of_a_remote_volume_stay_in_its_session(path: str) -> None:
    """Another session that closes takes none of them away."""
    fsspec.filesystem("memory").put(path, "/sessions/a.zarr", recursive=True)
    close_volumes()
    one, other = Session(), Session()
    for session in (one, other):
        Volume("memory://sessions/a.zarr").in_session(session).numpy()
    kept = len(one.ahead.documents)
    assert kept > 0
    assert len(SESSION.ahead.documents) == 0

    other.close()

    assert (len(one.ahead.documents), len(other.ahead.documents)) == (kept, 0)


@pytest.mark.parametrize("form", ["stacked", "mapped", "copied", "for a pass"])
def test_what_is_made_of_a_bound_volume_is_bound(path: str, form: str) -> None:
    """Parts of a list, what an axis map shows, copies, and the volume of an epoch."""
    close_volumes()
    session = Session()
    bound: Any = {
        "stacked": lambda: Volume([path, path]).in_session(session),
        "mapped": lambda: (
            Volume(path).in_session(session).with_axis_map(AxisMap.from_table("K", [3, 2, 1]))
        ),
        "copied": lambda: copy.deepcopy(Volume(path).in_session(session)),
        "for a pass": lambda: Volume(path).in_session(session).opened_anew("a pass"),
    }[form]()
    bound.numpy()

    assert len(session.handles) > 0
    assert len(SESSION.handles) == 0


def test_a_volume_travels_without_its_session(path: str) -> None:
    """Another process has one of its own."""
    volume = pickle.loads(pickle.dumps(Volume(path).in_session(Session())))

    assert volume.session is SESSION


def test_two_loaders_in_sessions_of_their_own_disturb_nobody(path: str) -> None:
    """They give the same batches, side by side, though one is closed in between."""
    close_volumes()
    sessions = [Session(), Session()]

    def loader(session: Session) -> Any:
        volume = Volume(path).in_session(session)
        pipe = vp.from_cases([{"image": volume}]).open_volume()
        pipe = pipe.lazy_patch((6, 6, 6), samples_per_volume=6).rotate((-20, 20)).batch_patches(2)
        return vp.DataLoader2(pipe, seed=3)

    expected = [batch["image"] for batch in loader(SESSION)]
    with loader(sessions[0]) as one, loader(sessions[1]) as other:
        first, second = iter(one), iter(other)
        assert (next(first)["image"] == expected[0]).all()
        assert (next(second)["image"] == expected[0]).all()
        assert [len(session.handles) for session in sessions] == [1, 1]
        sessions[0].close()
        assert len(sessions[1].handles) == 1
        assert all(
            (batch["image"] == e).all() for batch, e in zip(second, expected[1:], strict=True)
        )
        assert all(
            (batch["image"] == e).all() for batch, e in zip(first, expected[1:], strict=True)
        )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_with_empty_sessions(path: str) -> None:
    """One hook for all that a session holds."""
    session = Session()
    loan = session.chunks.lend(VOXELS.nbytes)
    Volume(path).in_session(session).numpy()
    child = os.fork()
    if child == 0:
        left = len(session.handles) + session.chunks.held_bytes + session.ahead.held_bytes
        os._exit(min(left, 1))
    _, status = os.waitpid(child, 0)
    loan.close()

    assert os.waitstatus_to_exitcode(status) == 0
    assert len(session.handles) == 1
