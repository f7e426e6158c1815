"""Values that nobody sends by mistake, and documents with one of them in any place."""

import copy
import json
import math

DEEP = 100_000
"""Lists in lists: a hundred times what Python follows by itself."""
MANY = 5_000


def nested(depth=DEEP, kind=list):
    """Return a list of a list of a list ..."""
    found = []
    for _ in range(depth):
        found = [found] if kind is list else {"": found}
    return found


def hostile_values():
    """Return values of every kind that JSON can hold, and some that it cannot."""
    whole = [0, 1, -1, 2**31, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**64), 10**5000]
    real = [0.5, -0.0, 5e-324, 1e308, math.inf, -math.inf, math.nan]
    text = ["", "x", "\0", "\ud800", "../../x", "9" * 5000, "A" * 10**6, "{0.__class__}", "%s%n"]
    lists = [[], [[]], [None], [0] * MANY, [[1, 1, 1]] * MANY, nested(), nested(70)]
    dicts = [{}, {"": 0}, {"version": 1}, nested(kind=dict), dict.fromkeys(map(str, range(MANY)))]
    return [None, True, False, *whole, *real, *text, *lists, *dicts, b"x", object(), {1, 2}]


VALUES = hostile_values()

_ASKED = [
    f"__{name}__"
    for name in [
        "eq",
        "ne",
        "lt",
        "gt",
        "le",
        "ge",
        "hash",
        "bool",
        "int",
        "index",
        "float",
        "len",
        "iter",
        "getitem",
        "contains",
        "repr",
        "str",
        "format",
        "neg",
        "add",
        "mul",
        "mod",
        "abs",
    ]
]


class Raised(BaseException):
    """What no program expects: it says that a method of a hostile object was called."""


def _raise(*_arguments, **_options):
    raise Raised("asked")


def liars():
    """Return objects whose methods raise, or lie, by the plain type in whose place they are."""
    lies = {
        "__eq__": lambda *_: True,
        "__ne__": lambda *_: False,
        "__lt__": lambda *_: True,
        "__gt__": lambda *_: True,
        "__le__": lambda *_: True,
        "__ge__": lambda *_: True,
        "__hash__": lambda *_: 0,
        "__len__": lambda *_: 1,
        "__index__": lambda *_: 1,
        "__int__": lambda *_: 1,
        "__contains__": lambda *_: True,
        "__iter__": lambda *_: iter(()),
        "keys": lambda *_: {"seed": 0}.keys(),
        "items": lambda *_: [("seed", 0)],
        "get": lambda *_: 1,
    }
    plain = {"object": (object, ()), "int": (int, (3,)), "str": (str, ("abc",))}
    plain |= {"list": (list, ([],)), "tuple": (tuple, ([],)), "dict": (dict, ({},))}
    plain |= {"float": (float, (3.0,)), "bytes": (bytes, (b"abc",))}
    found = []
    for name, (kind, arguments) in plain.items():
        raising = type(f"Raising_{name}", (kind,), dict.fromkeys(_ASKED, _raise))
        lying = type(f"Lying_{name}", (kind,), lies)
        found += [(kind, raising(*arguments)), (kind, lying(*arguments))]
    return found


def disguised(document, random):
    """Return a copy of a document with a hostile object in the place of one value, or of all.

    It is one that raises or lies whatever is asked, or holds what the true one does and is of a
    class that is derived from its own.
    """
    path = ("", *random.choice(list(places(document))))
    found = {"": copy.deepcopy(document)}
    parent = found
    for key in path[:-1]:
        parent = parent[key]
    value = parent[path[-1]]
    alike = [one for kind, one in liars() if type(value) is kind]
    if type(value) in (dict, list, int, str):
        methods = random.choice([dict.fromkeys(_ASKED, _raise), {}])
        alike += [type("Disguised", (type(value),), methods)(value)] * 3
    parent[path[-1]] = random.choice([*alike, *(one for _, one in liars())])
    return found[""]


def places(document, path=()):
    """Yield the path of everything in a document, the document itself first."""
    yield path
    entries = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    for key, value in entries:
        yield from places(value, (*path, key))


def mutated(document, random):
    """Return a copy of a document with one hostile change, and the path of that.

    Parameters
    ----------
    document
        Of dicts, lists and plain values.
    random
        All that is drawn comes from it.
    """
    found = {"": copy.deepcopy(document)}
    path = ("", *random.choice(list(places(document))))
    parent = found
    for key in path[:-1]:
        parent = parent[key]
    key, value = path[-1], parent[path[-1]]
    how = random.randrange(6)
    if how == 0 and len(path) > 1:
        del parent[key]
    elif how == 1 and isinstance(value, dict):
        value[random.choice(["", "x", 5, None, "__class__"])] = random.choice(VALUES)
    elif how == 1 and isinstance(value, list):
        value.insert(random.randrange(len(value) + 1), random.choice(VALUES))
    elif how == 2 and isinstance(value, (int, float)):
        parent[key] = random.choice([-value, value + 1, value * 2**40, value / 3, str(value)])
    elif how == 3 and isinstance(value, str):
        at = random.randrange(len(value) + 1)
        parent[key] = value[:at] + random.choice(["", "/", "0", "\0", "é" * 9]) + value[at + 1 :]
    elif how == 4:
        parent[key] = [value] if random.random() < 0.5 else {"": value}
    else:
        parent[key] = random.choice(VALUES)
    return found[""], path[1:]


def as_text(document):
    """Return JSON, of lists in lists as well, which ``json.dumps`` does not write.

    What JSON cannot hold becomes its name.
    """
    if not _TEXTS:
        long = [value for value in VALUES if isinstance(value, (list, dict)) and value]
        _TEXTS.update({id(value): "".join(_pieces(value)) for value in long})
    return "".join(_pieces(document))


def _pieces(document):
    todo = [document]
    while todo:
        one = todo.pop()
        if isinstance(one, _Text):
            yield one
        elif id(one) in _TEXTS:
            yield _TEXTS[id(one)]
        elif isinstance(one, dict):
            yield "{"
            todo.append(_Text("}"))
            for n, (key, value) in enumerate(reversed(one.items())):
                todo += [value, _Text(f"{json.dumps(str(key))}:")]
                if n + 1 < len(one):
                    todo.append(_Text(","))
        elif isinstance(one, (list, tuple)):
            yield "["
            todo.append(_Text("]"))
            for n, value in enumerate(reversed(one)):
                todo.append(value)
                if n + 1 < len(one):
                    todo.append(_Text(","))
        elif isinstance(one, int) and one.bit_length() > 10_000:
            yield "9" * 5000
        else:
            yield json.dumps(one, default=lambda thing: type(thing).__name__)


class _Text(str):
    """What is written as it is."""

    __slots__ = ()


# Of values that take long to write, and come again and again; as_text() adds them at first.
_TEXTS = {}
