"""Policies with ``override=True`` win over those of later pipes."""

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


def batches(pipe, workers=0):
    """Return the batches of an epoch."""
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    with vp.DataLoader2(pipe, None, service, seed=2) as loader:
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
def test_what_pipes_ask_for_is_overridden(workers):
    """Other keys are as the chain says."""
    chain = asking(vp.from_cases(CASES).open_volume(policies=NEAREST, override=True))

    found = batches(chain.batch_patches(2), workers)

    assert same(found, as_nearest())
    assert float(found[0]["image"].min()) == -5.0
    values = set(np.unique(found[0]["image"].numpy()).tolist())
    assert values <= {-5.0, *map(float, range(8**3))}


def test_explain_shows_what_holds():
    """The sampling of every key."""
    chain = asking(vp.from_cases(CASES).open_volume(policies=NEAREST, override=True))

    assert "image  intensity  nearest, constant -5 outside" in chain.batch_patches(2).explain()


def test_without_override_it_is_a_conflict():
    """A pipe that asks for something else names both places."""
    with pytest.raises(PolicyConflict, match="mode='cubic' here, but mode='nearest'"):
        asking(vp.from_cases(CASES).open_volume(policies=NEAREST))


def test_mistakes_are_told_where_they_are_written():
    """No policies, a value that is no policy, a key that no sample has."""
    head = vp.from_cases(CASES)
    with pytest.raises(SampleError, match="none are given"):
        head.open_volume(override=True)
    with pytest.raises(SampleError, match="which is no Policy"):
        head.open_volume(policies={"image": "nearest"}, override=True)
    with pytest.raises(SampleError, match=r"policies= names 'imege'"):
        batches(head.open_volume(policies={"imege": Policy()}, override=True).batch_patches(2))


def test_stacked_channels_keep_their_own():
    """A key that was overridden stays so inside a stack."""
    pipe = vp.from_cases(CASES).open_volume(policies=NEAREST, override=True)
    pipe = pipe.stack(("image", "ct"), "both").rotate(20, mode={"both": "cubic"})

    (batch,) = batches(pipe.batch_patches(2))

    assert set(batch["both"][:, 0].unique().tolist()) <= {-5.0, *map(float, range(8**3))}
    assert not float(batch["both"][0, 1].ravel()[333]).is_integer()
