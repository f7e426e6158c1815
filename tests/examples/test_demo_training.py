"""Training stops in time, measures waiting apart from computing, and learns."""

import itertools
import math

import pytest
import torch
from demo_training import (
    LEARNING_RATE,
    History,
    epochs,
    evaluate,
    new_network,
    predict_fullest,
    train,
)


def batch(size=2):
    """Return patches whose bright half is class 1."""
    image = torch.zeros(size, 1, 8, 8, 8)
    image[..., :4] = 1
    return {"image": image, "label": image.to(torch.uint8), "meta": [{}] * size}


class Clock:
    """Every look at it takes ``step`` seconds."""

    def __init__(self, step=1.0):
        self.step, self.now = step, 0.0

    def __call__(self):
        self.now += self.step
        return self.now


def test_training_stops_when_the_time_is_up():
    """Waiting and computing take a second each: three batches fit into five seconds."""
    history = train(new_network(2), itertools.repeat(batch()), seconds=5, clock=Clock())

    assert (len(history.losses), history.patches, history.seconds) == (3, 6, 6.0)


def test_steps_become_smaller_until_the_time_is_up(monkeypatch):
    """By the time that has passed; otherwise all are alike."""
    rates = []

    class Adam(torch.optim.Adam):
        def step(self):
            rates.append(self.param_groups[0]["lr"])
            super().step()

    monkeypatch.setattr(torch.optim, "Adam", Adam)
    for decay in (True, False):
        train(new_network(2), itertools.repeat(batch()), seconds=5, decay=decay, clock=Clock())

    passed = (1, 3, 5)  # seconds when a batch has come
    shares = [*(1 - 0.2 * seconds for seconds in passed), 1, 1, 1]
    assert rates == pytest.approx([LEARNING_RATE * share**0.9 for share in shares])


def test_training_stops_when_the_batches_end():
    """A short source is no error; the last wait counts too."""
    history = train(new_network(2), [batch(), batch(3)], seconds=100, clock=Clock())

    assert (history.patches, history.waiting, history.computing) == (5, 3.0, 2.0)


def test_a_source_that_can_be_closed_is_closed():
    """Workers behind a generator end with it, even when training fails."""
    closed = []

    def source():
        try:
            yield {"image": torch.zeros(1, 1, 8, 8, 8), "label": torch.zeros(1, 9, 9, 9)}
        finally:
            closed.append(True)

    with pytest.raises((IndexError, RuntimeError, ValueError)):
        train(new_network(2), source(), seconds=1)

    assert closed == [True]


def test_dice_rises():
    """A few batches of an easy task are enough to find the bright half."""
    network = new_network(2)
    before = evaluate(network, [batch()], [1])[1]
    seen = []
    history = train(
        network,
        itertools.repeat(batch(), 12),
        seconds=60,
        on_batch=lambda h: seen.append(h.patches),
    )

    assert evaluate(network, [batch()], [1])[1] > max(before, 0.9)
    assert history.losses[-1] < history.losses[0]
    assert seen == list(range(2, 26, 2))


def test_evaluation_changes_nothing():
    """Testing twice gives the same figures, and no weight moves."""
    network = new_network(2)
    weights = [p.clone() for p in network.parameters()]

    assert evaluate(network, [batch()], [1]) == evaluate(network, [batch()], [1])
    assert all(map(torch.equal, weights, network.parameters()))


def test_the_patch_with_most_labels_is_predicted():
    """With the name of its case, beside its truth; none of no batches."""
    network, chosen = new_network(2), batch(3)
    train(network, itertools.repeat(batch(), 12), seconds=60)
    chosen["label"][0] = chosen["label"][2] = 0
    chosen["meta"] = [{"case": name} for name in "abc"]

    found = predict_fullest(
        network, [batch(1) | {"label": torch.zeros(1, 1, 8, 8, 8)}, chosen], [1]
    )

    assert found.case == "b"
    assert torch.equal(found.truth, chosen["label"][1, 0])
    assert torch.equal(found.image, chosen["image"][1, 0])
    assert found.dice[1] > 0.9
    assert float((found.prediction == found.truth).float().mean()) > 0.9
    assert predict_fullest(network, [], [1]) is None


def test_every_run_starts_from_the_same_weights():
    """The global generator is neither used nor moved."""
    state = torch.get_rng_state()
    first, second = new_network(3), new_network(3)

    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert torch.equal(state, torch.get_rng_state())


def test_epochs_follow_each_other():
    """The loader is iterated again each time it ends, and an empty one ends it all."""
    assert list(itertools.islice(epochs([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]
    assert list(epochs([])) == []


def test_history_speaks_of_rates():
    """Six patches in two seconds, half a second of them spent waiting."""
    history = History([1.0] * 5 + [0.5] * 10, patches=6, waiting=0.5, computing=1.5)

    assert history.describe() == {"loss": "0.500", "patches/s": "3.0", "waiting": "25%"}


def test_an_empty_history_divides_by_nothing():
    """Before the first batch there is no loss and no rate."""
    history = History()

    assert math.isnan(history.smooth_loss)
    assert (history.patches_per_second, history.waiting_share) == (0.0, 0.0)
