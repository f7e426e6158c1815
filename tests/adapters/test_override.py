"""Policies given where a chain is used hold whatever its pipes ask for."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import PolicyConflict, SampleError
from voxpipe.spatial import Policy

NEAREST = {"image": Policy("nearest", "constant", fill=-5.0)}
RAMP = np.arange(8**3, dtype=np.int16).reshape(8, 8, 8)
CASES = [{"image": RAMP, "ct": RAMP, "label": (RAMP > 99).astype(np.uint8)}] * 2


def asking(pipe):
    """Return pipes that ask for their own sampling, before and after a flush."""
    pipe = pipe.rotate(20, mode="cubic").zoom(1.1, padding={"image": "reflection"})
    return pipe.flush().translate(0.4, mode={"image": "linear", "ct": "linear"})


def batches(pipe, adapters=(), workers=0):
    """Return the batches of an epoch."""
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    with vp.DataLoader2(pipe, [*adapters, vp.FuseSpatial()], service, seed=2) as loader:
        return list(loader)


def as_nearest():
    """Return the batches of the chain, written with these policies."""
    pipe = vp.from_cases(CASES).open_volume(policies=NEAREST)
    pipe = pipe.rotate(20, mode={"ct": "cubic"}).zoom(1.1).flush()
    return batches(pipe.translate(0.4, mode={"ct": "linear"}).batch_patches(2))


def same(some, others):
    """Whether all volumes of all batches are the same bits."""
    pairs = zip(some, others, strict=True)
    return all(bool((a[key] == b[key]).all()) for a, b in pairs for key in ("image", "ct", "label"))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("place", ["open_volume", "loader"])
def test_what_pipes_ask_for_is_overridden(place, workers):
    """Given to the head or to the loader; other keys are as the chain says."""
    head = vp.from_cases(CASES)
    if place == "open_volume":
        chain = asking(head.open_volume(policies=NEAREST, override=True)).batch_patches(2)
    else:
        chain = asking(head.open_volume()).batch_patches(2)
    adapters = [vp.Override(NEAREST)] if place == "loader" else []

    found = batches(chain, adapters, workers)

    assert same(found, as_nearest())
    assert float(found[0]["image"].min()) == -5.0
    values = set(np.unique(found[0]["image"].numpy()).tolist())
    assert values <= {-5.0, *map(float, range(8**3))}


def test_the_chain_itself_stays_as_it_is():
    """A chain that a loader was given other policies for asks for its own."""
    chain = asking(vp.from_cases(CASES).open_volume())
    before = batches(chain.batch_patches(2))

    batches(chain.batch_patches(2), [vp.Override(NEAREST)])

    assert same(batches(chain.batch_patches(2)), before)


def test_explain_shows_what_holds():
    """The sampling of every key, and that the adapter changed the chain."""
    chain = asking(vp.from_cases(CASES).open_volume()).batch_patches(2)

    with vp.DataLoader2(chain, [vp.Override(NEAREST), vp.FuseSpatial()]) as loader:
        text = str(loader.explain())

    assert "image  intensity  nearest, constant -5 outside" in text
    assert "sample by other policies" in text


def test_without_override_it_is_a_conflict():
    """A pipe that asks for something else names both places."""
    with pytest.raises(PolicyConflict, match="mode='cubic' here, but mode='nearest'"):
        asking(vp.from_cases(CASES).open_volume(policies=NEAREST))


def test_mistakes_are_told_where_they_are_written():
    """No policies, what is none, a key that no sample has."""
    head = vp.from_cases(CASES)
    with pytest.raises(SampleError, match="none are given"):
        head.open_volume(override=True)
    with pytest.raises(SampleError, match="which is no Policy"):
        vp.Override({"image": "nearest"})
    with pytest.raises(SampleError, match="given no policies"):
        vp.Override({})
    with pytest.raises(SampleError, match=r"policies= speaks of 'imege'"):
        batches(head.open_volume().batch_patches(2), [vp.Override({"imege": Policy()})])


def test_stacked_channels_keep_their_own():
    """A key that was overridden stays so inside a stack."""
    pipe = vp.from_cases(CASES).open_volume(policies=NEAREST, override=True)
    pipe = pipe.stack(("image", "ct"), "both").rotate(20, mode={"both": "cubic"})

    (batch,) = batches(pipe.batch_patches(2))

    assert set(batch["both"][:, 0].unique().tolist()) <= {-5.0, *map(float, range(8**3))}
    assert not float(batch["both"][0, 1].ravel()[333]).is_integer()
