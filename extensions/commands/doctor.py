"""Check the installation and the machine, and name the fix of each lack.

Show versions, the path of the kernel, codecs and libraries of formats, cores and their quota, and
shared memory. Show limits of the process, CUDA and Ray, too. For each lack, print the line that
installs or raises it. The exit status is 1 if a required part is missing.

example: voxpipe doctor
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import sys
import warnings
from importlib import metadata
from importlib.util import find_spec
from typing import Any, NamedTuple

from ...core.errors import BadSetting
from ...core.settings import bytes_text
from .printing import print_json, print_table

_REQUIREMENTS = ("torch", "numpy", "zarr", "numcodecs", "nibabel", "fsspec", "s3fs", "obstore")
# Optional packages: the extra of voxpipe that installs them, and their use.
_OPTIONAL = {
    "isal": ("fast", "gzip decodes about twice as fast"),
    "tifffile": ("formats", "TIFF, OME-TIFF, ImageJ"),
    "imagecodecs": ("formats", "compressions of TIFF"),
    "h5py": ("formats", "HDF5"),
    "blosc2": ("formats", ".b2nd of nnU-Net"),
    "bioio": ("bio", "CZI, ND2 and LIF of microscopes"),
    "pydicom": ("dicom", "DICOM"),
    "SimpleITK": ("medical", "compressed DICOM, VTK, GIPL, PNG"),
    "pyarrow": ("parquet", "manifests of many volumes"),
    "matplotlib": ("viz", "pictures"),
    "cloudpickle": ("notebook", "functions of notebook cells in workers"),
    "rich": ("cli", "tables in the terminal"),
    "redis": ("redis", "a store of cache_items() for several machines"),
    "ray": ("ray", "workers on other machines"),
}
_LEAST_MEMORY = 1 << 30  # a few batches of 128^3 patches in each of several workers
_LEAST_FILES = 1024


class _Fact(NamedTuple):
    name: str
    value: str
    state: str = "ok"  # "ok", "none", "lacks" for an option, "bad" for a requirement
    fix: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command looks at this installation."""


def run(arguments: argparse.Namespace) -> int:
    """Print the facts and fixes; return 1 if a requirement is missing."""
    kernel = _kernel()
    facts = [*_versions(), kernel, _codecs(kernel.state == "ok"), *_packages()]
    facts += [*_machine(), *_accelerators(), *_settings()]
    is_bad = any(fact.state == "bad" for fact in facts)
    if arguments.json:
        print_json({"ok": not is_bad, "facts": [fact._asdict() for fact in facts]})
        return int(is_bad)
    print_table(("part", "state", "value"), [(f.name, f.state, f.value) for f in facts])
    fixes = dict.fromkeys(fact.fix for fact in facts if fact.fix)
    if fixes:
        print("\nto fix, run or set:")
        print("\n".join(f"  {fix}" for fix in fixes))
    return int(is_bad)


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "" if find_spec(package) is None else "of an unknown version"


def _versions() -> list[_Fact]:
    facts = [_Fact("voxpipe", _version_of("voxpipe")), _Fact("Python", sys.version.split()[0])]
    facts.append(_Fact("system", f"{platform.system()} {platform.release()} {platform.machine()}"))
    for package in _REQUIREMENTS:
        version = _version_of(package)
        fix = "" if version else f"pip install {package}"
        facts.append(_Fact(package, version or "missing", "ok" if version else "bad", fix))
    return facts


def _kernel() -> _Fact:
    from ...spatial.resampling.native_resampler import path

    try:
        with warnings.catch_warnings(action="ignore"):  # this table shows the lack and its fix
            name = path()
    except BadSetting as error:
        return _Fact("kernel", error.message, "bad", "unset VOXPIPE_NATIVE")
    if name is not None:
        return _Fact("kernel", name)
    if os.environ.get("VOXPIPE_NATIVE") == "0":
        return _Fact("kernel", "disabled by VOXPIPE_NATIVE=0", "lacks", "unset VOXPIPE_NATIVE")
    # pip caches wheels that it built, also one without the kernel.
    fix = (
        "pip install --force-reinstall --no-deps --no-cache-dir --no-binary voxpipe voxpipe"
        "  (with a C++ compiler; in a checkout: make native)"
    )
    return _Fact("kernel", "not built: resampling is slow", "lacks", fix)


def _packages() -> list[_Fact]:
    facts = []
    for package, (extra, use) in _OPTIONAL.items():
        if version := _version_of(package):
            facts.append(_Fact(package, version))
        else:
            fix = f"pip install voxpipe[{extra}]"
            facts.append(_Fact(package, f"missing: {use}", "lacks", fix))
    return facts


def _codecs(has_kernel: bool) -> _Fact:
    from ...volumes.chunks.native_chunks import native_decoder

    names = ("blosc", "zstd", "blosc2")
    native = [name for name in names if has_kernel and native_decoder(name) is not None]
    slow = [name for name in names if name not in native]
    value = f"decoded by the kernel: {', '.join(native) or 'none'}"
    return _Fact("codecs", value + (f"; one by one: {', '.join(slow)}" if slow else ""))


def _machine() -> list[_Fact]:
    from ...batching.collate import usable_cores
    from ...core.memory import core_quota, usable_memory

    quota, count = core_quota(), os.cpu_count() or 1
    limit = "no quota" if math.isinf(quota) else f"a quota of {quota:g}"
    facts = [_Fact("cores", f"{usable_cores()} usable of {count}, {limit}")]
    memory = usable_memory()
    facts.append(_Fact("memory", bytes_text(memory) if memory else "unknown"))
    facts.append(_shared_memory())
    facts += _limits()
    return facts


def _shared_memory() -> _Fact:
    if not os.path.isdir("/dev/shm"):
        return _Fact("/dev/shm", "missing: batches of workers are copied", "lacks")
    usage = shutil.disk_usage("/dev/shm")
    value = f"{bytes_text(usage.free)} free of {bytes_text(usage.total)}"
    if usage.free >= _LEAST_MEMORY:
        return _Fact("/dev/shm", value)
    fix = "docker run --shm-size=8g ...   (or: mount -o remount,size=8G /dev/shm)"
    return _Fact("/dev/shm", f"{value}: little for batches of workers", "lacks", fix)


def _limits() -> list[_Fact]:
    import resource

    def words(limit: int) -> str:
        return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)

    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= files < _LEAST_FILES
    fix = f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}" if few else ""
    state = "lacks" if few else "ok"
    facts = [_Fact("open files", f"{words(files)}, at most {words(hard)}", state, fix)]
    for name, kind in (("processes", "RLIMIT_NPROC"), ("address space", "RLIMIT_AS")):
        soft, hard = resource.getrlimit(getattr(resource, kind))
        facts.append(_Fact(name, f"{words(soft)}, at most {words(hard)}"))
    return facts


def _accelerators() -> list[_Fact]:
    if find_spec("torch") is None:
        return []
    import torch

    if not torch.cuda.is_available():
        if not os.path.exists("/dev/nvidiactl"):
            return [_Fact("CUDA", "no NVIDIA device in this machine", "none")]
        if torch.version.cuda is None:
            fix = "pip install --force-reinstall torch  (a build for CUDA)"
            return [_Fact("CUDA", "this torch is built without CUDA", "lacks", fix)]
        value = f"torch for CUDA {torch.version.cuda} finds no usable device"
        return [_Fact("CUDA", value, "lacks", "nvidia-smi  (is the driver new enough?)")]
    devices = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return [_Fact("CUDA", f"{torch.version.cuda}: {', '.join(devices)}")]


def _settings() -> list[_Fact]:
    from ...core.settings import NAMES, read_setting

    facts = []
    for name in NAMES:
        if text := os.environ.get(name):
            fact: Any = _Fact(name, text)
            try:
                read_setting(name, None)
            except BadSetting as error:
                fact = _Fact(name, error.message, "bad", f"unset {name}")
            facts.append(fact)
    return facts
