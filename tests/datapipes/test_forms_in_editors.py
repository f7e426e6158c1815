"""Chained forms in shells and editors: ``help()``, ``inspect.signature``, ``dir()`` and jedi."""

import functools
import inspect
import pickle
import pydoc
import re
import sys

import numpy as np
import pytest
from checkout import ROOT
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import voxpipe as vp
from voxpipe.datapipes import PerItem

FORMS = sorted(name for name in IterDataPipe.functions if not name.startswith("_"))
# Of torch, private in its data frames.
FORMS.remove("trace_as_dataframe")


class Doubled(PerItem):
    """A pipe of a user."""

    def apply(self, item):
        """Return twice the item."""
        return 2 * item

    def statistics(self):
        """Return the statistics."""
        return {}

    def _hidden(self):
        return None


def ours():
    return vp.from_cases([{"image": np.zeros((4, 4, 4))}] * 3).open_volume()


PIPES = {"ours": ours(), "after shuffle": ours().shuffle(), "of torch": IterableWrapper([1])}


@pytest.mark.parametrize("pipe", PIPES.values(), ids=PIPES)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_its_parameters_and_docstring(pipe, name):
    """Without the parent, on pipes of voxpipe and of torch."""
    form = getattr(pipe, name)
    signature = inspect.signature(form)
    text = pydoc.render_doc(form, renderer=pydoc.plaintext)

    assert not {"self", "parent", "datapipe", "source_datapipe"} & {*signature.parameters}
    assert f"{name}(" in text
    assert all(parameter in text for parameter in signature.parameters)
    assert len(inspect.getdoc(form)) > 20


@pytest.mark.parametrize("pipe", PIPES.values(), ids=PIPES)
def test_parameters_of_a_patch(pipe):
    """Names, defaults and annotations, as they are written."""
    signature = inspect.signature(pipe.lazy_patch)
    text = pydoc.render_doc(pipe.lazy_patch, renderer=pydoc.plaintext)

    assert [*signature.parameters][:3] == ["size", "samples_per_volume", "sampling"]
    assert signature.parameters["sampling"].default == "uniform"
    signature.bind(64, overlap=8)
    with pytest.raises(TypeError):
        signature.bind(64, overlay=8)
    # Python 3.13 and later write long signatures in lines, one for each parameter.
    text = re.sub(r"\(\s+", "(", re.sub(r",\s+", ", ", text))
    assert "lazy_patch(size: Size, *, samples_per_volume: int | str | Callable" in text
    assert ") -> PatchSampler" in text
    assert "Patch size (I, J, K) in voxels" in text


def test_help_of_a_form_of_torch_on_our_pipe():
    """With its name, and the module of its pipe."""
    text = pydoc.render_doc(ours().shuffle, renderer=pydoc.plaintext)

    assert "in module torch.utils.data" in text.splitlines()[0]
    assert "shuffle(*, buffer_size: int = 10000, unbatch_level: int = 0)" in text


def test_forms_of_map_style_pipes():
    """Ours, which are loaded at their first use."""
    assert "to_iter_datapipe" in MapDataPipe.functions
    form = SequenceWrapper([1]).to_iter_datapipe
    assert [*inspect.signature(form).parameters] == ["indices"]
    assert "to_iter_datapipe(indices" in form.__doc__


def test_a_form_is_a_value():
    """It can be held, called later, and pickled with its pipe."""
    pipe = IterableWrapper([3, 1]).enumerate()
    form = functools.partial(pipe.cycle, 2)
    again = pickle.loads(pickle.dumps(pipe.cycle))

    assert list(form()) == [(0, 3), (1, 1)] * 2 == list(again(2))
    assert form().origin.call == "cycle(2)"
    assert repr(pipe.cycle) == "<chained form cycle of enumerate()>"


def test_dir_shows_forms_and_no_internals():
    """Public methods that users call stay, those that loaders and pipes call do not."""
    names = {name for name in dir(ours().lazy_patch(2)) if not name.startswith("_")}

    assert names == {*FORMS, "trace_as_dataframe", "explain"}
    assert {"set_seed", "set_shuffle"} <= {*dir(ours().shuffle_plans())}
    assert {"pause", "resume", "shutdown"} <= {*dir(ours().prefetch(2))}
    assert {"__iter__", "__len__", "__class__"} <= {*dir(ours())}


def test_dir_shows_methods_of_a_users_class():
    """Its own public ones; what it inherits of PerItem is as for other pipes."""
    names = {*dir(Doubled(IterableWrapper([1])))}

    assert {"apply", "statistics", "explain", "lazy_patch"} <= names
    assert {"_hidden", "instructions", "parent", "traits", "by_number"} & names == set()


def test_dir_holds_no_credentials():
    """Options of stores are no names that a shell would look at."""
    pipe = vp.from_cases([{"image": np.zeros((2, 2, 2))}]).open_volume(storage_options={"key": "x"})
    assert not {name for name in dir(pipe) if "option" in name}


# jedi, by which IPython completes, reads objects of a shell, or files without importing them.
NAMES = {"vp": vp, "Volume": vp.Volume, "pipe": PIPES["ours"], "of_torch": PIPES["of torch"]}


@pytest.fixture(scope="module")
def jedi():
    return pytest.importorskip("jedi", reason="jedi is not installed: pip install jedi")


@pytest.fixture
def in_shell(jedi):
    """Return a function that reads code of a shell, in which ``NAMES`` are defined."""
    return lambda code: jedi.Interpreter(code, [NAMES])


@pytest.fixture
def in_file(jedi, monkeypatch):
    """Return a function that reads code of a file, as an editor does."""
    if not (ROOT / ".typing" / "voxpipe").exists():
        pytest.skip("there is no .typing: run tools/link_package.py")
    # jedi asks the import hook of an editable install, which it cannot follow to sub-packages.
    hooks = [hook for hook in sys.meta_path if "editable" not in repr(hook).lower()]
    monkeypatch.setattr(sys, "meta_path", hooks)
    project = jedi.Project(ROOT / "tests", sys_path=[str(ROOT / ".typing"), *sys.path])
    options = {"path": ROOT / "tests" / "x.py", "environment": jedi.InterpreterEnvironment()}
    return lambda code: jedi.Script(code, project=project, **options)


def completions(script):
    return {completion.name for completion in script.complete()}


def test_a_shell_completes_names_of_voxpipe(in_shell):
    assert {"DataLoader2", "Volume", "list_cases", "recipes"} <= completions(in_shell("vp."))


@pytest.mark.parametrize("code", ["Volume.", "vp.Volume."])
def test_a_shell_completes_names_of_a_volume(in_shell, code):
    assert {"read", "shape", "affine", "access", "of_source"} <= completions(in_shell(code))


def test_a_shell_completes_forms_of_our_pipe(in_shell):
    names = {name for name in completions(in_shell("pipe.")) if not name.startswith("_")}
    assert names == {*FORMS, "trace_as_dataframe", "explain", "set_seed"}


def test_a_shell_completes_forms_of_torchs_pipe(in_shell):
    assert {*FORMS} <= completions(in_shell("of_torch."))


@pytest.mark.parametrize("pipe", ["pipe", "of_torch"])
def test_a_shell_shows_parameters(in_shell, pipe):
    (found,) = in_shell(f"{pipe}.lazy_patch(").get_signatures()

    assert [parameter.name for parameter in found.params][:2] == ["size", "samples_per_volume"]
    assert "Patch size (I, J, K) in voxels" in found.docstring()


def test_an_editor_completes_names_of_voxpipe(in_file):
    code = "import voxpipe as vp\nvp."
    assert {*vp.__all__} - {"__version__"} <= completions(in_file(code))


@pytest.mark.parametrize("volume", ["vp.Volume", "vp.Volume('a.nii')"])
def test_an_editor_completes_names_of_a_volume(in_file, volume):
    names = completions(in_file(f"import voxpipe as vp\n{volume}."))
    assert {"read", "shape", "affine", "access"} <= names


CHAINS = {"ours": "vp.list_cases('a')", "after shuffle": "vp.list_cases('a').shuffle()"}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_an_editor_completes_forms(in_file, chain):
    names = completions(in_file(f"import voxpipe as vp\n{chain}.open_volume().shuffle()."))
    assert {*FORMS} <= names


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize(
    ("form", "parameter", "words"),
    [
        ("lazy_patch", "size", "Patch size (I, J, K) in voxels"),
        ("shuffle", "buffer_size", "Shuffle the input DataPipe"),
    ],
)
def test_an_editor_shows_parameters(in_file, chain, form, parameter, words):
    (found,) = in_file(f"import voxpipe as vp\n{chain}.open_volume().{form}(").get_signatures()

    assert parameter in [one.name for one in found.params]
    assert words in found.docstring()
