"""The demo's cases in a bucket: copied there as they are, one object per file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .core.errors import MissingDependency, VolumeError
from .demo_data import Case
from .volumes.stores.location import file_system, is_url, public_name


def in_bucket(cases: Sequence[Case], url: str) -> list[Case]:
    """Copy the files of all cases below ``url`` and return the cases there.

    Parameters
    ----------
    cases
        On the local disk.
    url
        Of a folder in a bucket; the bucket is made if it can be.

    Raises
    ------
    VolumeError
        ``url`` is no URL, or nothing can be written there.
    """
    if not is_url(url):
        raise VolumeError(f"{url} is no URL.", do="Name a bucket, e.g. --bucket s3://name/demo.")
    system, root = file_system(url, {})
    root = root.rstrip("/")
    try:
        system.makedirs(root.partition("/")[0], exist_ok=True)
        moved = []
        for case in cases:
            there: dict[str, str] = {}
            for key in ("image", "label"):
                source = Path(getattr(case, key))
                inside = f"{case.name}/{source.name}"
                for file in _files(source):
                    target = f"{root}/{case.name}/{file.relative_to(source.parent).as_posix()}"
                    system.pipe_file(target, file.read_bytes())
                there[key] = f"{url.rstrip('/')}/{inside}"
            moved.append(replace(case, image=there["image"], label=there["label"]))
    except ImportError as error:
        raise MissingDependency(
            f"writing to {public_name(url)} needs a package that is not installed: {error}.",
            do="Install the file system package that fsspec asks for.",
        ) from error
    except OSError as error:
        # Not chained: the text of the original may hold a key.
        raise VolumeError(
            f"writing to {public_name(url)} failed: {type(error).__name__}.",
            do="Check the bucket, the credentials and AWS_ENDPOINT_URL.",
        ) from None
    return moved


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    return sorted(file for file in source.rglob("*") if file.is_file())
