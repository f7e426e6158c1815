"""nnU-Net's commands with its own trainer and with voxpipe's: losses by epoch, and what data cost.

A small dataset (``nnunet_data.py``) is planned and preprocessed by nnU-Net, its plan made small,
and each trainer run for a few epochs with several seeds, in turns. nnU-Net is installed in an
environment of its own on first use.

python benchmarks/nnunet_trainer.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import machine
from peers.venvs import NNUNET, VENVS, python_of

ROOT = Path(__file__).resolve().parents[1]
SHORT = ROOT / "benchmarks" / "nnunet_short"
DATASET = "152"
TRAINERS = {
    "nnUNetTrainer": "Short",
    "nnUNetTrainerVoxpipe": "ShortVoxpipe",
    "nnUNetTrainerVoxpipe_raw": "ShortVoxpipe_raw",
}
# Of the small plan: a batch takes a tenth of a second of one core.
PATCH = (24, 32, 32)
FEATURES = (4, 8, 16)
# The first batches come out of queues that were filled before anybody waited.
WARM = 8
Rows = dict[str, list[dict[str, Any]]]


def settings_of(work: Path, workers: int) -> dict[str, str]:
    """Return the environment of nnU-Net's commands."""
    return {
        **os.environ,
        "nnUNet_raw": str(work / "raw"),
        "nnUNet_preprocessed": str(work / "preprocessed"),
        "nnUNet_results": str(work / "results"),
        "nnUNet_extTrainer": str(SHORT),
        "nnUNet_n_proc_DA": str(workers),
        "nnUNet_def_n_proc": "2",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / ".typing"),
    }


def run(command: Sequence[str], settings: Mapping[str, str], log: Path) -> None:
    """Run a command and keep what it says; SystemExit with the end of that where it fails."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        done = subprocess.run(command, env=dict(settings), stdout=file, stderr=file, check=False)
    if done.returncode:
        end = log.read_text(encoding="utf-8")[-3000:]
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{end}")


def make_small(plans: Path) -> None:
    """Give the plan a small patch and a small network."""
    document = json.loads(plans.read_text("utf-8"))
    configuration = document["configurations"]["3d_fullres"]
    stages = len(FEATURES)
    configuration["patch_size"], configuration["batch_size"] = list(PATCH), 2
    configuration["architecture"]["arch_kwargs"].update(
        n_stages=stages,
        features_per_stage=list(FEATURES),
        kernel_sizes=[[3, 3, 3]] * stages,
        strides=[[1, 1, 1], *[[2, 2, 2]] * (stages - 1)],
        n_conv_per_stage=[2] * stages,
        n_conv_per_stage_decoder=[2] * (stages - 1),
    )
    plans.write_text(json.dumps(document, indent=1), encoding="utf-8")


def prepare(work: Path, python: Path, settings: Mapping[str, str]) -> None:
    """Write the dataset, have nnU-Net plan it, and preprocess it by a small plan."""
    preprocessed = work / "preprocessed" / "Dataset152_ICBM"
    if (preprocessed / "prepared").exists():
        return
    log = work / "prepare.log"
    run(
        [str(python), str(ROOT / "benchmarks" / "nnunet_data.py"), str(work / "raw")], settings, log
    )
    bin_ = python.parent
    shared = ["-d", DATASET, "-c", "3d_fullres"]
    planning = [str(bin_ / "nnUNetv2_plan_and_preprocess"), *shared, "--no_pp", "-npfp", "2"]
    run(planning, settings, log)
    make_small(preprocessed / "nnUNetPlans.json")
    run([str(bin_ / "nnUNetv2_preprocess"), *shared, "-np", "2"], settings, log)
    (preprocessed / "prepared").touch()


def train(
    work: Path, python: Path, settings: Mapping[str, str], trainer: str, short: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a short training noted."""
    result = work / f"{trainer}-{short['seed']}.json"
    result.unlink(missing_ok=True)
    short = {**short, "result": str(result)}
    command = [str(python.parent / "nnUNetv2_train"), DATASET, "3d_fullres", "0"]
    command += ["-tr", trainer, "-device", "cpu"]
    settings = {**settings, "SHORT_TRAINING": json.dumps(short)}
    run(command, settings, work / f"{trainer}-{short['seed']}.log")
    done: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return done


def losses(rows: Rows, name: str) -> str:
    """Return a table with mean and spread of a loss by epoch."""
    lines = ["| epoch | " + " | ".join(rows) + " |", "|" + "---|" * (1 + len(rows))]
    for epoch in range(len(next(iter(rows.values()))[0][name])):
        cells = []
        for runs in rows.values():
            values = [one[name][epoch] for one in runs]
            spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.3f}{spread}")
        lines.append(f"| {epoch} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def agreement(rows: Rows, name: str) -> list[str]:
    """Return for each of our trainers how far its mean is from nnU-Net's, in spreads of seeds."""
    theirs, *ours = rows.items()
    lines = []
    for trainer, runs in ours:
        distances = []
        for epoch in range(len(runs[0][name])):
            both = [[one[name][epoch] for one in group] for group in (theirs[1], runs)]
            if len(runs) > 1:
                spread = (stdev(both[0]) ** 2 + stdev(both[1]) ** 2) ** 0.5
                distances.append(abs(mean(both[0]) - mean(both[1])) / spread)
        if distances:
            text = f"median {median(distances):.2f}, at most {max(distances):.2f}"
            lines.append(f"- {name}: {trainer} and {theirs[0]} differ by {text} spreads of seeds")
    return lines


def cost(rows: Rows) -> str:
    """Return a table of what data loading took."""
    columns = ("trainer", "first batches s", "wait ms, median", "wait ms, mean", "CPU ms a batch")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for trainer, runs in rows.items():
        waits = [1000 * wait for one in runs for wait in one["waits"][WARM:] or one["waits"]]
        cells = [
            f"{median(one['first'] for one in runs):.1f}",
            f"{median(waits):.1f}",
            f"{mean(waits):.1f}",
            f"{1000 * median(one['cpu'] for one in runs):.0f}",
        ]
        lines.append(f"| {trainer} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=10, help="of training in an epoch")
    parser.add_argument("--validations", type=int, default=3, help="batches of an epoch")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--predict", action="store_true", help="end with nnU-Net's validation")
    parser.add_argument("--quick", action="store_true", help="shows that it runs, and no more")
    parser.add_argument("--work", type=Path, help="keeps data and logs there")
    parser.add_argument("--venvs", type=Path, default=VENVS)
    chosen = parser.parse_args()
    short = {name: getattr(chosen, name) for name in ("epochs", "iterations", "validations")}
    if chosen.quick:
        short, chosen.seeds = {"epochs": 1, "iterations": 2, "validations": 1}, 1
    python = python_of(NNUNET, chosen.venvs)
    subprocess.run([sys.executable, str(ROOT / "tools" / "link_package.py")], check=True)
    print(machine.describe(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = chosen.work or Path(folder)
        for name in ("raw", "preprocessed", "results"):
            (work / name).mkdir(parents=True, exist_ok=True)
        settings = settings_of(work.absolute(), chosen.workers)
        prepare(work, python, settings)
        rows: Rows = {trainer: [] for trainer in TRAINERS}
        for seed in range(chosen.seeds):
            how = {**short, "seed": seed, "predict": chosen.predict and seed == 0}
            for trainer, name in TRAINERS.items():
                rows[trainer].append(train(work, python, settings, name, how))
                print(f"{trainer}, seed {seed}: done", file=sys.stderr, flush=True)
    for name in ("train_losses", "val_losses", "mean_fg_dice"):
        print(f"\n{name}\n\n{losses(rows, name)}")
        print("\n".join(["", *agreement(rows, name)]))
    print(f"\n{cost(rows)}")


if __name__ == "__main__":
    main()
