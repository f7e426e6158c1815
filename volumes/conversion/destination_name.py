"""Whether a converted volume may have a name: it is opened again by its name."""

from __future__ import annotations

import posixpath

from ...core.errors import UnknownFormat
from ...storage.location import is_url, public_name
from ..catalog.find import plain_name
from ..registry import BackendRequest, recognised

_ZARR = ".zarr"


def refuse_other_formats(destination: str) -> None:
    """Raise where the name of a zarr group to be written is that of another format.

    A folder without a suffix is fine: what is in it tells that it is zarr.

    Raises
    ------
    UnknownFormat
        The suffix is that of a format that is not written, such as ``.nii.gz``.
    """
    shown = public_name(destination) if is_url(destination) else destination
    name = posixpath.basename(shown.replace("\\", "/").rstrip("/"))
    if name.lower().endswith(_ZARR) or plain_name(name) == name:
        return
    # As a URL, so that only the name counts, not what is there.
    if recognised(BackendRequest(uri=f"file:///{name}")):
        place, stem = shown.rstrip("/"), plain_name(name).removesuffix(_ZARR)
        raise UnknownFormat(
            f"sharded zarr is written, and {place} is the name of another format.",
            do=f"Call it {place[: -len(name)]}{stem}.nii.zarr.",
        )
