"""Texts of the parameters of chained forms, out of the fields of their ops.

A form of an op has the fields of the op as parameters, and each field has a text below it. The
reference shows these texts; the form's own docstring comes first.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from collections.abc import Mapping
from typing import Any

# Parameters that pipes of ops have besides the fields of their op.
OF_PIPES: Mapping[str, str] = {
    "ops": "Ops, or sequences of ops; each sequence is one choice.",
    "p": "Probability that the pipe acts.",
    "name": "Name of the pipe in records and reports; by default that of the form.",
    "keys": "Volumes that change, one key or several. By default all intensity volumes; with an "
    "op on labels, all label volumes.",
    "lazy": "Whether the pipe shares one interpolation with its lazy neighbours. None: a "
    "surrounding ``with vp.lazy(...)`` or the adapter of the loader decides.",
    "on_conflict": "Where an earlier pipe has another policy: ``'error'``, or ``'flush'``, which "
    "interpolates twice. None: as a surrounding ``with vp.lazy(...)``, else ``'error'``.",
}
# Fields of a policy; a mapping gives one for each key.
OF_POLICIES: Mapping[str, str] = {
    "mode": "Interpolation between voxels, or a mapping by key. This and the next four are fields "
    "of a :py:class:`~voxpipe.Policy`.",
    "padding": "Rule for values outside the volume.",
    "fill": "Value outside the volume with ``padding='constant'``.",
    "dtype": "Type of the result. None: the stored type where nothing is interpolated, else "
    "float32.",
    "antialias": "Whether to smooth before a downsampling; ``'level'`` may read a coarser level.",
}
_SECTION = re.compile(r"^\w[\w ]*\n-{4,}$", re.MULTILINE)


def field_texts(kind: type) -> dict[str, str]:
    """Return the text below each field of a class and of its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("voxpipe."):
            continue
        [body] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        nodes = body.body if isinstance(body, ast.ClassDef) else []
        for node, after in itertools.pairwise(nodes):
            value = after.value if isinstance(after, ast.Expr) else None
            is_field = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            if is_field and isinstance(value, ast.Constant):
                found[node.target.id] = inspect.cleandoc(str(value.value))  # type: ignore[attr-defined]
    return found


def section_texts(doc: str) -> dict[str, str]:
    """Return the text of each parameter of a docstring of NumPy's style."""
    _, _, rest = doc.partition("Parameters\n----------\n")
    end = _SECTION.search(rest)
    found: dict[str, str] = {}
    body = f"{rest[: end and end.start()]}\n"
    for match in re.finditer(r"^(\w[\w, ]*).*\n((?:    .*\n|\n)+)", body, re.MULTILINE):
        text = textwrap.dedent(match[2]).strip()
        found |= dict.fromkeys(re.split(r", *", match[1].strip()), text)
    return found


def parameter_texts(kind: Any) -> dict[str, str]:
    """Return the texts of the parameters of a form, as far as there are any."""
    op = getattr(kind, "op_class", None)
    if op is None:
        return {}
    own = field_texts(op) if inspect.isclass(op) else section_texts(inspect.getdoc(op) or "")
    return {**OF_PIPES, **OF_POLICIES, **own}


def with_parameters(kind: Any) -> str:
    """Return the docstring of a form, with a section of all parameters that have a text."""
    from voxpipe.datapipes.forms import signature_of

    doc = inspect.getdoc(kind) or ""
    known, there = parameter_texts(kind), section_texts(doc)
    lines: list[str] = []
    for name in signature_of(kind).parameters:
        text = there.get(name) or known.get(name)
        if known and text:
            lines += [name, textwrap.indent(text, "    ")]
    if not lines:
        return doc
    section = "\n".join(["Parameters", "----------", *lines])
    starts = [match.start() for match in _SECTION.finditer(doc)]
    head = doc[: starts[0]] if starts else doc
    rest = doc[starts[0] :] if starts else ""
    if rest.startswith("Parameters\n"):
        rest = doc[starts[1] :] if len(starts) > 1 else ""
    return "\n\n".join(part.strip() for part in (head, section, rest) if part.strip())
