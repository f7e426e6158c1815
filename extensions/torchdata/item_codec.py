"""Items as bytes without pickle: a checksum, a line of JSON, and the bytes of arrays.

Decoding runs no code from an entry, so other users may be able to write to the store.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...core import Sample
from ...core.errors import SampleError, StreamError
from ...core.sample import parse_json
from ...spatial import LazyPatch
from ...spatial.lazy.lazy_patch import patches_of
from ...spatial.lazy.virtual_volume import digest_of_made
from ...storage.disk_cache import with_check_sum

_REVISION = 1  # of the format
_PLAIN = (type(None), bool, int, float, str)
_KINDS = "biufcmMSU"  # of NumPy's types without objects and fields
_DTYPES = {str(v): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
_OF_KEY = Sample({})  # in the place of the source, to encode a key


def _encode(value: Any, buffers: list[Any], source: Sample, place: str = "the item") -> Any:
    """Return ``value``, made from ``source``, as JSON, and append the bytes of its arrays."""
    kind, is_key = type(value), source is _OF_KEY
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        parts = (_encode(v, buffers, source, f"{place}[{n}]") for n, v in enumerate(value))
        return [kind.__name__, *parts]
    if kind is dict:
        keys = (_encode(key, buffers, source, place) for key in value)
        parts = (_encode(v, buffers, source, f"{place}[{k!r}]") for k, v in value.items())
        return ["dict", *([key, part] for key, part in zip(keys, parts, strict=True))]
    if kind is Sample and (is_key or _is_from(value, source)):
        data = _encode({**value}, buffers, source, place)
        # A function may use the spacing of patches, which count in a key.
        patches = _encode(value.patches, buffers, source, place) if is_key else [*value.patches]
        return ["sample", data, value.case, value.identity, patches]
    if is_key and isinstance(value, LazyPatch):
        return ["patch", digest_of_made(SimpleNamespace(patch=value, soft=0, is_tiled=0))]
    is_tensor = kind is torch.Tensor and value.layout is torch.strided and not value.is_quantized
    if kind is bytes:
        tag, dtype, content = "bytes", "", value
    elif is_tensor and value.device.type == "cpu" and not value.requires_grad:
        flat = value.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        tag, dtype, content = "tensor", str(value.dtype), flat.numpy().tobytes()
    elif (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _KINDS:
        tag = "array" if kind is np.ndarray else "number"
        dtype, content = value.dtype.str, value.tobytes()
    else:
        do = "Turn it into arrays, texts and numbers, or put cache_items() before the pipe of it."
        do = "Give key_fn=, which makes plain values of the item." if is_key else do
        why = "of another sample" if kind is Sample else "which has no safe form"
        raise SampleError(f"{place} is a {kind.__name__}, {why}", do=do)
    buffers.append(content)
    return [tag, len(content), dtype, getattr(value, "shape", ())]


def _is_from(sample: Sample, source: Sample) -> bool:
    """Whether :func:`decode` can restore seed, epoch and patches of a sample."""
    patches = _patches_from(source)
    is_same = (sample.seed, sample.epoch) == (source.seed, source.epoch)
    return is_same and all(patches.get(key) is patch for key, patch in sample.patches.items())


def _patches_from(source: Sample) -> dict[str, Any]:
    return {**source.patches, **patches_of(source)}


def key_of(item: Any, versions: Sequence[Any]) -> str:
    """Return the key of the result for an item; lazy patches count by content and plan."""
    buffers: list[Any] = []
    text = json.dumps([_REVISION, *versions, _encode(item, buffers, _OF_KEY)])
    return hashlib.blake2b(b"".join([text.encode(), *buffers]), digest_size=16).hexdigest()


def encode(item: Any, key: str, source: Any) -> bytes:
    """Return the entry of ``item``, which was made from the item ``source``."""
    buffers: list[Any] = []
    node = _encode(item, buffers, source if isinstance(source, Sample) else Sample({}))
    head = json.dumps({"key": key, "time": time.time(), "item": node})
    return with_check_sum(b"".join([head.encode(), b"\n", *buffers]))


def decode(entry: bytes, key: str, source: Any, ttl: float) -> list[Any]:
    """Return the item of an entry in a list; an empty list for one older than ``ttl`` seconds."""
    try:
        content = io.BytesIO(entry.partition(b"\n")[2])
        if entry != with_check_sum(content.getvalue()):
            raise ValueError("its checksum differs")
        head = parse_json(content.readline())
        if head["key"] != key:
            raise ValueError("it belongs to another item")
        if time.time() - head["time"] > ttl:
            return []
        source = source if isinstance(source, Sample) else Sample({})
        return [_decode(head["item"], content, source)]
    except Exception as error:  # another user may have written anything
        raise StreamError(f"entry {key} is damaged: {error}.", do="It is made again.") from None


def _decode(node: Any, rest: io.BytesIO, source: Sample) -> Any:
    if not isinstance(node, list):
        return node
    tag, *parts = node
    if tag in ("list", "tuple"):
        return (list if tag == "list" else tuple)(_decode(part, rest, source) for part in parts)
    if tag == "dict":
        return {_decode(k, rest, source): _decode(v, rest, source) for k, v in parts}
    if tag == "sample":
        data, case, identity, keys = _decode(parts[0], rest, source), *parts[1:]
        patches = {key: _patches_from(source)[key] for key in keys}
        return source.replace(data=data, case=case, identity=tuple(identity), patches=patches)
    size, dtype, shape = parts
    memory = bytearray(rest.read(size))  # aligned, and the array's own
    if tag == "bytes":
        return bytes(memory)
    if tag == "tensor":
        flat = torch.frombuffer(memory, dtype=torch.uint8) if memory else torch.empty(0)
        return flat.view(_DTYPES[dtype]).reshape(shape)
    if np.dtype(dtype).kind not in _KINDS:
        raise ValueError(f"it has an array of {dtype}")
    array = np.ndarray(shape, dtype, memory)
    return array[()] if tag == "number" else array
