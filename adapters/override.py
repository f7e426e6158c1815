"""Sample by other policies than the chain asks for, without editing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.call_site import caller
from ..core.errors import SampleError
from ..datapipes.batch_patches import override_rule
from ..datapipes.sampling import refuse_no_policies
from ..graph import Rule
from ..spatial import Policy
from .adapter import Adapter


class Override(Adapter):
    """Open volumes with policies that hold whatever the pipes of the chain ask for.

    ::

        open_volume()                      open_volume(), with the policies
        rotate(15, mode="cubic")     →     rotate(15, mode="cubic"), which changes them no more

    As MONAI's ``overrides``. Draws, shapes and affines stay the same; other volumes are sampled as
    the chain says.

    Parameters
    ----------
    policies
        ``Policy`` by key; all of it holds, its padding and fill too.

    Raises
    ------
    SampleError
        There is none among them; or, at the first sample, a key that it does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume().rotate(15, mode="cubic")
    >>> next(iter(Override({"image": Policy("nearest")})(pipe)))["image"].policy.mode
    'nearest'
    """

    def __init__(self, policies: Mapping[str, Policy]) -> None:
        origin = caller("Override(...)")
        if not policies:
            msg = "Override() is given no policies"
            raise SampleError(msg, do='Write Override({"image": vp.Policy(...)}).').at(origin)
        refuse_no_policies(policies, origin)
        self.policies = dict(policies)
        self._origin = origin

    def rules(self) -> Sequence[Rule]:
        """Return the one rule."""
        return (override_rule(self.policies, self._origin),)
