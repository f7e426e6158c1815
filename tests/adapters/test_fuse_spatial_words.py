"""What the fusion log says is what the chain costs."""

from typing import Any

import numpy as np

import voxpipe as vp


def test_a_crop_that_asks_a_volume_costs_no_interpolation() -> None:
    """It stays a pipe of its own, and the log says that this is all."""
    label = np.zeros((12, 12, 12), np.uint8)
    label[3:9, 3:9, 3:9] = 1
    case: dict[str, Any] = {"image": label.astype(np.float32), "label": label}
    pipe = vp.from_cases([case]).open_volume().foreground_crop("label").rotate(5).batch_patches(1)

    refused = [change for change in vp.FuseSpatial().rewrite(pipe).changes if change.reason]
    told = vp.FuseSpatial()(pipe).explain()

    assert refused
    assert all("costs no interpolation more" in str(change) for change in refused)
    assert "2 interpolations" in told  # one for each volume
