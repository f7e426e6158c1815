"""Page-lock slots if CUDA is in use, so that copies to the device need no staging buffer."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

# A slot is registered when its first batch is opened after the user initialised CUDA (e.g. moved a
# model to a device). This module never initialises CUDA: that takes some hundred megabytes and
# breaks programs that fork later.
#
# A copy with ``non_blocking=True`` out of page-locked memory may still run when its tensor is
# gone, and torch guards only memory of its own allocator. So a pinned slot is not released before
# all devices have finished their current work, on every stream.
#
# While the calling thread captures a CUDA graph, no call registers, records or queries: each
# would end the capture. Slots that were freed meanwhile wait until the capture is over.

Check: TypeAlias = "Callable[[], bool]"


class Cuda:
    """Page-locks with torch's own CUDA runtime."""

    def is_ready(self) -> bool:
        """Whether the user has initialised CUDA in this process, and no capture is going on."""
        return _is_initialized() and not _is_capturing()

    def pin(self, address: int, size: int) -> bool:
        """Register for all devices; the limit on locked memory may refuse it."""
        portable = 1  # cudaHostRegisterPortable
        error = int(_torch().cuda.cudart().cudaHostRegister(address, size, portable))
        if error:
            _forget_error()
        return not error

    def unpin(self, address: int) -> None:
        """Unregister memory after all copies have ended, as it is unmapped next."""
        if _is_initialized():
            for device in _devices():
                _torch().cuda.synchronize(device)
            _torch().cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> Check:
        """Record an event over all streams of each device that is in use."""
        if not _is_initialized():
            return lambda: True
        events: list[Any] | None = None

        def is_done() -> bool:
            nonlocal events
            if _is_capturing():
                return False
            if events is None:
                events = [_event_on(device) for device in _devices()]
            return all(event.query() for event in events if event is not None)

        if not _is_capturing():
            events = [_event_on(device) for device in _devices()]
        return is_done


def _is_initialized() -> bool:
    return "torch" in sys.modules and bool(_torch().cuda.is_initialized())


def _is_capturing() -> bool:
    """Whether this thread's current stream is recorded into a CUDA graph."""
    return bool(_torch().cuda.is_current_stream_capturing())


def _forget_error() -> None:
    """Clear the runtime's last error, or the user's next kernel would be blamed for it.

    torch's binding lacks this function, so it is called in the library that torch has loaded.
    """
    maps = Path("/proc/self/maps")
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        lines = (
            line for line in maps.read_text(encoding="utf-8").splitlines() if "/libcudart" in line
        )
        # A second load returns the same library, and so the same last error.
        ctypes.CDLL(next(lines).split(maxsplit=5)[5]).cudaGetLastError()


def _torch() -> Any:
    return sys.modules["torch"]


def _devices() -> list[int]:
    torch = _torch()
    in_use = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return [n for n in range(torch.cuda.device_count()) if in_use is None or in_use(n)]


def _event_on(device: int) -> Any:
    """Return an event after all work of a device; None after a wait for the device."""
    torch = _torch()
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()  # creates it; the next call replaces its coverage
        if not _covers_context(event.cuda_event):
            torch.cuda.synchronize(device)
            return None
        return event


def _covers_context(event: int) -> bool:
    """Record an event over all streams of the current context, with a driver of CUDA 12.5 or later.

    With an older driver only a wait for the device is safe: the user may copy on any stream.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        record = driver.cuCtxRecordEvent
    except (OSError, AttributeError):
        return False
    context = ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)):
        return False
    return not record(context, ctypes.c_void_p(event))
