"""Functions that draw nothing are not seeded for, and no function draws otherwise for it."""

import functools
import math
import operator
import random
import sys

import numpy as np
import pytest
import torch
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper as OursToo
from voxpipe.reading_services import global_generators as seeding
from voxpipe.reading_services import in_process
from voxpipe.reading_services.global_generators import proof_that_nothing_draws

# torch says so at once, of any; these do not have to travel.
pytestmark = pytest.mark.filterwarnings("ignore:(Lambda|Local) function is not supported")

FACTOR = 3
SETTINGS = {"draws": False}
drop = torch.nn.Dropout(0.5)
generator = np.random.default_rng(1)


def plus(number):
    return number + FACTOR


def helped(number):
    return [plus(each) for each in range(number) if each % 2]


def sneaky(number):
    return plus(number) * jitter()


def jitter():
    return random.random()


def scaled(number, factor=2.0):
    return math.sqrt(number) * factor


def tensor_of(number):
    return torch.full((3,), float(number)).clamp(min=0.5).sum()


def array_of(number):
    values = np.arange(4, dtype=np.float32) * number
    return values.reshape(2, 2).T.astype(np.int64)


def tried(text):
    try:
        return int(text)
    except ValueError:
        return text.upper() + f"{len(text):03d}"


def closed(factor):
    def times(number):
        return number * factor

    return times


def calling(function):
    return lambda number: function(number)


PROVED = {
    "plain": plus,
    "a function of functions": helped,
    "defaults": scaled,
    "tensors": tensor_of,
    "arrays": array_of,
    "exceptions": tried,
    "a lambda": lambda number: (number, -number),
    "a closure": closed(4),
    "a closure of a function": calling(plus),
    "a partial": functools.partial(scaled, factor=3.0),
    "a class": str,
    "a built-in": abs,
    "an operator": operator.neg,
    "of math": math.sqrt,
    "of numpy": np.float32,
    "a ufunc": np.sqrt,
    "of torch": torch.tensor,
    "a generator expression": lambda number: sum(each * each for each in range(number)),
}


class Adds:
    def __call__(self, number):
        return number + random.random()

    def of(self, number):
        return number + np.random.rand()

    def __mul__(self, number):
        return random.random() * number


def imports(number):
    import random as other

    return other.random() * number


def through_getattr(number):
    return getattr(np, "random").rand() * number  # noqa: B009


def drawing_by(draw):
    return lambda number: number * draw()


drawn_ufunc = np.frompyfunc(lambda number: number * random.random(), 1, 1)
UNPROVED = {
    "random": lambda number: number * random.random(),
    "its function": lambda number: number * uniform(0, 1),
    "numpy": lambda number: number * np.random.rand(),
    "numpy's own": lambda number: number * np.random.randn(2).sum(),
    "torch": lambda number: number * torch.rand(()).item(),
    "in place": lambda number: torch.zeros(2).uniform_().sum().item() * number,
    "a method of tensors": lambda number: torch.full((), 0.5).bernoulli().item() + number,
    "a module of torch": lambda number: drop(torch.ones(8)).sum().item() + number,
    "functional": lambda n: torch.nn.functional.dropout(torch.ones(8)).sum().item() + n,
    "a helper": sneaky,
    "a closure": drawing_by(random.random),
    "a helper in a closure": drawing_by(jitter),
    "a default": lambda number, draw=random.random: number * draw(),
    "a partial": functools.partial(lambda draw, number: number * draw(), random.random),
    "a partial by name": functools.partial(lambda number, draw: number * draw(), draw=jitter),
    "an object": Adds(),
    "a method": Adds().of,
    "an operator of an object": (lambda thing: lambda number: thing * number)(Adds()),
    "an import": imports,
    "getattr": through_getattr,
    "a method of C": drawing_by(random.Random(1).random),
    "a ufunc of one's own": lambda number: drawn_ufunc(number),
    "an inner function": lambda number: [random.random() for _ in range(number)],
    "a module that is handed on": lambda number: (lambda m: m.random.rand())(np) * number,
    "a mapping that anybody may change": lambda number: number if SETTINGS else jitter(),
}
uniform = random.uniform
NUMBERS = [1, 2, 3, 4]


def seeded(monkeypatch):
    """Return what counts how often the global generators are seeded."""
    counted = []

    def seed(number, own=()):
        counted.append(number)
        real(number, own)

    real = seeding.seed_globals
    monkeypatch.setattr(seeding, "seed_globals", seed)
    return counted


def epoch(pipe, workers=0):
    service = vp.MultiProcessingReadingService(workers, multiprocessing_context="fork")
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        return list(loader)


def texts(name):
    return [str(number) for number in NUMBERS] if name == "exceptions" else NUMBERS


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.parametrize("place", ["realizing", "planner", "batch"])
def test_nothing_is_seeded_for_what_draws_nothing(name, place, monkeypatch):
    """And what comes out is what the function returns."""
    function, counted = PROVED[name], seeded(monkeypatch)
    pipe = IterableWrapper(texts(name)).map(function)
    pipe = {"realizing": pipe, "planner": pipe.unbatch(0), "batch": pipe.batch(1)}[place]

    made = epoch(pipe)

    assert counted == []
    expected = [function(item) for item in texts(name)]
    same = [each[0] if place == "batch" else each for each in made]
    assert str(same) == str(expected)


@pytest.mark.parametrize("name", UNPROVED)
def test_what_may_draw_is_seeded_for_each_item(name, monkeypatch):
    """The numbers are those of a worker, whose items were seeded for all along."""
    pipe = IterableWrapper(NUMBERS).map(UNPROVED[name])
    assert proof_that_nothing_draws(pipe) is None
    counted = seeded(monkeypatch)

    here = epoch(pipe)

    assert len(counted) == len(NUMBERS)
    assert name == "a method of C" or str(here) == str(epoch(pipe))


def test_numbers_are_those_that_were_always_drawn():
    """Recorded before anything was proved; in a process of its own, too."""
    pipe = IterableWrapper(NUMBERS).map(sneaky)

    assert epoch(pipe) == epoch(pipe, workers=2) == RECORDED
    assert epoch(IterableWrapper(NUMBERS).map(sneaky).shuffle()) == RECORDED_IN_THE_PLANNER


RECORDED = [1.151006376921777, 4.447669689807863, 1.1307747988907852, 3.3591647708959904]
RECORDED_IN_THE_PLANNER = [
    *(1.389710100001487, 4.13877888742478, 3.7498987592817032, 1.0137570170705426),
]


SOURCES = {
    "objects": lambda: IterableWrapper([Adds(), Adds()]),
    "a generator": lambda: IterableWrapper(random.random() for _ in range(2)),
    "a list that changes": lambda: IterableWrapper([1, 2], deepcopy=False),
    "arrays of objects": lambda: IterableWrapper([np.array([Adds()], object)]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_items_of_which_nothing_is_known_prove_nothing(name):
    """Their operators are their own."""
    assert proof_that_nothing_draws(SOURCES[name]().map(plus)) is None
    assert OursToo is IterableWrapper


@pytest.mark.parametrize("batched", [False, True])
def test_a_name_that_means_something_else_now_ends_the_proof(batched, monkeypatch):
    """From there on the numbers are those of a function that was known to draw."""
    module = globals()

    def rest(changing):
        monkeypatch.setitem(module, "plus", plus if changing else drawing)
        pipe = IterableWrapper(range(8)).map(calls_plus)
        made = []
        with vp.DataLoader2(pipe.batch(2) if batched else pipe, seed=3) as loader:
            for number, item in enumerate(loader):
                made.append(item)
                if number == 1:
                    monkeypatch.setitem(module, "plus", drawing)
        monkeypatch.undo()
        return made[2:]

    assert rest(changing=True) == rest(changing=False)


def drawing(number):
    return number + random.random()


def calls_plus(number):
    return plus(number)


def test_generators_of_the_program_are_left_alone():
    """Whether or not something is proved, in the loop and after it."""
    for function in (plus, sneaky):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        expected = [random.random(), np.random.rand(), torch.rand(()).item()]
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        with vp.DataLoader2(IterableWrapper(NUMBERS).map(function), seed=1) as loader:
            next(iter(loader))
            assert [random.random(), np.random.rand(), torch.rand(()).item()] == expected


def fails(text):
    return int(text)


@pytest.mark.parametrize("size", [0, 2])
def test_an_error_says_what_it_always_said(size, monkeypatch):
    """With the item, the pipe and its line; and what was made before it arrives."""
    pipe = IterableWrapper(["1", "2", "x", "4"]).map(fails)
    pipe = pipe.batch(size) if size else pipe

    def told():
        with vp.DataLoader2(pipe, seed=1) as loader:
            running = iter(loader)
            first = [next(running) for _ in range(1 if size else 2)]
            with pytest.raises(ValueError, match="invalid literal") as caught:
                next(running)
        return first, str(caught.value), caught.value.__notes__

    proved = told()
    monkeypatch.setattr(in_process, "proof_that_nothing_draws", lambda sink: None)

    assert proved == told()
    assert "map(fails)" in "".join(proved[2])


def test_an_epoch_is_resumed_with_what_is_left():
    """From any place, with what the whole epoch has there."""
    pipe = IterableWrapper(range(10)).shuffle().map(plus).batch(3)
    whole = epoch(pipe)
    for taken in range(len(whole) + 1):
        with vp.DataLoader2(pipe, seed=3) as loader:
            running = iter(loader)
            first = [next(running) for _ in range(taken)]
            state = loader.state_dict()
        with vp.DataLoader2(pipe) as loader:
            loader.load_state_dict(state)
            assert first + (list(loader) if taken < len(whole) else []) == whole


def test_plain_values_do_not_go_through_torchs_iterators():
    """Each of its wrappers costs an item more than a microsecond."""
    seen = []

    def profile(frame, event, _):
        if event == "call":
            seen.append(frame.f_code.co_filename)

    with vp.DataLoader2(IterableWrapper(range(20)).map(abs)) as loader:
        items = iter(loader)
        next(items)
        sys.setprofile(profile)
        try:
            rest = list(items)
        finally:
            sys.setprofile(None)

    assert rest == list(range(1, 20))
    assert sum("iterator.py" in name for name in seen) >= 19
    assert sum("_hook_iterator" in name for name in seen) == 0


def test_a_list_that_grows_counts_from_the_next_epoch_on():
    """The values of an epoch are those at its beginning, as torch's wrapper has it."""
    numbers = [1, 2]
    with vp.DataLoader2(IterableWrapper(numbers).map(abs)) as loader:
        found = []
        for number in loader:
            numbers.append(-number)
            found.append(number)
        again = list(IterableWrapper(numbers).map(abs))

    assert found == [1, 2]
    assert again == [1, 2, 1, 2]
