"""Workers take over what a forked child would have: state of objects, generators, code, signals."""

import collections
import contextvars
import dataclasses
import functools
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import types
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from scipy.stats import qmc
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.call_site import WarnOnce
from voxpipe.core.errors import WorkerDied

MODULE_RNG = np.random.default_rng(0)


def chain(count=6):
    cases = [{"image": np.zeros((4, 4, 4), np.float32)} for _ in range(count)]
    return vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(1)


def helped():
    return MODULE_RNG.random()


class Parts:
    """As a transform that is made of others."""

    __slots__ = ("members",)

    def __init__(self):
        self.members = {"torch": torch.Generator(), "python": random.Random(0)}


class Noise:
    shared = np.random.RandomState(3)  # of the class, as that of MONAI

    def __init__(self):
        self.state = np.random.RandomState(0)
        self.generator = np.random.default_rng(0)
        self.normal = functools.partial(np.random.default_rng(1).normal, 0.0)
        self.parts = Parts()

    def __call__(self, batch):
        members = self.parts.members
        draws = [self.shared.rand(), self.state.randn(), self.generator.random(), self.normal(1.0)]
        draws += [float(torch.rand(1, generator=members["torch"])), members["python"].random()]
        return {**batch, "draws": (*draws, helped())}


def two_epochs(service, function, name):
    with vp.DataLoader2(chain().map(function), None, service, seed=1) as loader:
        return [[batch[name] for batch in loader] for _ in range(2)]


@pytest.fixture(scope="module")
def noise_here():
    return two_epochs(None, Noise(), "draws")


def test_own_generators_draw_anew_in_every_epoch_and_item(noise_here):
    """Attributes, slots, classes, modules, partials: no number comes twice."""
    numbers = [number for epoch in noise_here for batch in epoch for number in batch]

    assert len(numbers) == 2 * 6 * 7
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    "service",
    [
        vp.MultiProcessingReadingService(2, "fork"),
        vp.ThreadReadingService(2),
        pytest.param(vp.MultiProcessingReadingService(3), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_own_generators_draw_alike_everywhere(noise_here, service):
    """Neither the number of workers nor the service enters."""
    assert two_epochs(service, Noise(), "draws") == noise_here


def test_generators_of_the_loop_are_left_as_they_were():
    """A loop that shares one with its function draws what it draws without a loader."""
    function = Noise()
    two_epochs(None, function, "draws")

    assert function.state.randn() == np.random.RandomState(0).randn()
    assert function.generator.random() == np.random.default_rng(0).random()


def test_a_generator_of_a_module_that_a_function_imports(tmp_path, monkeypatch):
    """An import in the function counts as one at the top."""
    (tmp_path / "late_generator.py").write_text(
        "import numpy as np\nRNG = np.random.default_rng(0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    __import__("late_generator")

    def draw(batch):
        import late_generator

        return {"draw": late_generator.RNG.random()}

    first, again = (two_epochs(None, draw, "draw") for _ in range(2))
    assert first == again
    assert len({*first[0], *first[1]}) == 12


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    generator: object


class Base:
    __slots__ = ("__inherited",)

    def __init__(self):
        self.__inherited = np.random.default_rng(0)

    def inherited(self):
        return self.__inherited.random()


class PythonOfTwo(random.Random):
    """As a subclass of random.Random with a generator of NumPy."""

    def __init__(self, seed=None):
        super().__init__(seed)
        self.other = np.random.default_rng(0)


class OfClass:
    members = [np.random.default_rng(0)]  # noqa: RUF012  shared by all objects

    class Nested:
        generator = np.random.default_rng(0)


class Hidden(Base):
    """Holds generators where no attribute names them."""

    __slots__ = ("__dict__", "kind", "python")

    def __init__(self):
        super().__init__()
        self.kind, self.python = OfClass, PythonOfTwo(0)
        self.queue = collections.deque([np.random.default_rng(0)])
        self.array = np.array([None, np.random.default_rng(0)], object)
        self.keys = {np.random.default_rng(0): "weight"}
        self.group = frozenset([np.random.default_rng(0)])
        self.map = collections.OrderedDict(a=[torch.Generator()])
        self.bits = [np.random.PCG64(0), np.random.MT19937(0), np.random.Philox(0)]
        self.seeds = np.random.SeedSequence(0)
        self.parent = np.random.default_rng(0)
        self.late = [*range(2000), Member([np.random.default_rng(0)])]
        self.items = Items(None)
        self.items.generator = np.random.default_rng(0)
        self.list = List()
        self.list.generator = np.random.default_rng(0)

    def __call__(self, batch):
        (child,), (seeds,) = self.parent.spawn(1), self.seeds.spawn(1)
        generators = [*self.queue, self.array[1], *self.keys, *self.group, child]
        generators += [np.random.Generator(bits) for bits in self.bits]
        generators += [self.kind.members[0], self.kind.Nested.generator, self.python.other]
        generators += [self.late[-1].generator[0], self.items.generator, self.list.generator]
        draws = [self.python, np.random.default_rng(seeds), *generators]
        last = float(torch.rand(1, generator=self.map["a"][0]))
        return {**batch, "draws": (*(each.random() for each in draws), self.inherited(), last)}


class List(list):
    pass


@pytest.mark.parametrize("stay", [False, True])
def test_generators_in_hidden_places_draw_alike_everywhere(stay):
    """Containers, keys, slots, classes, bit generators and seed sequences; no number twice."""
    function = Hidden()
    here = two_epochs(None, function, "draws")
    numbers = [number for epoch in here for draws in epoch for number in draws]
    assert len(set(numbers)) == len(numbers) == 2 * 6 * 18
    assert vp.Lint().mistakes(chain().map(function)) == []
    service = vp.ThreadReadingService(2) if stay else vp.MultiProcessingReadingService(2, "fork")
    assert two_epochs(service, function, "draws") == here


class Unsearched:
    """Holds generators in places that the loader does not seed alike everywhere."""

    def __init__(self, place):
        generator = np.random.default_rng(0)
        self.parts = {
            "set": {generator, np.random.default_rng(1)},
            "list": [*map(Member, range(1000)), Member(generator)],
            "many": [[Member(n) for n in range(900)] for _ in range(7)],
        }[place]

    def __call__(self, batch):
        return batch


def warnings_of(function, service):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        # Python 3.12 and later warn of a fork beside threads.
        warnings.filterwarnings("ignore", r".*fork\(\)", DeprecationWarning)
        two_epochs(service, function, "meta")
    return [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("set", "each process has its own order of a set"),
        ("list", "the search ends after 1000 entries of a list"),
        ("many", "the search ends after 5000 objects"),
    ],
)
def test_places_that_are_not_searched_are_named_once(place, why, monkeypatch):
    """By a warning with the path and the way out, and by Lint; plain values have no limit."""
    for service in (None, vp.MultiProcessingReadingService(2, "fork")):
        monkeypatch.setattr("voxpipe.datapipes.epoch._ONCE", WarnOnce())  # once in a process
        (text,) = warnings_of(Unsearched(place), service)
        assert text.startswith("unseen-generators: generators in map.fn.parts")
        assert why in text
        assert "attributes of the object itself" in text
    (mistake,) = vp.Lint().mistakes(chain().map(Unsearched(place)))
    assert (mistake.name, why in mistake.message) == ("own-state", True)


class Lazy:
    rng = None

    def __init__(self):
        self.early = np.random.default_rng(5)

    def __call__(self, batch):
        if self.rng is None:
            self.rng = np.random.default_rng(0)
        self.last = random.Random(0)  # another one for each item
        batch["draws"] = self.rng.random(), self.early.random(), self.last.random()
        return batch


class Cached:
    @functools.cached_property
    def rng(self):
        return torch.Generator().manual_seed(0)

    def __call__(self, batch):
        return {**batch, "draws": torch.rand(1, generator=self.rng).item()}


@functools.lru_cache
def kept_generator(name):
    return np.random.RandomState(3)


def draws_from_cache(batch):
    return {**batch, "draws": kept_generator("noise").rand()}


def draws_by_name(batch):
    if "LATE" not in globals():
        globals()["LATE"] = random.Random(3)
    return {**batch, "draws": globals()["LATE"].random()}


PLACES = threading.local(), contextvars.ContextVar("place", default=None)


def draws_of_thread(batch):
    local, place = PLACES
    if not hasattr(local, "rng"):
        local.rng = np.random.default_rng(0)
        place.set(np.random.default_rng(1))
    return {**batch, "draws": (local.rng.random(), place.get().random())}


@pytest.mark.parametrize("thing", [Lazy, Cached, draws_from_cache, draws_by_name, draws_of_thread])
def test_generators_that_a_function_creates_draw_alike_everywhere(thing):
    """The first item is made again with the new generator seeded; no number comes twice."""
    services = [vp.MultiProcessingReadingService(2, "fork"), None, vp.ThreadReadingService(2)]
    runs = []
    for service in services:  # those that fork first: a module keeps its generator
        runs.append(two_epochs(service, thing() if isinstance(thing, type) else thing, "draws"))
    first, *others = runs

    numbers = [number for epoch in first for number in epoch]
    assert len(set(map(str, numbers))) == 12
    assert others == [first, first]


@pytest.mark.parametrize("kind", ["whole", "planner", "items"])
def test_a_first_item_has_the_numbers_of_a_generator_that_exists(kind):
    """In a graph that is not split, before the cut, and for a function of items."""
    patches, function = vp.from_cases([{"image": np.zeros((4, 4, 4))}] * 4), Lazy()
    patches = patches.open_volume().lazy_patch(4)
    pipe = {
        "whole": patches.realize().map(function).shuffle(),
        "planner": patches.map(function).shuffle().batch_patches(1),
        "items": patches.realize().map(function).batch(2),
    }[kind]
    runs = []
    for _ in range(2):  # the second one finds the generator
        with vp.DataLoader2(pipe, seed=1) as loader:
            items = [each for one in loader for each in (one if kind == "items" else [one])]
        runs.append([str(each["draws"]) for each in items])

    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 4


class InThread:
    """Holds a thread, whose hook leads to everything that a library holds."""

    def __init__(self):
        held, self.thread = Unsearched("many"), threading.Thread()
        self.thread._invoke_excepthook = lambda: held

    def __call__(self, batch):
        return batch


def test_the_hook_of_a_thread_is_not_searched():
    """Ray and others replace it; no generator behind it is of the user."""
    assert not warnings_of(InThread(), None)


class Later(Lazy):
    def __call__(self, batch):
        self.count = getattr(self, "count", 0) + 1
        return super().__call__(batch) if self.count > 1 else {**batch, "draws": 0}


def test_generators_that_cannot_be_seeded_in_time_are_named(monkeypatch):
    """Created after the first item, in a batch that comes once, or in a reader."""
    monkeypatch.setattr("voxpipe.datapipes.epoch._ONCE", WarnOnce())
    once = chain().to_device("cpu").map(Lazy())
    texts = [*warnings_of(Later(), None)]
    with warnings.catch_warnings(record=True) as caught, vp.DataLoader2(once, seed=1) as loader:
        warnings.simplefilter("default")
        assert len([*loader]) == 6
        chain().open_volume(reader=Lazy())
    texts += [str(one.message) for one in caught]

    assert ["created while items were made" in text for text in texts] == [True, True, False]
    assert "generators in open_volume[...].early" in texts[2]
    assert all(text.startswith("unseen-generators") for text in texts)


class ReadOnce(list):
    def __iter__(self):
        raise AssertionError("the search runs code of the user")


class DrawsFromList:
    def __init__(self):
        self._parts = ReadOnce([np.random.default_rng(0)])  # no public setting

    def __call__(self, batch):
        return {**batch, "draws": self._parts[0].random()}


def test_the_search_runs_no_iteration_of_the_user():
    """A container may read files as it is iterated; its generator is seeded without that."""
    function = DrawsFromList()
    first, again = (two_epochs(None, function, "draws") for _ in range(2))

    assert first == again


def test_long_lists_of_values_are_no_places_of_generators():
    """Numbers, names, and rows of them."""
    function = Unsearched("set")
    function.parts = [*range(2000), *([name, 1.5] for name in map(str, range(2000)))]
    assert vp.Lint().mistakes(chain().map(function)) == []
    assert warnings_of(function, None) == []


class Sobol:
    def __init__(self):
        self.engine = qmc.Sobol(1, seed=0)

    def __call__(self, batch):
        return batch


class Counter:
    count = 0

    def __call__(self, batch):
        self.count += 1
        return batch


@pytest.mark.parametrize("function", [Sobol(), Counter()])
def test_state_that_no_seed_sets_is_a_mistake(function):
    """Lint names it: each worker has its own, which begins anew in every epoch."""
    found = vp.Lint().mistakes(chain().map(function))

    assert [mistake.name for mistake in found] == ["own-state"]
    assert vp.Lint().mistakes(chain().map(Noise())) == []


class Curriculum:
    def __init__(self):
        self.level = 0

    def __call__(self, batch):
        return {**batch, "level": self.level}


def levels(loader, function, name="level"):
    seen = []
    for epoch in range(3):
        function.level = epoch
        seen.append({int(batch[name]) for batch in loader})
    return seen


class Items(torch.utils.data.Dataset):
    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.function({})


@pytest.mark.parametrize("cached", [False, True])
def test_workers_that_stay_see_objects_as_they_are_now(cached):
    """As torch's loader does whose workers end with the epoch."""
    function = Curriculum()
    torchs = torch.utils.data.DataLoader(Items(function), batch_size=None, num_workers=1)
    expected = levels(torchs, function)
    cases = [{"image": np.ones((4, 4, 4), np.float32)} for _ in range(3)]
    pipe = vp.from_cases(cases).open_volume().normalize()
    pipe = (pipe.cache() if cached else pipe).lazy_patch(4).batch_patches(1).map(function)
    service = vp.MultiProcessingReadingService(2, "fork", persistent_workers=True)

    with vp.DataLoader2(pipe, None, service, seed=1) as loader:
        assert levels(loader, function) == expected == [{0}, {1}, {2}]


LEVEL = 0
TABLE = {"level": 0}
LEVELS = [0]
SETTINGS = types.SimpleNamespace(of=types.SimpleNamespace(level=0))
FOLDER = pathlib.PurePosixPath("0")


class Levels:
    level = 0

    def __call__(self, batch):
        levels = [LEVEL, TABLE["level"], LEVELS[-1], SETTINGS.of.level, int(FOLDER.name)]
        levels += [self.level, level_of_function.level, int(os.environ["VOXPIPE_TEST_LEVEL"])]
        places = os.getcwd(), sys.path[0], torch.get_default_dtype(), np.geterr()["over"]
        return {**batch, "level": (levels, places)}


def level_of_function():
    """A function with an attribute."""


def set_levels(level, folder, monkeypatch):
    """Change everything that a forked child would have; the same objects where they can change."""
    monkeypatch.setitem(globals(), "LEVEL", level)
    monkeypatch.setitem(globals(), "FOLDER", pathlib.PurePosixPath(str(level)))
    TABLE["level"] = SETTINGS.of.level = Levels.level = level_of_function.level = level
    LEVELS.append(level)
    monkeypatch.setenv("VOXPIPE_TEST_LEVEL", str(level))
    (folder / str(level)).mkdir()
    monkeypatch.chdir(folder / str(level))
    monkeypatch.syspath_prepend(folder / str(level))
    torch.set_default_dtype([torch.float64, torch.float32][level % 2])
    np.seterr(over=["ignore", "raise"][level % 2])


@pytest.mark.parametrize("stay", [False, True])
def test_workers_have_the_values_of_modules_and_of_the_process(stay, tmp_path, monkeypatch):
    """Globals, their attributes, classes, functions, environment, folders and defaults."""
    dtype, errors = torch.get_default_dtype(), np.geterr()
    service = vp.MultiProcessingReadingService(1, persistent_workers=stay)
    seen = []
    try:
        with vp.DataLoader2(chain(2).map(Levels()), None, service) as loader:
            for level in (1, 2, 3):
                set_levels(level, tmp_path, monkeypatch)
                first = sys.path[0], torch.get_default_dtype(), np.geterr()["over"]
                seen.append(([level] * 8, (os.getcwd(), *first)))
                assert [batch["level"] for batch in loader] == [seen[-1]] * 2
    finally:
        torch.set_default_dtype(dtype)
        np.seterr(**errors)


def set_level_in_worker(datapipe, info):
    globals()["LEVEL"] = 7
    return datapipe


def level_here(batch):
    return {**batch, "level": LEVEL}


def test_values_that_a_worker_set_stay_until_the_consumer_changes_them(monkeypatch):
    """A worker_init_fn runs once in a worker, after the values of the consumer came."""
    service = vp.MultiProcessingReadingService(
        1, worker_init_fn=set_level_in_worker, persistent_workers=True
    )
    with vp.DataLoader2(chain(1).map(level_here), None, service) as loader:
        seen = [[batch["level"] for batch in loader] for _ in range(2)]

    assert seen == [[7], [7]]


class Numbered:
    count = 0

    def __call__(self, batch):
        self.count += 1
        return self.count


def split(function):
    return chain().map(function)


def whole(function):
    return chain().shuffle().batch(1).map(function)


def kept(function):
    pipe = IterableWrapper(range(6)).sharding_filter().in_memory_cache()
    return pipe.shuffle().batch(1).map(function)


SERVICES = {
    "in process": lambda: None,
    "threads": lambda: vp.ThreadReadingService(2),
    "workers": lambda: vp.MultiProcessingReadingService(1, "fork"),
    "persistent": lambda: vp.MultiProcessingReadingService(1, "fork", persistent_workers=True),
}


@pytest.mark.parametrize("pipes", [split, whole, kept])
@pytest.mark.parametrize("service", SERVICES)
def test_an_epoch_begins_with_the_state_of_the_consumer(service, pipes):
    """The consumer counts anew in each epoch, and so does every place where the function runs."""
    function = Numbered()
    with vp.DataLoader2(pipes(function), None, SERVICES[service](), seed=1) as loader:
        for _ in range(2):
            function.count = 0
            assert list(loader) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("pipes", [split, whole, kept])
def test_what_a_worker_counted_ends_with_the_epoch(pipes):
    """Workers that stay count as those that end; the object of the consumer stays at 0."""
    service = vp.MultiProcessingReadingService(1, "fork", persistent_workers=True)
    with vp.DataLoader2(pipes(Numbered()), None, service, seed=1) as loader:
        assert [list(loader) for _ in range(3)] == [[1, 2, 3, 4, 5, 6]] * 3
        assert loader.set_epoch(2) is None
        assert list(loader) == [1, 2, 3, 4, 5, 6]


class Weighed:
    pickles = 0

    def __call__(self, batch):
        return batch

    def __reduce__(self):
        Weighed.pickles += 1
        return Weighed, ()


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("pipes", [split, kept])
def test_a_graph_is_pickled_once_for_all_workers(pipes, stay):
    """When the loader is made, and once in an epoch."""
    service = vp.MultiProcessingReadingService(3, "fork", persistent_workers=stay)
    Weighed.pickles = 0
    with vp.DataLoader2(pipes(Weighed()), None, service, seed=1) as loader:
        assert [len(list(loader)) for _ in range(2)] == [6, 6]

    assert Weighed.pickles == 3


def run_script(folder, text, *arguments):
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    # In a session of its own, as a step of a cluster's job.
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


HEAD = """
    import os, signal, sys, time
    import numpy as np
    import voxpipe as vp
    method = sys.argv[1]

    def loader(function, persistent=None, start=60):
        cases = [{"image": np.zeros((4, 4, 4), np.float32)} for _ in range(20)]
        pipe = vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(1)
        service = vp.MultiProcessingReadingService(2, method)
        pipe = pipe if function is None else pipe.map(function)
        return vp.DataLoader2(pipe, [vp.Timeout(item=60, start=start)], service, seed=1)
"""
TO_ALL = (
    HEAD
    + """
    if __name__ == "__main__":
        came = []
        signal.signal(getattr(signal, sys.argv[2]), lambda *_: came.append(1))
        batches = iter(loader(None))
        next(batches)
        print("go", flush=True)
        sys.stdin.readline()
        print(sum(1 for _ in batches), "batches", len(came), "signal", flush=True)
"""
)
FORK_IS_QUICK = [
    ("fork", "SIGUSR1"),
    *(pytest.param(m, s, marks=pytest.mark.slow) for m, s in [("forkserver", "SIGTERM")]),
    *(pytest.param(m, s, marks=pytest.mark.slow) for m, s in [("spawn", "SIGHUP")]),
    *(pytest.param(m, s, marks=pytest.mark.slow) for m, s in [("forkserver", "SIGQUIT")]),
]


@pytest.mark.parametrize(("method", "name"), FORK_IS_QUICK)
def test_a_signal_to_all_processes_is_that_of_the_parent(tmp_path, method, name):
    """A handler that writes a checkpoint keeps its workers, as those of torch's fork do."""
    with run_script(tmp_path, TO_ALL, method, name) as process:
        assert process.stdout.readline() == "go\n"
        os.killpg(process.pid, getattr(signal, name))
        output, _ = process.communicate("\n", timeout=60)

    assert output == "19 batches 1 signal\n"
    assert process.returncode == 0


OWN_SETTINGS = (
    HEAD
    + """
    import faulthandler
    os.environ["MINE"] = "by import" if __name__ != "__main__" else "of the consumer"
    faulthandler.register(signal.SIGUSR1, open("stack.txt", "a"), all_threads=False)

    def mark(batch):
        signal.raise_signal(signal.SIGUSR1)
        return {**batch, "names": tuple(map(os.environ.get, ("MINE", "CHANGED", "REMOVED", "NEW")))}

    if __name__ == "__main__":
        if method != "fork":
            del os.environ["MINE"]
        os.environ.update(CHANGED="before", REMOVED="before")
        print({b["names"] for b in loader(mark)}, flush=True)
        os.environ.update(CHANGED="later", NEW="later")
        del os.environ["REMOVED"]
        print({b["names"] for b in loader(mark)}, flush=True)
"""
)


@pytest.mark.parametrize(
    ("method", "mine"),
    [
        ("fork", "of the consumer"),
        pytest.param("forkserver", "by import", marks=pytest.mark.slow),
        pytest.param("spawn", "by import", marks=pytest.mark.slow),
    ],
)
def test_what_a_script_sets_at_its_import_stays(warm_python, tmp_path, method, mine):
    """Variables and the handlers of faulthandler; later changes of the consumer arrive."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(OWN_SETTINGS))
    output = warm_python.run(script, method, cwd=tmp_path).stdout

    first, second = (mine, "before", "before", None), (mine, "later", None, "later")
    assert output == f"{{{first}}}\n{{{second}}}\n"
    assert (tmp_path / "stack.txt").stat().st_size > 0


ONE_SERVER = (
    HEAD
    + """
    import functools
    from multiprocessing import active_children, resource_tracker
    import first, mine, other
    number = 1
    ARGS = OWN = None

    class Own:
        scale = 3

        def __init__(self):
            self.scale = 4

    def replaced(*names):
        for name in names:
            with open(name) as file:
                text = file.read()
            with open(name, "w") as file:
                file.write(text.replace("number = 1", "number = 22"))

    def with_names(batch, names):
        return {**batch, "names": names}

    def a_text():
        import onlyhere
        with loader(functools.partial(with_names, names=("onlyhere",))) as batches:
            print({b["names"] for b in batches})

    def another_module():
        for function in (first.mark, other.mark, first.mark):
            with loader(function) as batches:
                print({b["versions"] for b in batches})
            replaced("first.py")

    def with_versions(batch):
        return {**batch, "versions": (mine.number, number)}

    def edited():
        with loader(with_versions) as batches:
            print({b["versions"] for b in batches})
            replaced("mine.py", "train.py")
            print({b["versions"] for b in batches})

    def scaled(batch):
        return {**batch, "scale": (ARGS.scale, OWN is None)}

    def values_of_the_guard():
        print({batch["scale"] for batch in loader(scaled)})

    def later_handlers():
        batches = iter(loader(None))
        next(batches)
        before = {process.pid for process in active_children()}
        tracker = resource_tracker._resource_tracker._pid
        for name in ("USR1", "ALRM", "XCPU", "PROF", "VTALRM", "QUIT", "IO", "RTMIN", "RTMAX"):
            number = getattr(signal, f"SIG{name}")
            signal.signal(number, lambda *_: None)
            for pid in (*before, tracker):
                os.kill(pid, number)
        for _ in range(15):
            next(batches)
        print(len(before), before == {process.pid for process in active_children()})
        print(os.waitpid(tracker, os.WNOHANG))

    if __name__ == "__main__":
        import argparse
        for part in sys.argv[2:]:
            print(f"-- {part}")
            if part == "values_of_the_guard":
                ARGS, OWN = argparse.Namespace(scale=3), Own()
            globals()[part]()
            sys.stdout.flush()
"""
)


def parts_of_a_script(python, folder, method, *parts):
    """Return the output of each part of a script by its name, warnings included."""
    code = "number = 1\ndef mark(batch):\n    return {**batch, 'versions': number}\n"
    for name in ("first.py", "mine.py", "other.py"):
        (folder / name).write_text(code)
    (folder / "onlyhere.py").write_text("open('imports.txt', 'a').write('x')\n")
    script = folder / "train.py"
    script.write_text(textwrap.dedent(ONE_SERVER))
    output = python.run(script, method, *parts, cwd=folder, one_output=True).stdout
    before, *sections = output.split("-- ")
    assert before == ""
    return dict(section.split("\n", 1) for section in sections)


@pytest.fixture(scope="module")
def under_one_server(warm_python, tmp_path_factory):
    """Run all parts in one process, whose loaders share a fork server; return its folder too."""
    folder = tmp_path_factory.mktemp("one_server")
    parts = ["a_text", "another_module", "edited", "values_of_the_guard", "later_handlers"]
    return folder, parts_of_a_script(warm_python, folder, "forkserver", *parts)


@pytest.mark.slow
def test_values_that_the_guard_of_a_script_sets_are_those_of_workers(under_one_server):
    """As arguments of a command line, which the main process parses; an object is named."""
    _, printed = under_one_server
    output = printed["values_of_the_guard"]

    assert "{(3, True)}" in output
    assert output.count("workers have no OWN of __main__, which was set after its import") == 1


def test_a_handler_of_later_ends_no_worker(under_one_server):
    """Workers that are up already ignore the signals of jobs, too."""
    _, printed = under_one_server

    assert printed["later_handlers"] == "2 True\n(0, 0)\n"


def test_code_that_is_edited_meanwhile_stays_as_it_was(under_one_server):
    """The script and its imports."""
    _, printed = under_one_server

    assert printed["edited"] == "{(1, 1)}\n" * 2


@pytest.mark.slow
def test_code_that_each_worker_imports_anew_brings_a_warning(warm_python, tmp_path):
    """After an edit, where no server holds the version of the first epoch."""
    output = parts_of_a_script(warm_python, tmp_path, "spawn", "edited")["edited"]

    assert output.startswith("{(1, 1)}\n")
    assert "LikelyMistake" in output.partition("\n")[2]


def test_a_graph_with_another_module_keeps_the_version_of_edited_code(under_one_server):
    """A second loader brings a module; workers of the first one do not import their code anew."""
    _, printed = under_one_server

    assert printed["another_module"] == "{1}\n" * 3


def test_a_text_that_is_the_name_of_a_module_imports_none(under_one_server):
    """Workers import modules of functions and classes; a text in the graph is a value."""
    folder, printed = under_one_server

    assert printed["a_text"] == "{('onlyhere',)}\n"
    assert (folder / "imports.txt").read_text() == "x"


EDITED_BEFORE = (
    HEAD
    + """
    import warnings
    import mine, theirs

    def late(batch):
        from helper import scale
        return {**batch, "scale": scale()}

    def scales(function):
        with loader(function) as batches:
            return {b["scale"] for b in batches}

    def edit(name):
        with open(name) as file:
            text = file.read()
        with open(name, "w") as file:
            file.write(text.replace("return 1", "return 22"))

    if __name__ == "__main__":
        import helper
        warnings.simplefilter("always")
        for function in (theirs.mark, mine.K(), late):
            name = {late: "helper.py"}.get(function) or f"{function.__module__}.py"
            if name != "theirs.py":
                edit(name)
            print(name, scales(function), flush=True)
"""
)


@pytest.mark.slow
def test_code_that_was_edited_before_its_first_epoch_is_named(tmp_path):
    """A class, and a module that a function imports, after another loader had workers."""
    code = "class K:\n    def scale(self, batch): return 1\n"
    code += "    def __call__(self, batch): return {**batch, 'scale': self.scale(batch)}\n"
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "theirs.py").write_text("def mark(batch): return {**batch, 'scale': 0}\n")
    (tmp_path / "helper.py").write_text("def scale(): return 1\n")
    output, _ = run_script(tmp_path, EDITED_BEFORE, "forkserver").communicate(timeout=100)
    assert "theirs.py {0}" in output
    for name in ("mine.py", "helper.py"):
        assert f"{name} {{22}}" in output
        assert output.count(f"{name} was edited since this process imported it") == 1
    assert output.count("was edited") == 2


LATE_IMPORTS = (
    HEAD
    + """
    class OfObject:
        def __call__(self, batch):
            import late
            import latepackage.other as other
            from latepackage import member, first
            versions = late.version(), other.version(), member.version(), first()
            return {**batch, "versions": versions}

    def write(number):
        for name in ("late", *(f"latepackage/{name}" for name in ("member", "other", "inner"))):
            with open(f"{name}.py", "w") as file:
                file.write(f"def version():\\n    return {number}\\n")

    if __name__ == "__main__":
        os.mkdir("latepackage")
        with open("latepackage/__init__.py", "w") as file:
            file.write("def first():\\n    from . import inner\\n    return inner.version()\\n")
        write(1)
        with loader(OfObject()) as first, loader(OfObject()) as second:
            print({b["versions"] for b in first}, flush=True)
            write(22)
            print({b["versions"] for b in first}, {b["versions"] for b in second}, flush=True)
"""
)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_modules_that_functions_import_stay_in_one_version(warm_python, tmp_path, method):
    """Modules, members of packages, relative imports of another function."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(LATE_IMPORTS))
    output = warm_python.run(script, method, cwd=tmp_path).stdout

    assert output == "{(1, 1, 1, 1)}\n{(1, 1, 1, 1)} {(1, 1, 1, 1)}\n"


BLOCKED = (
    HEAD
    + """
    def wait_for_a_port():
        time.sleep(1000)

    if __name__ != "__main__":
        wait_for_a_port()

    def same(batch):
        return batch

    if __name__ == "__main__":
        try:
            list(loader(same, start=8))
        except vp.errors.WorkerDied as error:
            print(error)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_an_import_that_blocks_is_named(tmp_path, method):
    """Within the time for the start, with the line; no batch and no file is blamed."""
    with run_script(tmp_path, BLOCKED, method) as process:
        output, _ = process.communicate("\n", timeout=60)

    assert "did not start within 8 s" in output
    assert "in wait_for_a_port" in output
    assert "batch 0" not in output


FEW_FILES = (
    HEAD
    + """
    if __name__ == "__main__":
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        every = [loader(None) for _ in range(20)]
        try:
            print(sum(1 for _ in zip(*every)))
        except vp.errors.WorkerDied as error:
            print(error)
        for one in every:
            one.shutdown()
"""
)


@pytest.mark.slow
def test_too_many_open_files_are_named(tmp_path):
    """With the limit that helps."""
    with run_script(tmp_path, FEW_FILES, "forkserver") as process:
        output, _ = process.communicate("\n", timeout=60)

    assert output.startswith("no worker could be started: OSError: [Errno 24]")
    assert "ulimit -n" in output


class Inner(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        service = vp.MultiProcessingReadingService(1, "fork")
        try:
            list(vp.DataLoader2(chain(1), None, service))
        except WorkerDied as error:
            return str(error)


def test_a_daemon_process_is_refused_with_the_way_out():
    """In a worker of torch's loader, which is one."""
    (text,) = torch.utils.data.DataLoader(Inner(), batch_size=None, num_workers=1, timeout=60)

    assert "daemon process" in text
    assert "ThreadReadingService" in text


def leave_a_pool():
    """Leave workers that stay to the end of a child of multiprocessing, which runs no atexit."""
    service = vp.MultiProcessingReadingService(1, "fork", persistent_workers=True)
    loader = vp.DataLoader2(chain(2), None, service, seed=1)
    leave_a_pool.loader = loader
    return len(list(loader))


def test_a_child_that_leaves_its_workers_ends():
    """Multiprocessing ends daemons by SIGTERM, at which workers do nothing, and waits for them."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        assert pool.submit(leave_a_pool).result(timeout=60) == 2
