"""What every pipe of the stack promises: one live iterator, copies, pickles, the graph, loaders."""

import json
import pickle
import warnings
from collections import Counter
from itertools import islice
from operator import itemgetter

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph import traverse_dps

import voxpipe as vp
from voxpipe.core.errors import GraphError
from voxpipe.datapipes.epoch import OwnGenerators
from voxpipe.datapipes.iter import IterableWrapper, SampleMultiplexer
from voxpipe.datapipes.map import SequenceWrapper
from voxpipe.graph import chain_code, clone, cut, describe, fingerprint, parents_of, traits_of, walk
from voxpipe.graph.cut import Cut

MULTIPROCESSING = SHARDING_PRIORITIES.MULTIPROCESSING


def numbers(count=12):
    return IterableWrapper(range(count))


def pairs(count=12):
    return IterableWrapper([(n, 10 * n) for n in range(count)])


def rows(count=12):
    return IterableWrapper([{"a": n, "b": [n]} for n in range(count)])


def zipped(branches):
    return branches[0].zip_longest(*branches[1:])


def twice(number):
    return 2 * number


async def twice_later(number):
    return 2 * number


def two_of(number):
    return [number, -number]


def itself(number):
    return number


PIPES = {
    "cycle": lambda: numbers().cycle(2),
    "repeat": lambda: numbers().repeat(2),
    "mux_longest": lambda: numbers().mux_longest(numbers(3)),
    "zip_longest": lambda: numbers().zip_longest(numbers(3)),
    "SampleMultiplexer": lambda: SampleMultiplexer({numbers(): 1, numbers(3): 2}),
    "unzip": lambda: zipped(pairs().unzip(2)),
    "round_robin_demux": lambda: zipped(numbers().round_robin_demux(3)),
    "zip_with_iter": lambda: pairs().zip_with_iter(pairs(), key_fn=itemgetter(0)),
    "zip_with_map": lambda: numbers().zip_with_map(SequenceWrapper(range(12)), key_fn=itself),
    "map_batches": lambda: numbers().map_batches(sorted, 5),
    "flatmap": lambda: numbers().flatmap(two_of),
    "shuffled_flatmap": lambda: numbers().shuffled_flatmap(two_of, buffer_size=3),
    "async_map_batches": lambda: numbers().async_map_batches(twice_later, 5),
    "threadpool_map": lambda: numbers().threadpool_map(twice, max_workers=2),
    "header": lambda: numbers().header(7),
    "set_length": lambda: numbers().set_length(12),
    "enumerate": lambda: numbers().enumerate(),
    "add_index": lambda: rows().add_index(),
    "drop": lambda: pairs().drop(0),
    "slice": lambda: pairs().slice(0, 1),
    "flatten": lambda: rows().flatten(),
    "rows2columnar": lambda: rows().batch(4).rows2columnar(),
    "bucketbatch": lambda: numbers().bucketbatch(3, batch_num=2, bucket_num=2, sort_key=sorted),
    "max_token_bucketize": lambda: IterableWrapper(["ab", "c", "defg"]).max_token_bucketize(4),
    "random_split": lambda: numbers().random_split({"a": 1, "b": 3}, seed=3)[1],
    "in_batch_shuffle": lambda: numbers().batch(4).in_batch_shuffle(),
    "to_map_datapipe": lambda: pairs().to_map_datapipe().to_iter_datapipe(),
    "to_iter_datapipe": lambda: SequenceWrapper(range(12)).to_iter_datapipe(),
    "unzip of a map": lambda: SequenceWrapper([(1, 2)] * 5).unzip(2)[0].to_iter_datapipe(),
    "cache of a map": lambda: SequenceWrapper(range(5)).in_memory_cache().to_iter_datapipe(),
    "in_memory_cache": lambda: numbers().in_memory_cache(),
    "prefetch": lambda: numbers().prefetch(3),
    "to_device": lambda: numbers().to_device("cpu"),
    "sharding_round_robin_dispatch": lambda: numbers().sharding_round_robin_dispatch(
        MULTIPROCESSING
    ),
}
# Parts of what a form returns, a mapping of pipes, an ``itemgetter``.
UNWRITTEN = ["unzip", "round_robin_demux", "SampleMultiplexer", "zip_with_iter"]
RANDOM = ["SampleMultiplexer", "shuffled_flatmap", "bucketbatch", "in_batch_shuffle"]
every = pytest.mark.parametrize("name", PIPES)


def items(pipe):
    """Return the items of one pass under a seed that is fixed."""
    torch.manual_seed(1)
    return list(pipe)


@every
def test_a_pass_can_be_repeated(name):
    """Each pass begins anew and yields the same things."""
    pipe = PIPES[name]()

    assert items(pipe) == items(pipe) != []


@every
def test_there_is_one_live_iterator(name):
    """A new iterator begins anew, and the older one says that it was invalidated."""
    pipe = PIPES[name]()
    complete = items(pipe)
    torch.manual_seed(1)
    older = iter(pipe)
    next(older)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of branches that were not read to their end
        again = items(pipe)

    assert again == complete
    with pytest.raises(RuntimeError, match="This iterator has been invalidated"):
        next(older)


@every
def test_copies_in_mid_pass_begin_anew(name):
    """Neither pickles nor the loader's copies carry what an iterator holds."""
    pipe = PIPES[name]()
    complete = items(pipe)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running = iter(pipe)
    next(running)

    travelled = pickle.loads(pickle.dumps(pipe))
    copied = clone(pipe)

    assert items(travelled) == complete
    assert items(copied) == complete


@every
def test_torch_sees_the_same_graph(name):
    """Torch's traversal, which pickles pipes under a hook, finds the pipes that we declare."""
    pipe = PIPES[name]()
    seen, todo = set(), [traverse_dps(pipe)]
    while todo:
        for number, (_, above) in todo.pop().items():
            seen.add(number)
            todo.append(above)

    assert seen == {id(each) for each in walk(pipe)}


@every
def test_every_pipe_is_known_and_says_where_it_was_written(name):
    """The cut knows what it does; errors can name its line."""
    pipe = PIPES[name]()

    assert traits_of(pipe).is_known
    for each in walk(pipe):
        if type(each).__module__.startswith("voxpipe."):
            assert each.origin.file == __file__
            assert not any(
                isinstance(a, IterDataPipe) for a in getattr(each, "_arguments", [()])[0]
            )


@every
def test_drawings_are_the_same_in_every_process(name):
    """No address in memory; what a pipe is called is what explain() calls it."""
    for each in walk(PIPES[name]()):
        assert " at 0x" not in describe(each)
        if type(each).__module__.startswith("voxpipe."):
            assert repr(each) == describe(each)


@every
def test_the_code_of_a_chain_makes_the_same_one(name):
    """Run in an empty module; what cannot be written stands there as ``...``, with its words."""
    pipe = PIPES[name]()
    code = chain_code(pipe)

    assert ("..." in code) == (name in UNWRITTEN)
    if name in UNWRITTEN:
        assert any("..." in line and f"# {name}(" in line for line in code.splitlines())
        return
    names = {}
    exec(code, names)
    assert fingerprint(names["pipe"]) == fingerprint(pipe)
    assert chain_code(names["pipe"]) == code


@every
def test_the_data_of_a_chain_make_the_same_one(name):
    """Chains that cannot be written are refused; parts of a division share an object."""
    pipe = PIPES[name]()
    if name in (*UNWRITTEN, "random_split"):
        with pytest.raises(GraphError, match="has no data form"):
            vp.chain_to_json(pipe)
        return
    data = json.loads(json.dumps(vp.chain_to_json(pipe), allow_nan=False))
    again = vp.chain_from_json(data, functions=["*"])
    assert fingerprint(again) == fingerprint(pipe)
    assert chain_code(again) == chain_code(pipe)


@every
def test_no_attribute_hides_a_chained_form(name):
    """A setting called ``flatten`` would end every chain that goes on with ``.flatten()``."""
    for pipe in walk(PIPES[name]()):
        forms = {**IterDataPipe.functions} if isinstance(pipe, IterDataPipe) else {}
        ours = type(pipe).__module__.startswith("voxpipe.")

        hidden = [form for form in forms if form in dir_of(pipe)]
        # preview() is a method, which torch's pipes get as a form.
        methods = {f: getattr(call, "__wrapped__", call) for f, call in forms.items()}
        assert not ours or not [f for f in hidden if getattr(type(pipe), f, None) != methods[f]]


def dir_of(pipe):
    """Return the names that a pipe has of its own, without the chained forms."""
    return {*vars(pipe), *(name for kind in type(pipe).__mro__ for name in vars(kind))}


@every
def test_the_fingerprint_is_that_of_the_same_chain(name):
    """A state can be resumed on the chain written again, and after a pass."""
    pipe = PIPES[name]()
    before = fingerprint(pipe)
    items(pipe)

    assert before == fingerprint(PIPES[name]()) == fingerprint(pipe)


@every
def test_a_loader_repeats_and_resumes(name):
    """Epochs are functions of the seed, and continue in the middle with exactly what is left."""
    epochs = []
    for _ in range(2):
        with vp.DataLoader2(PIPES[name](), seed=5) as loader:
            epochs.append([list(loader), list(loader)])
    with vp.DataLoader2(PIPES[name](), seed=5) as loader:
        taken = list(islice(loader, 2))
        state = loader.state_dict()
    with vp.DataLoader2(PIPES[name]()) as loader:
        loader.load_state_dict(state)
        left = list(loader)
        following = list(loader)

    assert epochs[0] == epochs[1]
    assert epochs[0] == [taken + left, following]


@pytest.mark.parametrize("name", RANDOM)
def test_random_pipes_draw_anew_in_each_epoch(name):
    """Epochs differ, unseeded passes too, and torch's seed rules the latter."""
    with vp.DataLoader2(PIPES[name](), seed=5) as loader:
        epochs = [list(loader) for _ in range(6)]
    pipe = PIPES[name]()
    torch.manual_seed(1)
    passes = [list(pipe) for _ in range(6)]
    torch.manual_seed(1)

    assert any(epoch != epochs[0] for epoch in epochs)
    assert any(pass_ != passes[0] for pass_ in passes)
    assert passes == [list(pipe) for _ in range(6)]


@pytest.mark.parametrize("name", ["shuffled_flatmap", "in_batch_shuffle"])
def test_shuffling_can_be_turned_off(name):
    """``set_shuffle(False)``, which torch's loaders use, leaves the order, and draws nothing."""
    torch.manual_seed(3)
    drawn = torch.get_rng_state()

    plain = list(PIPES[name]().set_shuffle(False))

    assert plain == list(PIPES[name]().set_shuffle(False))
    assert torch.equal(drawn, torch.get_rng_state())
    assert fingerprint(PIPES[name]()) != fingerprint(PIPES[name]().set_shuffle(False))


@pytest.mark.parametrize("name", PIPES)
def test_torchs_loader_runs_it(name):
    """As any torch datapipe, in this process."""
    torch.manual_seed(1)

    seen = list(DataLoader(PIPES[name](), batch_size=None))

    assert len(seen) == len(items(PIPES[name]()))


def test_generators_of_pipes_are_not_seeded_for_each_item():
    """A thread of a later pipe may draw from such a generator; the pipe seeds it for each pass."""
    own = OwnGenerators([numbers().shuffled_flatmap(two_of, buffer_size=3)])
    assert own.generators == ()


def test_workers_run_them():
    """Pipes with threads, event loops and generators travel to spawned workers."""
    pipe = (
        numbers()
        .shuffled_flatmap(two_of, buffer_size=3)
        .set_length(24)
        .async_map_batches(twice_later, 5)
        .threadpool_map(twice, max_workers=2)
        .prefetch(2)
        .header(20)
    )
    service = vp.MultiProcessingReadingService(num_workers=1, multiprocessing_context="spawn")
    with vp.DataLoader2(pipe, reading_service=service, seed=3) as loader:
        seen = list(loader)
    with vp.DataLoader2(pipe, seed=3) as loader:
        alone = list(loader)

    assert seen == alone
    assert Counter(seen).total() == 20


def test_names_that_are_taken_are_left(tmp_path):
    """A program may import torchdata 0.9 first: its names stay its own, ours can be imported."""
    import subprocess
    import sys

    program = (
        "from torch.utils.data import IterDataPipe, functional_datapipe\n"
        "@functional_datapipe('prefetch')\n"
        "class Theirs(IterDataPipe):\n"
        "    def __init__(self, parent): self.parent = parent\n"
        "from voxpipe.datapipes.iter import IterableWrapper, Prefetcher\n"
        "assert type(IterableWrapper([1]).prefetch()) is Theirs\n"
        "assert list(Prefetcher(IterableWrapper([1]))) == [1]\n"
        "assert list(IterableWrapper([1]).cycle(2)) == [1, 1]\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_torchs_own_names_are_untouched():
    """None of the names that torch registers became another class."""
    for name, function in IterDataPipe.functions.items():
        owner = function.args[0].__module__ if hasattr(function, "args") else "torch"
        if name in {"batch", "zip", "shuffle", "fork", "demux", "mux", "unbatch", "concat"}:
            assert owner.startswith("torch.utils.data")


def test_prefetch_behind_the_cut_costs_nothing(tmp_path):
    """Workers make whole batches ahead already: the graph is split, the recipe needs no torch."""
    import numpy as np

    from voxpipe.reading_services.work import PlannedWork, work_of

    cases = [{"image": np.full((4, 4, 4), n, np.uint8)} for n in range(4)]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(2).batch_patches(2).prefetch(3)

    work = work_of(pipe)

    assert isinstance(work, PlannedWork)
    assert work.recipe is not None
    with vp.DataLoader2(pipe, seed=1) as loader:
        assert [tuple(b["image"].shape) for b in loader] == [(2, 1, 2, 2, 2)] * 2


def test_prefetch_behind_a_function_costs_nothing():
    """No thread for every batch where the pipes are run as they are."""
    import threading

    from voxpipe.reading_services.pipe_runner import PipeRunner

    split = cut(numbers(4).map(twice).prefetch(2))
    assert isinstance(split, Cut)

    assert "prefetch" not in repr([*walk(PipeRunner(split).sink)])
    before = threading.active_count()
    with vp.DataLoader2(numbers(4).map(twice).prefetch(2)) as loader:
        assert [(n, threading.active_count()) for n in loader] == [
            (n, before) for n in (0, 2, 4, 6)
        ]


def test_pipes_of_one_process_are_not_cut_into_workers():
    """What belongs to the device's process is never put behind the cut."""
    pipe = numbers().to_device("cpu")

    assert traits_of(pipe).main_process
    assert traits_of(numbers().fullsync()).main_process
    assert not pipe.is_replicable()


def test_parents_are_declared_in_order():
    """Pipes with several parents name each once."""
    one, two = numbers(), numbers(3)

    assert parents_of(one.zip_longest(two)) == (one, two)
    assert parents_of(SampleMultiplexer({two: 1, one: 2})) == (two, one)
