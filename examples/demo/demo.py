"""The demo: a small network learns grey and white matter from patches that are streamed.

The order is: write the cases, test the untrained network on those that are held out, train,
test again, and say what happened. Where the batches come from is passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo_data import CLASSES, Case, prepare
from demo_plots import Viewable, save_loss, save_preview
from demo_training import (
    Batch,
    Clock,
    History,
    epochs,
    evaluate,
    new_network,
    predict_fullest,
    train,
)
from unet import UNet

Say = Callable[[str], object]


@dataclass(frozen=True)
class Source:
    """Where the demo's batches come from."""

    training: Iterable[Batch]
    """One epoch of augmented patches, each time it is iterated."""
    held_out: Iterable[Batch]
    """The test's patches: the same each time it is iterated, none of them augmented."""
    preview: Callable[[], Sequence[Viewable]]
    """Returns one patch before and after augmentation."""
    report: Callable[[], str]
    """Returns what reading has cost, once training is over."""
    close: Callable[[], object]
    """Ends whatever ``training`` and ``held_out`` have started."""


@dataclass(frozen=True)
class Result:
    """What the demo found out."""

    before: dict[int, float]
    """Dice per class on held-out patches, untrained."""
    after: dict[int, float]
    """The same, trained."""
    history: History
    """Losses and times of training."""


def run(
    output: Path,
    source: Callable[[list[Case]], Source],
    *,
    seconds: float,
    cases: Callable[[Path], list[Case]] = prepare,
    say: Say = print,
    clock: Clock = time.perf_counter,
) -> Result:
    """Run the whole demo, and leave three pictures in ``output``.

    ``preview.png`` is a patch as stored and augmented, with what was drawn, ``prediction.png`` one
    of a held-out case with its truth and the network's classes, and ``loss.png`` the loss.

    Parameters
    ----------
    output
        Folder for data and pictures; made if it does not exist.
    source
        Makes the batches' source from the cases.
    seconds
        How long to train; writing the data and testing come on top.
    cases
        Writes the cases into a folder and returns them.
    say
        Shows a text to the user.
    clock
        Returns seconds; training is measured with it.
    """
    say(f"Cases: {output / 'data'}")
    found = cases(output / "data")
    batches = source(found)
    try:
        network = new_network(classes=1 + len(CLASSES))
        before = evaluate(network, batches.held_out, CLASSES)
        with progress_bar(seconds) as show:
            history = train(
                network, epochs(batches.training), seconds=seconds, on_batch=show, clock=clock
            )
        result = Result(before, evaluate(network, batches.held_out, CLASSES), history)
        save_preview(output / "preview.png", batches.preview(), CLASSES)
        save_preview(output / "prediction.png", beside_the_truth(network, batches), CLASSES)
        save_loss(output / "loss.png", history.losses)
        say(batches.report())
    finally:
        batches.close()
    say(summary(result, sum(case.held_out for case in found)))
    pictures = (output / f"{name}.png" for name in ("preview", "prediction", "loss"))
    say(f"Pictures: {', '.join(map(str, pictures))}")
    return result


def beside_the_truth(network: UNet, batches: Source) -> list[Viewable]:
    """Return the held-out patch with the most labelled voxels: its truth, and the prediction."""
    found = predict_fullest(network, batches.held_out, CLASSES)
    if found is None:
        return []
    dice = "\n".join(f"{name}: Dice {found.dice[value]:.2f}" for value, name in CLASSES.items())
    image = found.image.numpy()
    return [
        Viewable(f"{found.case}\ntruth", image, found.truth.numpy()),
        Viewable(f"prediction\n{dice}", image, found.prediction.numpy()),
    ]


def summary(result: Result, held_out: int) -> str:
    """Return Dice before and after, and how training went, as text."""
    history = result.history
    waiting = f"{history.waiting_share:.0%} of the time waiting for data"
    return "\n".join(
        [
            f"Trained on {history.patches} patches in {history.seconds:.0f} s: "
            f"{history.patches_per_second:.1f} patches/s, {waiting}.",
            "",
            dice_table(result.before, result.after, CLASSES),
            "",
            f"Dice on patches of cases that were held out ({held_out}). All cases show one head, "
            "cut, turned and scanned differently.",
        ]
    )


def dice_table(
    before: Mapping[int, float], after: Mapping[int, float], classes: Mapping[int, str]
) -> str:
    """Return a line per class.

    Examples
    --------
    >>> print(dice_table({1: 0.25}, {1: 0.875}, {1: "grey matter"}))
    Dice          before  after
    grey matter    0.250  0.875
    """
    width = max(map(len, classes.values()))
    lines = [f"{'Dice':{width}}   before  after"]
    lines += [
        f"{name:{width}}    {before[value]:.3f}  {after[value]:.3f}"
        for value, name in classes.items()
    ]
    return "\n".join(lines)


@contextmanager
def progress_bar(seconds: float) -> Iterator[Callable[[History], None]]:
    """Show a bar over so many seconds of training; yield what is to be called after each batch."""
    from tqdm import tqdm

    # Steps are seconds here, and their rate says nothing: patches per second are in the postfix.
    layout = "{desc}: {percentage:3.0f}%|{bar:24}| {elapsed}{postfix}"
    with tqdm(total=seconds, desc="Training", bar_format=layout) as bar:

        def show(history: History) -> None:
            bar.set_postfix(history.describe(), refresh=False)
            bar.update(min(history.seconds, seconds) - bar.n)

        yield show
