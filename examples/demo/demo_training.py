"""Train and test on batches, and measure how long the network waits for them.

Nothing in here knows where batches come from: an iterable of ``{"image": ..., "label":
...}`` is enough. Time is read from a clock that is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from unet import DiceCount, UNet, deep_loss

Batch = dict[str, Any]
Clock = Callable[[], float]

LEARNING_RATE = 5e-3
# The bar shows the mean of the last batches; single ones jump.
SMOOTHED = 10
# A fixed start of the weights: the demo's figures can be compared from run to run.
SEED = 0


@dataclass
class History:
    """What happened in training, batch by batch."""

    losses: list[float] = field(default_factory=list)
    """Loss of each batch."""
    patches: int = 0
    """Patches seen."""
    waiting: float = 0.0
    """Seconds spent waiting for batches."""
    computing: float = 0.0
    """Seconds spent in the network."""

    @property
    def smooth_loss(self) -> float:
        """Mean loss of the last batches; NaN before the first."""
        last = self.losses[-SMOOTHED:]
        return sum(last) / len(last) if last else float("nan")

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return self.waiting + self.computing

    @property
    def patches_per_second(self) -> float:
        """Patches per second of training, waiting included."""
        return self.patches / self.seconds if self.seconds else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of the time that the network waited for data, 0 to 1."""
        return self.waiting / self.seconds if self.seconds else 0.0

    def describe(self) -> dict[str, str]:
        """Return what the progress bar shows."""
        return {
            "loss": f"{self.smooth_loss:.3f}",
            "patches/s": f"{self.patches_per_second:.1f}",
            "waiting": f"{self.waiting_share:.0%}",
        }


def new_network(classes: int, *, is_deep: bool = False) -> UNet:
    """Return an untrained network, the same in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        network = UNet(classes, is_deep=is_deep)
    # Convolutions on a CPU are about a quarter faster with channels last, which torch's own
    # annotations of ``to`` have forgotten.
    network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return network


def train(
    network: UNet,
    batches: Iterable[Batch],
    *,
    seconds: float,
    on_batch: Callable[[History], object] = lambda history: None,
    decay: bool = False,
    clock: Clock = time.perf_counter,
) -> History:
    """Train until the batches end or the time is up, and return what happened.

    Parameters
    ----------
    network
        Changed in place.
    batches
        ``image`` (B, 1, I, J, K) float32 and ``label`` (B, 1, I, J, K) of integers; for a
        network that gives several scales a list of labels. The iterator is closed at the end if it
        can be, so that workers behind it can stop.
    seconds
        No batch is begun after so many seconds.
    on_batch
        Called after each batch, for instance to move a progress bar.
    decay
        Whether steps become smaller until the time is up, as nnU-Net's do.
    clock
        Returns seconds.
    """
    history = History()
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    network.train()
    iterator = iter(batches)
    try:
        while history.seconds < seconds:
            begin = clock()
            batch = next(iterator, None)
            arrived = clock()
            history.waiting += arrived - begin
            if batch is None:
                break
            if decay:
                for group in optimizer.param_groups:
                    group["lr"] = LEARNING_RATE * rest_of(history.seconds / seconds)
            history.losses.append(_step(network, optimizer, batch))
            history.computing += clock() - arrived
            history.patches += len(batch["image"])
            on_batch(history)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    return history


def rest_of(part: float) -> float:
    """Return the share of the learning rate that is left after a part of the time: nnU-Net's.

    Examples
    --------
    >>> [round(rest_of(part), 2) for part in (0, 0.5, 0.9, 1.1)]
    [1.0, 0.54, 0.13, 0.0]
    """
    return max(0.0, 1 - part) ** 0.9


def evaluate(network: UNet, batches: Iterable[Batch], classes: Iterable[int]) -> dict[int, float]:
    """Return Dice per class over all voxels of ``batches``."""
    count = DiceCount(classes)
    network.eval()
    with torch.inference_mode():
        for batch in batches:
            scores = network(_input(batch))
            count.add(scores.argmax(dim=1, keepdim=True), batch["label"])
    return count.dice()


@dataclass(frozen=True)
class Predicted:
    """One patch, its truth, and what a network makes of it."""

    case: str
    """Whose patch it is; empty where batches do not tell."""
    image: Tensor
    """Greys, (I, J, K)."""
    truth: Tensor
    """Classes, (I, J, K)."""
    prediction: Tensor
    """Classes, (I, J, K)."""
    dice: dict[int, float]
    """Of this patch, per class."""


def predict_fullest(
    network: UNet, batches: Iterable[Batch], classes: Iterable[int]
) -> Predicted | None:
    """Return the patch with the most labelled voxels, and a prediction; None of no batches."""
    most, chosen = -1, None
    for batch in batches:
        labelled = (batch["label"] > 0).flatten(1).sum(dim=1)
        number = int(labelled.argmax())
        if int(labelled[number]) > most:
            most = int(labelled[number])
            case = batch["meta"][number].get("case", "") if "meta" in batch else ""
            one = slice(number, number + 1)
            chosen = (case, batch["image"][one].clone(), batch["label"][one].clone())
    if chosen is None:
        return None
    case, image, truth = chosen
    network.eval()
    with torch.inference_mode():
        prediction = network(_input({"image": image})).argmax(dim=1, keepdim=True)
    count = DiceCount(classes)
    count.add(prediction, truth)
    return Predicted(case, image[0, 0], truth[0, 0], prediction[0, 0], count.dice())


def epochs(loader: Iterable[Batch]) -> Iterator[Batch]:
    """Yield the batches of one epoch after another, without end unless one is empty."""
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            return


def _step(network: UNet, optimizer: torch.optim.Optimizer, batch: Batch) -> float:
    outputs, labels = network(_input(batch)), batch["label"]
    several = isinstance(labels, list)
    loss = deep_loss(*((outputs, labels) if several else ([outputs], [labels])))
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def _input(batch: Batch) -> Tensor:
    image: Tensor = batch["image"]
    return image.contiguous(memory_format=torch.channels_last_3d)
