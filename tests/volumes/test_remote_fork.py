"""A fork after a bucket was read: right voxels or an error with a name, never a hang."""

import os
import textwrap

import numpy as np
import pytest

zarr = pytest.importorskip("zarr")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

SCRIPT = textwrap.dedent("""
    import faulthandler, os, signal, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)
    # An alarm shows every stack and ends the process. The watch of faulthandler itself does not
    # survive a fork.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(60)
    import numpy as np
    from voxpipe.core import Region
    from voxpipe.core.errors import ForkUnsafe
    from voxpipe.volumes import Volume
    from voxpipe.storage.remote import open_remote

    url, endpoint, what, os.environ["VOXPIPE_REMOTE"] = sys.argv[1:]
    options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
    volume = Volume(url, storage_options=options)
    store = open_remote(url, options)
    whole = Region.of_shape((8, 8, 8))
    pages = {}
    expected = np.arange(512).reshape(8, 8, 8)

    def is_right():
        if what == "listing":
            web = endpoint + url.removeprefix("s3:/")
            store_of_pages = pages.setdefault(web, open_remote(web, {}))
            assert list(store_of_pages.list()) == []
        if what in ("store", "listing"):
            return store.get("zarr.json") is not None
        return (volume.read(whole).array[0] == expected).all()

    assert is_right()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            os._exit(0 if is_right() else 1)
        except ForkUnsafe as error:
            print(error, flush=True)
            os._exit(7)
    _, status = os.waitpid(child, 0)
    assert is_right()
    sys.stdout.write(f"child {os.waitstatus_to_exitcode(status)}")
    sys.stdout.flush()
    os._exit(0)
""")


@forks
@pytest.mark.parametrize(
    ("wish", "what", "answer"),
    [
        ("fsspec", "volume", "child 0"),
        ("fsspec", "store", "child 0"),
        # Chosen by itself: the child goes on with fsspec.
        ("", "volume", "child 0"),
        ("", "store", "child 0"),
        # A store that reads in both ways.
        ("", "listing", "child 0"),
        ("obstore", "volume", "child 7"),
        ("obstore", "store", "child 7"),
    ],
)
def test_fork(warm_python, server, wish, what, answer):
    """Each client, through a volume and through a store that the child inherits."""
    array = np.arange(512).reshape(8, 8, 8)
    stored = zarr.create_array(server.bucket / "a.zarr", shape=array.shape, dtype=array.dtype)
    stored[...] = array

    found = warm_python.run(SCRIPT, "s3://bucket/a.zarr", server.url, what, wish)

    assert found.stdout.endswith(answer), found.stdout + found.stderr
    if answer == "child 7":
        assert "whose threads do not survive a fork" in found.stdout
        assert "forkserver" in found.stdout


STORE = textwrap.dedent("""
    import signal, sys
    signal.alarm(60)
    import numpy as np, obstore, zarr
    import voxpipe as vp
    from voxpipe.core.errors import ForkUnsafe

    zarr.create_array(sys.argv[1], shape=(4, 4, 4), chunks=(4, 4, 4), dtype="f4", fill_value=3)
    store = zarr.storage.ObjectStore(obstore.store.LocalStore(sys.argv[1]))
    if sys.argv[2] == "logged":
        store = zarr.storage.LoggingStore(store)
    chain = vp.from_cases([{"image": store}]).open_volume().lazy_patch(4).batch_patches(1)
    service = vp.MultiProcessingReadingService(1, sys.argv[3])
    if __name__ == "__main__":
        try:
            print(float(next(iter(vp.DataLoader2(chain, None, service)))["image"].mean()))
        except ForkUnsafe as error:
            print(error.message)
""")


@forks
@pytest.mark.parametrize("how", [pytest.param("bare", marks=pytest.mark.slow), "logged"])
def test_a_store_of_obstore_in_forked_workers(warm_python, tmp_path, how):
    """It is refused by name, and not waited for: the threads of obstore are not in the child."""
    pytest.importorskip("obstore")
    run = warm_python.run(STORE, str(tmp_path / "a.zarr"), how, "fork")

    assert run.returncode == 0, run.stderr
    assert "reads through obstore, whose threads" in run.stdout
