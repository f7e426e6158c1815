"""Page-lock slots where CUDA is in use, so that copies to the device need no detour.

A slot is registered when its first batch is opened after CUDA was initialised by the user
(a model was moved to a device). CUDA is never initialised from here: that takes some hundred
megabytes and breaks programs that fork later.

A copy with ``non_blocking=True`` out of page-locked memory may still run when its tensor is
gone, and torch guards only memory of its own allocator. So a pinned slot is not handed back
before the devices have done all that they had been given, on every stream.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

Check: TypeAlias = "Callable[[], bool]"


class Registrar(Protocol):
    """Who page-locks memory."""

    def is_ready(self) -> bool:
        """Whether memory can be registered now."""

    def pin(self, address: int, size: int) -> bool:
        """Register memory; False if the system refuses, which costs speed only."""

    def unpin(self, address: int) -> None:
        """Undo it; no device reads the memory when this returns."""

    def mark(self) -> Check:
        """Return a check whether the devices have done what they were given until now."""


class Cuda:
    """Page-locks with torch's own CUDA runtime."""

    def is_ready(self) -> bool:
        """Whether the user has initialised CUDA in this process."""
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_initialized())

    def pin(self, address: int, size: int) -> bool:
        """Register for all devices; the limit on locked memory may refuse it."""
        portable = 1  # cudaHostRegisterPortable
        return not int(_torch().cuda.cudart().cudaHostRegister(address, size, portable))

    def unpin(self, address: int) -> None:
        """Undo it, once nothing can be copying any more: the memory goes away after this."""
        if self.is_ready():
            for device in _devices():
                _torch().cuda.synchronize(device)
            _torch().cuda.cudart().cudaHostUnregister(address)

    def mark(self) -> Check:
        """Record an event over all streams of each device that is in use."""
        if not self.is_ready():
            return _done
        events = [_event_on(device) for device in _devices()]
        return lambda: all(event.query() for event in events if event is not None)


def _done() -> bool:
    return True


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
    """Let an event stand for all streams of the current context; False if it cannot.

    The driver knows how from CUDA 12.5 on. Without, only waiting for the device is safe:
    an event covers one stream, and the user may copy on any.
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
