"""A small 3-D U-Net, its loss, and Dice: what the demo trains and measures.

After Çiçek et al., "3D U-Net", MICCAI 2016, cut down to three levels and about a
hundred thousand weights, so that two CPU cores learn something within two minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (the name that everybody knows)

# Keeps the ratio of two small sums finite; a thousandth of a voxel changes no Dice.
EPSILON = 1e-3


def _convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    """Convolve, normalise each image by itself (batches are small), bend."""
    return nn.Sequential(
        nn.Conv3d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.InstanceNorm3d(channels_out, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet(nn.Module):
    """Three levels; scores per class and voxel. Sides of a patch are multiples of 4 voxels.

    Parameters
    ----------
    classes
        Number of classes, background included.
    channels
        Channels of the finest level; each level below has twice as many.
    is_deep
        Whether it gives scores at three scales while it trains, for deep supervision.

    Examples
    --------
    >>> UNet(classes=3, channels=4)(torch.zeros(1, 1, 16, 16, 8)).shape
    torch.Size([1, 3, 16, 16, 8])
    """

    def __init__(self, classes: int, channels: int = 8, *, is_deep: bool = False) -> None:
        super().__init__()
        fine, middle, coarse = channels, 2 * channels, 4 * channels
        self.down_fine = nn.Sequential(_convolution(1, fine), _convolution(fine, fine))
        self.down_middle = nn.Sequential(_convolution(fine, middle), _convolution(middle, middle))
        self.bottom = nn.Sequential(_convolution(middle, coarse), _convolution(coarse, coarse))
        self.up_middle = _convolution(coarse + middle, middle)
        self.up_fine = _convolution(middle + fine, fine)
        self.score = nn.Conv3d(fine, classes, kernel_size=1)
        coarser = (middle, coarse) if is_deep else ()
        self.coarser_scores = nn.ModuleList([nn.Conv3d(n, classes, 1) for n in coarser])

    def forward(self, image: Tensor) -> Tensor | list[Tensor]:
        """Return the scores (B, classes, I, J, K) of float32 patches (B, 1, I, J, K).

        Of a deep network that trains a list: of the patch, of its half and of its quarter.
        """
        fine = self.down_fine(image)
        middle = self.down_middle(F.max_pool3d(fine, 2))
        coarse = self.bottom(F.max_pool3d(middle, 2))
        middle = self.up_middle(torch.cat([F.interpolate(coarse, scale_factor=2), middle], dim=1))
        fine = self.up_fine(torch.cat([F.interpolate(middle, scale_factor=2), fine], dim=1))
        scores: Tensor = self.score(fine)
        if not (self.training and self.coarser_scores):
            return scores
        levels = zip(self.coarser_scores, (middle, coarse), strict=True)
        return [scores, *(score(level) for score, level in levels)]


def deep_loss(outputs: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Return the mean loss of several scales, the finest first; each counts twice the next one.

    Examples
    --------
    >>> label = torch.zeros((1, 1, 4, 4, 4), dtype=torch.uint8)
    >>> right, wrong = (torch.tensor([s, -s]).reshape(1, 2, 1, 1, 1) for s in (50.0, -50.0))
    >>> scores = [right.expand(-1, -1, 4, 4, 4), wrong.expand(-1, -1, 2, 2, 2)]
    >>> round(float(deep_loss(scores, [label, label[..., ::2, ::2, ::2]])), 1)
    33.7
    """
    losses = [segmentation_loss(*pair) for pair in zip(outputs, labels, strict=True)]
    weights = [2.0**-scale for scale in range(len(losses))]
    every = [weight * loss for weight, loss in zip(weights, losses, strict=True)]
    return torch.stack(every).sum() / sum(weights)


def segmentation_loss(scores: Tensor, label: Tensor) -> Tensor:
    """Return cross entropy plus one minus the mean soft Dice of the classes but background.

    Parameters
    ----------
    scores
        (B, classes, I, J, K) float32, before softmax.
    label
        (B, 1, I, J, K), any integer type, below ``classes``.

    Examples
    --------
    >>> label = torch.tensor([0, 1, 1, 0]).reshape(1, 1, 4, 1, 1)
    >>> sure = 100.0 * torch.cat([label == 0, label == 1], dim=1)
    >>> round(float(segmentation_loss(sure, label)), 3)
    0.0
    """
    target = label[:, 0].long()
    entropy = F.cross_entropy(scores, target)
    probability = scores.softmax(dim=1)
    truth = F.one_hot(target, scores.shape[1]).movedim(-1, 1).to(probability.dtype)
    # Summed over the batch as well: a patch without a class has no Dice of its own.
    over = (0, 2, 3, 4)
    shared = (probability * truth).sum(over)
    total = probability.sum(over) + truth.sum(over)
    soft_dice = (2 * shared + EPSILON) / (total + EPSILON)
    return entropy + 1 - soft_dice[1:].mean()


class DiceCount:
    """Voxels counted patch by patch, for one Dice per class over all of them.

    Examples
    --------
    >>> count = DiceCount([1])
    >>> count.add(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    >>> round(count.dice()[1], 3)
    0.667
    """

    def __init__(self, classes: Iterable[int]) -> None:
        self._shared = dict.fromkeys(classes, 0)
        self._total = dict.fromkeys(self._shared, 0)

    def add(self, found: Tensor, truth: Tensor) -> None:
        """Count one batch: two label maps of one shape."""
        if found.shape != truth.shape:
            # Broadcasting would count voxels many times over, and say nothing.
            msg = f"found and truth need one shape, got {(*found.shape,)} and {(*truth.shape,)}"
            raise ValueError(msg)
        for value in self._shared:
            is_found, is_true = found == value, truth == value
            self._shared[value] += int((is_found & is_true).sum())
            self._total[value] += int(is_found.sum()) + int(is_true.sum())

    def dice(self) -> dict[int, float]:
        """Return 2 shared / (found + true) per class; NaN for one that nobody has seen."""
        return {
            value: 2 * self._shared[value] / total if total else float("nan")
            for value, total in self._total.items()
        }
