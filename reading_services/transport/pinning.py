"""Page-lock slots where CUDA is in use, so that copies to the device need no detour."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

# A slot is registered when its first batch is opened after CUDA was initialised by the user
# (a model was moved to a device). CUDA is never initialised from here: that takes some hundred
# megabytes and breaks programs that fork later.
#
# A copy with ``non_blocking=True`` out of page-locked memory may still run when its tensor is
# gone, and torch guards only memory of its own allocator. So a pinned slot is not handed back
# before the devices have done all that they had been given, on every stream.
#
# While the calling thread captures a CUDA graph nothing is registered, recorded or asked: each
# of these would end the capture. Slots that were given back meanwhile wait until it is over.

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
        """Undo it, once nothing can be copying any more: the memory goes away after this."""
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

    torch's binding lacks this, so the library that torch has loaded is asked, where it is one.
    """
    maps = Path("/proc/self/maps")
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        lines = (
            line for line in maps.read_text(encoding="utf-8").splitlines() if "/libcudart" in line
        )
        # Loading what is loaded gives the same library, and so the same last error.
        ctypes.CDLL(next(lines).split(maxsplit=5)[5]).cudaGetLastError()


def _torch() -> Any:
    return sys.modules["torch"]


def _devices() -> list[int]:
    torch = _torch()
    in_use = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return [n for n in range(torch.cuda.device_count()) if in_use is None or in_use(n)]


def _event_on(device: int) -> Any:
    """Return an event after all work of a device, or None once the device was waited for."""
    torch = _torch()
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()  # makes it; what it covers is replaced below
        if not _covers_context(event.cuda_event):
            torch.cuda.synchronize(device)
            return None
        return event


def _covers_context(event: int) -> bool:
    """Let an event stand for all streams of the current context: CUDA 12.5's driver knows how.

    Without, only waiting for the device is safe: the user may copy on any stream.
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
