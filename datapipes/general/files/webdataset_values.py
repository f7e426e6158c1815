"""Values of the members of a WebDataset, by their suffixes. Nothing that is read is executed."""

from __future__ import annotations

import io
import re
from typing import Any

from ....core.errors import StreamError
from ....core.sample import parse_json

_PATH = re.compile(r"^(.*?)(\.[^/]*)$")
_TEXT = frozenset({"txt", "text", "transcript"})
_NUMBER = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_JSON = frozenset({"json", "jsn"})
# Formats that are pickles, or hold some.
_CODE = frozenset({"pyd", "pickle", "pkl", "pck", "dill", "joblib", "pth", "pt", "ckpt"})


def key_and_suffix(path: str) -> tuple[str, str]:
    """Return what the members of a sample share, and what tells this one, from the first dot on.

    Examples
    --------
    >>> key_and_suffix("a.tar/p0.v1/007.seg.npy"), key_and_suffix("a.tar/README")
    (('a.tar/p0.v1/007', '.seg.npy'), ('a.tar/README', ''))
    """
    plain = path.replace("\\", "/")
    folder, slash, name = plain.rpartition("/")
    found = _PATH.match(name)
    return (f"{folder}{slash}{found[1]}", found[2]) if found else (plain, "")


def value_of(path: str, data: Any) -> Any:
    """Return what a member holds: text, a number, JSON, an array; else its bytes.

    Parameters
    ----------
    path
        Its last suffix says what it is.
    data
        An open stream, or bytes.

    Raises
    ------
    StreamError
        It is a pickle, which is not opened, or is not what its suffix says.

    Examples
    --------
    >>> value_of("7.cls", b"3"), value_of("7.json", io.BytesIO(b"[1]")), value_of("7.jpg", b"...")
    (3, [1], b'...')
    """
    kind = path.rpartition(".")[2].lower()
    if kind in _CODE:
        raise StreamError(
            f"{path} is a pickle, and opening one runs whatever code it holds.",
            do="Store arrays as .npy and the rest as .json; or leave decode=False, and open it "
            "yourself if you trust everybody who could write it.",
        )
    content = data.read() if hasattr(data, "read") else data
    try:
        if kind in _TEXT:
            return _text(content)
        if kind in _NUMBER:
            return int(_text(content))
        if kind in _JSON:
            return parse_json(content)
        if kind == "npy":
            return _array(content)
    except (ValueError, EOFError, MemoryError) as error:
        raise StreamError(f"{path} is not what its suffix says: {error}.") from error
    return content


def _text(content: Any) -> str:
    return content if isinstance(content, str) else bytes(content).decode("utf-8")


def _array(content: bytes) -> Any:
    import numpy as np

    return np.load(io.BytesIO(content), allow_pickle=False)
