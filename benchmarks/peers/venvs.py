"""Which peers there are, and the virtual environment that each is measured in.

A peer never shares an environment with voxpipe or with another peer: their libraries ask for
versions that exclude one another, and what one imports would count as memory of the other.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENVS = HERE.parents[1] / "build" / "peers"
"""Where the environments lie unless the user says otherwise; git ignores it."""
TORCH = "torch==2.13.0"
"""The version that voxpipe is measured with. Installed first and alone, so that it stays."""


@dataclass(frozen=True)
class Peer:
    """One library, as its own documentation says to use it for speed."""

    name: str
    """Name of the script and of the environment."""
    requirements: tuple[str, ...]
    """What pip installs after torch."""
    variants: tuple[str, ...]
    """Ways to use it, each a row."""
    nnunet: tuple[str, ...] = ()
    """The same for what nnU-Net does to a patch by default; empty where it is not measured."""
    prepares: str = ""
    """Format of its own in which the script first writes the cases (not timed), if it has one."""

    @property
    def script(self) -> Path:
        """The program that measures it."""
        return HERE / f"{self.name}.py"


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "monai_lazy",
            ("monai==1.6.1", "nibabel"),
            ("lazy, one crop a load", "lazy", "lazy, CacheDataset", "eager, CacheDataset"),
        ),
        Peer(
            "torchio_queue",
            ("torchio==1.2.1",),
            ("augment patch", "augment patch in workers", "augment volume"),
        ),
        Peer(
            "nnunet_recipe",
            (
                "batchgeneratorsv2==0.3.6",
                "batchgenerators==0.25.5",
                "blosc2==4.14.1",
                "nibabel",
            ),
            ("blosc2",),
            ("default", "nearest labels"),
            prepares="b2nd",
        ),
    )
}

NNUNET = Peer(
    "nnunet",
    (
        "nnunetv2==2.8.1",  # its torchvision may bring another torch
        "nilearn",
        # What voxpipe needs, which runs in there, too.
        *("nibabel", "torchdata>=0.11", "obstore>=0.9", "zarr>=3", "numcodecs", "fsspec", "s3fs"),
    ),
    (),
)
"""nnU-Net itself, for ``nnunet_trainer.py``: no row of the throughput."""


class CannotInstall(RuntimeError):
    """An environment could not be made; the message is pip's last line."""


def python_of(peer: Peer, folder: Path = VENVS) -> Path:
    """Return the Python of a peer's environment, and make the environment if there is none.

    Raises
    ------
    CannotInstall
        If pip fails. What there is of the environment is made anew the next time.
    """
    place = (folder / peer.name).absolute()
    python = place / "bin" / "python"
    stamp = place / "installed.txt"
    wanted = "\n".join((TORCH, *peer.requirements)) + "\n"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"making {place}, with {TORCH} and {', '.join(peer.requirements)}", file=sys.stderr)
    venv.create(place, with_pip=True, clear=True)
    _install(python, [TORCH])
    _install(python, list(peer.requirements))
    stamp.write_text(wanted)
    return python


def _install(python: Path, requirements: list[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"pip ended with status {done.returncode}"]
        raise CannotInstall(f"{' '.join(requirements)}: {lines[-1]}")
