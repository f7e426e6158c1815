"""What is asked of the stores is found out in the middle of an epoch as at its beginning."""

import itertools

import numpy as np

import voxpipe as vp
from voxpipe.datapipes.cost import LEAST_PLANS, measure_access


def test_skipped_batches_take_no_time_from_measuring():
    """However long it takes to come to where the run was left, plans are looked at there."""
    cases = [{"image": np.zeros((8, 8, 8), np.int16)}] * 50
    pipe = vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4).batch_patches(2)
    slow = itertools.count(step=0.01)  # a hundredth of a second passes with each look

    asked = measure_access(pipe, 0, 0, batches=90, clock=lambda: next(slow))

    assert asked.unknown == ""
    assert asked.demands["image"].items == 2


def test_a_slow_start_does_not_leave_one_patch_to_judge_by():
    """The first header of a bucket may take longer than measuring may; one patch says little."""
    cases = [{"image": np.zeros((8, 8, 8), np.int16)}] * 50
    pipe = vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4).batch_patches(2)
    looks = itertools.count(step=10.0)  # ten seconds pass with each look

    seen = []
    measure_access(pipe, 0, 0, clock=lambda: seen.append(next(looks)) or seen[-1])

    assert len(seen) == LEAST_PLANS + 1  # before each of them, and the one that ends it
