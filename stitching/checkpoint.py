"""Checkpoint of a stitched volume: the windows that came, and the sums that were open.

A JSON file next to the file of the sums, written after it and then renamed. A kill leaves the
checkpoint before, whose slots are not overwritten until the next one is complete.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.sample import parse_json
from ..storage.disk_cache import boot, open_no_link, write_beside
from .open_cells import OpenCells, Slot
from .stitcher import Stitcher

STATE = "state.json"
"""The name of a checkpoint."""
SUMS = "sums"
"""The name of the file of the sums, in the same folder."""
_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """State of a run."""

    channels: int
    """Channels of the model's output; 0 before the first window."""
    present: NDArray[np.bool_]
    """Windows that were added."""
    past: NDArray[np.bool_]
    """Windows that were added or left out."""
    table: list[tuple[tuple[Any, ...], Slot]]
    """Slots of the open sums in the file."""

    @classmethod
    def read(cls, folder: Path | None, key: str, count: int) -> Checkpoint | None:
        """Return the checkpoint of a run of ``count`` windows; None without a valid one."""
        # Without an identifier of this boot the written bytes cannot be trusted.
        if folder is None or not boot():
            return None
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open(folder / STATE, "rb", opener=open_no_link) as file:
                state = parse_json(file.read())
            # Bytes that were not synced before a crash of the machine are lost.
            if [state["version"], state["key"], state["boot"]] == [_VERSION, key, boot()]:
                table = [
                    (tuple(name), Slot(int(offset), tuple(map(int, shape)), str(np.dtype(dtype))))
                    for name, offset, shape, dtype in state["open"]
                ]
                end = max((slot.offset + slot.size for _, slot in table), default=0)
                if end <= _size(folder / SUMS):
                    present, past = (_bits(state[n], count) for n in ("present", "past"))
                    return cls(int(state["channels"]), present, past, table)
        return None

    @staticmethod
    def write(folder: Path, key: str, stitcher: Stitcher, cells: OpenCells) -> None:
        """Write the state of a run; write nothing if :meth:`read` would refuse it."""
        if not boot():
            return
        table = cells.write_all()
        state = {
            "version": _VERSION,
            "key": key,
            "boot": boot(),
            "channels": stitcher.channels,
            "present": np.packbits(stitcher.present).tobytes().hex(),
            "past": np.packbits(stitcher.past).tobytes().hex(),
            "open": [[list(name), slot.offset, slot.shape, slot.dtype] for name, slot in table],
        }
        write_beside(folder / STATE, [json.dumps(state).encode()], sync=False, key="run")
        cells.keep(table)


def _bits(text: str, count: int) -> NDArray[np.bool_]:
    raw = np.frombuffer(bytes.fromhex(text), np.uint8)
    bits = np.unpackbits(raw, count=count)
    if bits.size != count:
        raise ValueError("it is of another number of windows")
    return bits.astype(np.bool_)


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
