"""The U-Net learns, its loss is right where the right answer is known, Dice counts voxels."""

import math

import pytest
import torch
from unet import DiceCount, UNet, deep_loss, segmentation_loss


@pytest.fixture(autouse=True)
def same_numbers():
    """Draw the same weights in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("shape", [(16, 16, 16), (8, 16, 12)])
def test_scores_have_the_shape_of_the_patch(shape):
    """Each side may be another multiple of the stride."""
    scores = UNet(classes=3, channels=2)(torch.rand(2, 1, *shape))

    assert (2, 3, *shape) == scores.shape


def test_the_network_is_small():
    """About a hundred thousand weights, as its docstring says."""
    weights = sum(p.numel() for p in UNet(classes=3).parameters())

    assert 50_000 < weights < 150_000


def test_scores_do_not_depend_on_the_other_patches():
    """Each patch is normalised by itself, so Dice does not depend on the batch size."""
    network = UNet(classes=2, channels=2).eval()
    batch = torch.rand(3, 1, 8, 8, 8)

    with torch.inference_mode():
        together, alone = network(batch), network(batch[1:2])

    assert torch.allclose(alone, together[1:2], atol=1e-5)


def test_the_whole_patch_is_seen():
    """A bright voxel changes scores in the far corner: the levels are connected."""
    network = UNet(classes=2, channels=2).eval()
    dark = torch.zeros(1, 1, 16, 16, 16)
    bright = dark.clone()
    bright[0, 0, 0, 0, 0] = 10

    with torch.inference_mode():
        change = (network(bright) - network(dark)).abs()

    assert change[..., -1, -1, -1].max() > 0


def test_one_patch_can_be_learnt():
    """Bright voxels are class 1: a few steps are enough, and all weights get a gradient."""
    image = torch.zeros(1, 1, 8, 8, 8)
    image[..., :4] = 1
    label = image.to(torch.uint8)
    network = UNet(classes=2, channels=4)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    losses = []
    for _ in range(15):
        loss = segmentation_loss(network(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    assert losses[-1] < 0.3 * losses[0]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_knowing_nothing_costs_the_entropy_of_a_guess():
    """Equal scores for two classes: log 2, and a soft Dice of 2 * 0.5 n / (1.0 n + n)."""
    label = torch.ones(1, 1, 4, 4, 4, dtype=torch.uint8)
    expected = math.log(2) + 1 - 2 * 0.5 / 1.5

    loss = segmentation_loss(torch.zeros(1, 2, 4, 4, 4), label)

    assert expected == pytest.approx(loss.item(), abs=1e-4)


def test_background_has_no_part_in_dice():
    """All background and all found: only the class that nobody has is left, and it is right."""
    label = torch.zeros(1, 1, 4, 4, 4, dtype=torch.uint8)
    scores = torch.zeros(1, 2, 4, 4, 4)
    scores[:, 0] = 100

    assert segmentation_loss(scores, label).item() == pytest.approx(0, abs=1e-6)


def test_dice_is_counted_over_all_patches():
    """Two patches with 1 of 2 and 3 of 4 voxels shared: 2 * 4 / (6 + 6), not a mean of ratios."""
    count = DiceCount([1, 2])
    count.add(torch.tensor([1, 1, 0]), torch.tensor([1, 0, 1]))
    count.add(torch.tensor([1, 1, 1, 1, 0]), torch.tensor([1, 1, 1, 0, 1]))
    dice = count.dice()

    assert dice[1] == pytest.approx(8 / 12)
    assert math.isnan(dice[2])


def test_dice_refuses_to_broadcast():
    """A missing channel axis would otherwise count every voxel many times."""
    with pytest.raises(ValueError, match="one shape"):
        DiceCount([1]).add(torch.zeros(2, 1, 3, 3, 3), torch.zeros(2, 3, 3, 3))


def test_each_scale_counts_half_of_the_one_before():
    """Of one scale the loss is that of a plain network."""
    scores = [torch.rand(2, 3, size, size, size) for size in (8, 4, 2)]
    labels = [torch.randint(0, 3, (2, 1, size, size, size)) for size in (8, 4, 2)]
    fine, half, quarter = map(segmentation_loss, scores, labels)

    expected = (4 * fine + 2 * half + quarter) / 7
    torch.testing.assert_close(deep_loss(scores, labels), expected)
    assert deep_loss(scores[:1], labels[:1]) == fine
