"""Graphs as text, as code, and as drawings for Mermaid and Graphviz."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..core.call_site import CREDENTIALS
from ..core.redact import public_value
from .node import (
    Pipe,
    chained_name,
    describe,
    is_chained,
    origin_of,
    parents_of,
    pipes_in,
    settings_of_torch,
    traits_of,
)
from .rewrite import Change
from .walk import walk

_GAP = 3
_LONGEST_CODE = 400  # characters of one argument; longer ones are not editable in a chain


def explain_graph(sink: Pipe) -> str:
    """Return one line per pipe, parents first; an arrow names parents other than the line above."""
    lines = []
    for number, (pipe, parents) in enumerate(shown_pipes(sink, children=True)):
        plain = parents == ([number - 1] if number else [])
        arrow = "" if plain or not parents else f"   ← {', '.join(map(str, parents))}"
        lines.append(f"{number} {describe(pipe)}{arrow}")
    return "\n".join(lines)


def chain_code(sink: Pipe) -> str:
    """Return Python code of the chain: a line per pipe, and a variable for pipes with two readers.

    Data, models and lambdas cannot be written: ``...`` replaces them, with the pipe's description.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> print(chain_code(IterableWrapper([object()]).map(str).batch(2)))
    from torch.utils.data.datapipes.iter import IterableWrapper
    <BLANKLINE>
    pipe = (
        IterableWrapper([...])  # IterableWrapper(list of 1)
        .map(str)
        .batch(2)
    )
    """
    nodes = list(shown_pipes(sink, children=True))
    readers = Counter(number for _, parents in nodes for number in parents)
    code = _Code({}, set())
    chains: list[list[str]] = []  # the lines of each pipe, after the last variable
    statements: list[str] = []

    def name_of(number: int) -> str:
        pipe, chain = nodes[number][0], chains[number]
        if not chain[0].isidentifier() or len(chain) > 1:
            call, has_call, _ = chain[-1].partition("(")
            name = call.rpartition(".")[2].lower() if has_call else "branch"
            name = f"{name}_{number}"
            statements.append(_assignment(name, chain))
            chains[number] = [name]
        return code.names.setdefault(id(pipe), chains[number][0])

    for pipe, parents in nodes:
        if is_branch(pipe):
            branch = vars(pipe).get("instance_id", vars(pipe).get("number"))
            chains.append([f"{name_of(parents[0])}[{branch}]"])
            continue
        # A class is called with its parents; a form is chained on the first, called with the rest.
        is_form = bool(parents) and (is_chained(pipe) or _is_inner(pipe))
        first = parents[0] if is_form else None
        others = [name_of(number) for number in parents if number != first]
        before = [] if first is None else [name_of(first)] if readers[first] > 1 else chains[first]
        inner = [code.call(one, [], is_form=True) for one in getattr(pipe, "inner_pipes", ())]
        chains.append([*before, *inner, code.call(pipe, others, is_form=is_form)])
    statements.append(_assignment("pipe", chains[-1]))
    return "\n".join([*code.header(), *statements])


def _assignment(name: str, lines: Sequence[str]) -> str:
    if len(lines) == 1:
        return f"{name} = {lines[0]}"
    return "\n".join([f"{name} = (", *(f"    {line}" for line in lines), ")"])


def _is_inner(pipe: Pipe) -> bool:
    """Whether its class is private: a part of the result of a chained form."""
    return type(pipe).__name__.startswith("_")


@dataclasses.dataclass(frozen=True)
class _Code:
    """A writer of values and calls as code, with their imports."""

    names: dict[int, str]  # variables of the pipes that are arguments, by ``id``
    imports: set[tuple[str, str]]  # modules, and the names from them

    def header(self) -> Iterator[str]:
        """Yield the import lines of the code written so far."""
        for module, pairs in itertools.groupby(sorted(self.imports), lambda pair: pair[0]):
            names = ", ".join(name for _, name in pairs)
            yield f"from {module} import {names}" if module else names
        yield from [""] if self.imports else []

    def call(self, pipe: Pipe, others: Sequence[str], *, is_form: bool) -> str:
        """Return the call that makes a pipe, with its description if arguments are missing."""
        has_call = is_chained(pipe) or not _is_inner(pipe)
        name = chained_name(pipe) if has_call else describe(pipe).partition("(")[0]
        if not is_form:
            alias = getattr(type(pipe), "form_name", "")
            name = self.public_name(type(pipe), alias, name) or name
        # A class with several pipes does not record their argument names.
        has_call = has_call and (is_form or len(others) < 2)
        text = ", ".join(self._arguments_of(pipe, others) if has_call else ["..."])
        words = "  # " + " ".join(describe(pipe).split()) if "..." in text else ""
        return f"{'.' if is_form else ''}{name}({text}){words}"

    def _arguments_of(self, pipe: Pipe, others: Sequence[str]) -> Iterator[str]:
        pairs = arguments_of(pipe)
        names = {self.names.get(id(parent)) for _, value in pairs for parent in pipes_in(value)}
        yield from (name for name in others if name not in names)
        yield from (f"{key}={self.write(v)}" if key else self.write(v) for key, v in pairs)

    def write(self, value: Any) -> str:
        """Return a value as code; ``...`` if that is impossible or too long."""
        text = self.names.get(id(value)) or self._write(value)
        return text if len(text) <= _LONGEST_CODE else "..."

    def _write(self, value: Any) -> str:
        kind = type(value)
        if kind in (list, tuple, set, frozenset):
            parts = [*map(self.write, value)]
            body = ", ".join(parts if kind in (list, tuple) else sorted(parts))
            if kind in (list, tuple):
                comma = "," if kind is tuple and len(value) == 1 else ""
                return f"[{body}]" if kind is list else f"({body}{comma})"
            return f"{kind.__name__}([{body}])"
        if kind is dict:  # subclasses may hide their contents
            return f"{{{', '.join(f'{self.write(k)}: {self.write(v)}' for k, v in value.items())}}}"
        if kind is float and repr(value).strip("-") in ("inf", "nan"):
            return f"float({str(value)!r})"
        if value is None or kind in (bool, int, float, complex, range, slice):
            return repr(value)
        if isinstance(value, (str, os.PathLike)):  # np.str_ is one, too
            return repr(public_value(str(os.fspath(value))))
        if isinstance(value, bytes):
            return "..." if b"://" in value else repr(value)
        if isinstance(value, np.generic):
            self.imports.add(("", "import numpy as np"))
            return repr(value)
        if isinstance(value, enum.Enum):
            name = self.public_name(kind)
            return f"{name}.{value.name}" if name else "..."
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            name = self.public_name(kind)
            return f"{name}({', '.join(self._fields_of(value))})" if name else "..."
        return (self.public_name(value) if callable(value) else "") or "..."

    def _fields_of(self, value: Any) -> Iterator[str]:
        by_name = False
        for field in dataclasses.fields(value):
            own, default = getattr(value, field.name), field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            by_name = bool(by_name or default is not dataclasses.MISSING or field.kw_only)
            text = self.write(own) if field.repr else "..."
            # Compare as text: ``==`` of arrays is an array.
            is_default = own is default or (by_name and text == self.write(default))
            if field.init and not is_default:
                yield f"{field.name}={text}" if by_name else text

    def public_name(self, thing: Any, *aliases: str) -> str:
        """Return the importable name of a class or function, noting its import; "" without one."""
        home, own = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
        name: str
        parts = home.split(".")
        for end in range(1, len(parts) + 1):
            module = ".".join(parts[:end])
            for name in filter(None, (*aliases, own)):
                if getattr(sys.modules.get(module), name, None) is not thing:
                    continue
                if module == "voxpipe":
                    self.imports.add(("", "import voxpipe as vp"))
                    return f"vp.{name}"
                if module not in ("builtins", "__main__"):
                    self.imports.add((module, name))
                return name
        return ""


def arguments_of(pipe: Pipe) -> list[tuple[str, Any]]:
    """Return names and values of the user's arguments, without parents.

    The name is empty for arguments by place. Unknown values and credentials are ``...``.
    """
    public = getattr(type(pipe), "public_arguments", None)
    own = None if public is None else public(pipe)
    if own is None:
        is_torch = type(pipe).__module__.startswith("torch.")
        return list(settings_of_torch(pipe)) if is_torch else [("", ...)]
    call = getattr(origin_of(pipe), "call", "")
    secrets = [k for k in CREDENTIALS if vars(pipe).get(k) or f"{k}=" in call]
    return [*(("", value) for value in own[0]), *own[1].items(), *((k, ...) for k in secrets)]


def shown_pipes(sink: Pipe, *, children: bool) -> Iterator[tuple[Pipe, list[int]]]:
    """Yield each visible pipe, and the numbers of its parents.

    Watching pipes are hidden; without ``children`` also the pipes that torch inserts between a
    fork or demux and the readers of its branches.
    """
    number: dict[int, int] = {}
    count = 0
    for pipe in walk(sink):
        parents = [number[id(p)] for p in parents_of(pipe)]
        if traits_of(pipe).watches or (not children and is_branch(pipe)):
            number[id(pipe)] = parents[0]
            continue
        number[id(pipe)], count = count, count + 1
        yield pipe, parents


def explain_rewritten(before: Pipe, after: Pipe, changes: Sequence[Change]) -> str:
    """Return the written and the running graph in two columns, then the changes."""
    old = ["as written", *explain_graph(before).splitlines()]
    new = ["as it runs", *explain_graph(after).splitlines()]
    width = max(map(len, old)) + _GAP
    table = [f"{a:<{width}}{b}".rstrip() for a, b in zip_longest(old, new, fillvalue="")]
    # A rule that only measures keeps the description of a pipe.
    counts = Counter(change.rule for change in changes if change.at == change.became)
    lines = list(dict.fromkeys(str(change) for change in changes if change.at != change.became))
    lines += [f"watched  {count} pipes   ({rule})" for rule, count in counts.items()]
    return "\n".join(table + (["", *lines] if lines else []))


_LONGEST_LABEL = 80  # characters; wider boxes make a drawing unreadable


def nodes_and_edges(
    sink: Pipe, *, children: bool = False
) -> tuple[list[str], list[tuple[int, int]]]:
    """Return the label of every pipe, parents first, and pairs ``(parent, reader)`` of indices."""
    labels: list[str] = []
    edges: list[tuple[int, int]] = []
    for number, (pipe, parents) in enumerate(shown_pipes(sink, children=children)):
        # Two branches of one fork may end in one reader.
        edges += [(parent, number) for parent in dict.fromkeys(parents)]
        label = describe(pipe).lstrip("_")
        is_long = len(label) > _LONGEST_LABEL
        labels.append(f"{label[: _LONGEST_LABEL - 1]}…" if is_long else label)
    return labels, edges


def is_branch(pipe: Pipe) -> bool:
    """Whether ``pipe`` is one of the pipes that fork, demux and the like return."""
    return bool(getattr(type(pipe), "_is_child_datapipe", False))


def to_mermaid(sink: Pipe) -> str:
    """Return the graph as a Mermaid flowchart, for Markdown viewers.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> print(to_mermaid(IterableWrapper(range(4)).batch(2)))
    flowchart TD
        n0["IterableWrapper(range(0, 4))"]
        n1["batch(2)"]
        n0 --> n1
    """
    labels, edges = nodes_and_edges(sink)
    # Mermaid reads entities inside quotes: a quote in a label must not end it.
    signs = str.maketrans({"&": "#amp;", '"': "#quot;", "<": "#lt;", ">": "#gt;"})
    boxes = [f'    n{i}["{label.translate(signs)}"]' for i, label in enumerate(labels)]
    return "\n".join(["flowchart TD", *boxes, *(f"    n{a} --> n{b}" for a, b in edges)])


def to_dot(sink: Pipe) -> str:
    """Return the graph in the DOT language of Graphviz.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> print(to_dot(IterableWrapper(range(4)).batch(2)))
    digraph {
        node [shape=box]
        n0 [label="IterableWrapper(range(0, 4))"]
        n1 [label="batch(2)"]
        n0 -> n1
    }
    """
    labels, edges = nodes_and_edges(sink)
    signs = str.maketrans({"\\": "\\\\", '"': '\\"'})
    boxes = [f'    n{i} [label="{label.translate(signs)}"]' for i, label in enumerate(labels)]
    arrows = [f"    n{a} -> n{b}" for a, b in edges]
    return "\n".join(["digraph {", "    node [shape=box]", *boxes, *arrows, "}"])
