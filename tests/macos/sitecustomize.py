"""Every Python process with this folder on PYTHONPATH lacks names that macOS lacks.

So the paths for macOS run on Linux, in workers too: ``make test-macos``.
"""

import mmap
import os
import select
import signal
import socket

ABSENT = {
    mmap: ("MADV_DONTFORK", "MADV_HUGEPAGE", "MADV_REMOVE", "MAP_POPULATE"),
    os: (
        *("O_DIRECT", "copy_file_range", "eventfd", "memfd_create", "pidfd_open"),
        *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "splice"),
        *(name for name in dir(os) if name.startswith(("MFD_", "POSIX_FADV_", "RWF_"))),
    ),
    select: ("epoll",),
    signal: ("SIGRTMAX", "SIGRTMIN", "sigtimedwait", "sigwaitinfo"),
    socket: ("MSG_CMSG_CLOEXEC", "SOCK_CLOEXEC", "SO_PEERCRED"),
}
if __name__ == "sitecustomize":
    for module, names in ABSENT.items():
        for name in names:
            vars(module).pop(name, None)
