"""What people write who come from MONAI or TorchIO: the message says what is written here."""

import numpy as np
import pytest

import voxpipe as vp

VOLUME = np.zeros((6, 6, 6), np.float32)


def opened(**case):
    return vp.from_cases([{"image": VOLUME, "case": "c", **case}]).open_volume()


@pytest.mark.parametrize("field", ["mode", "padding"])
def test_a_tuple_in_the_order_of_the_keys_is_a_mapping_here(field):
    with pytest.raises(ValueError, match=rf"{field} is one value, .* {field}=\{{'image': "):
        opened().rotate(5, **{field: ("linear", "nearest")})
