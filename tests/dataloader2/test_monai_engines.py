"""A loader in the hands of MONAI's trainer, and volumes in those of its inferer."""

import numpy as np
import pytest
import torch
from scenes import six_batches

import voxpipe as vp

monai_data = pytest.importorskip("monai.data")
inferers = pytest.importorskip("monai.inferers")


class Tiny(torch.nn.Module):
    def __init__(self, seen=None):
        super().__init__()
        self.layer = torch.nn.Conv3d(1, 2, 3, padding=1)
        self.seen = seen

    def forward(self, image):
        if self.seen is not None:
            self.seen.append(image.as_tensor().clone())
        return self.layer(image)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_supervised_trainer_runs_epochs_of_a_loader(cases, workers):
    """As many iterations as batches in each, the batches of the loader, and the network learns."""
    pytest.importorskip("ignite")
    from monai.engines import SupervisedTrainer

    with vp.DataLoader2(six_batches(cases), seed=7) as loader:
        expected = [batch["image"] for batch in [*loader, *loader]]
    seen, parts = [], []
    network = Tiny(seen)
    before = network.layer.weight.detach().clone()
    service = vp.MultiProcessingReadingService(workers)
    loader = vp.DataLoader2(six_batches(cases).to_metatensor(), None, service, seed=7)

    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=2,
        train_data_loader=loader,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=lambda found, label: ((found[:, :1] - label) ** 2).mean(),
    )
    trainer.add_event_handler(
        "ITERATION_COMPLETED", lambda engine: parts.append(engine.state.batch)
    )
    trainer.run()
    loader.shutdown()

    assert trainer.state.iteration == len(expected) == 12
    assert trainer.state.epoch == 2
    assert all(map(torch.equal, seen, expected))
    assert not torch.equal(network.layer.weight, before)
    # Its decollate=True took each batch apart.
    assert [len(part) for part in parts] == [2] * 12
    assert isinstance(parts[0][0]["image"], monai_data.MetaTensor)


def test_a_sliding_window_of_a_volume_from_here_is_our_prediction(cases):
    """The inferer of MONAI on what a chain reads, beside ``vp.predict`` on the same chain."""
    model = Tiny().eval()
    chain = vp.from_cases(cases[:1]).open_volume().normalize(mean=10.0, std=500.0)
    inferer = inferers.SlidingWindowInferer(8, 2, 0.5, "gaussian", padding_mode="replicate")
    (batch,) = list(chain.batch_patches(1).to_metatensor())

    with torch.no_grad():
        theirs = inferer(batch["image"], model)[0]
    ours = vp.predict(
        model, chain, key="image", patch=8, overlap=0.5, output="logits", batch_size=2
    )

    found = ours[cases[0]["case"]]
    assert np.abs(found.numpy() - theirs.as_tensor().numpy()).max() < 1e-5
    assert np.allclose(found.affine, theirs.affine[0] if theirs.affine.ndim == 3 else theirs.affine)
