"""Checked footers of Parquet files: row groups, columns and pages, before pyarrow reads them.

The reader of pyarrow may abort the process, or allocate memory, for the claims of a damaged footer.
So this module reads the footer and each page header, and writes another footer from the numbers
that it checked. pyarrow reads the footer of this module only.

Footers and page headers are structs in the compact protocol of Thrift. A struct here is a mapping
from field numbers to values; ``parquet.thrift`` of the Parquet format names the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MOST_FOOTER_BYTES = 16 * 1024**2
"""Row groups of thirty million rows."""
_SMALL_FOOTER_BYTES = 64 * 1024
_PAGE_HEADER_BYTES = 4096
_DEEPEST = 16
_MAGIC = b"PAR1"

# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class _Fields(NamedTuple):
    """Fields of a struct that are read; others are skipped, or refused if ``is_exact``."""

    always: dict[int, Any]  # a type, _Fields, or _Items by field number
    optional: dict[int, Any]
    is_exact: bool = False


class _Items(NamedTuple):
    """A list of structs."""

    fields: _Fields
    most: int


_ABOUT = _Fields({4: _I32, 1: _I32, 5: _I64, 7: _I64, 9: _I64}, {11: _I64})
_CHUNK = _Fields({3: _ABOUT}, {})
_GROUP = _Fields({1: _Items(_CHUNK, 1000), 3: _I64}, {})
_ELEMENT = _Fields({4: _BINARY}, dict.fromkeys((1, 3, 5, 6), _I32))
_PAIR = _Fields({1: _BINARY}, {2: _BINARY})
_FOOTER = _Fields(
    {2: _Items(_ELEMENT, 1000), 3: _I64, 4: _Items(_GROUP, MOST_FOOTER_BYTES)},
    {5: _Items(_PAIR, 1000)},
)
_NONE = _Fields({}, {})
# pyarrow parses page headers too, so they have no field that this module does not read.
_STATISTICS = _Fields(
    {}, dict.fromkeys((1, 2, 5, 6), _BINARY) | {3: _I64, 4: _I64, 7: _FALSE, 8: _FALSE}, True
)
_OF_DATA = _Fields(dict.fromkeys((1, 2, 3, 4), _I32), {5: _STATISTICS}, True)
_OF_DICTIONARY = _Fields(dict.fromkeys((1, 2), _I32), {3: _FALSE}, True)
_PAGE = _Fields(dict.fromkeys((1, 2, 3), _I32), {4: _I32, 5: _OF_DATA, 7: _OF_DICTIONARY}, True)
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE_DICTIONARY = 0, 2, 8

_INT64, _FLOAT64, _BYTES = 2, 5, 6
# Physical and converted type of a column; UTF-8 is converted type 0.
_PHYSICAL = {
    "string": (_BYTES, 0),
    "binary": (_BYTES, None),
    "float64": (_FLOAT64, None),
    "int64": (_INT64, None),
}


class _Reader:
    """Values of the compact protocol; ValueError beyond the data or a bound."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        try:
            value = self.data[self.at]
        except IndexError:
            raise ValueError("a struct is cut off") from None
        self.at += 1
        return value

    def natural(self) -> int:
        """Return an unsigned number of up to 64 bits."""
        if (value := self.byte()) < 128:
            return value
        value &= 127
        for shift in range(7, 64, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number is too long")

    def integer(self, bits: int) -> int:
        value = self.natural()
        value = (value >> 1) ^ -(value & 1)
        if not -(1 << bits - 1) <= value < 1 << bits - 1:
            raise ValueError("a number is too large")
        return value

    def skip(self, size: int) -> bytes:
        """Return the next bytes."""
        start = self.at
        if size > len(self.data) - start:
            raise ValueError("a text is cut off")
        self.at += size
        return self.data[start : self.at]

    def struct(self, fields: _Fields, depth: int = 0) -> dict[int, Any]:
        always, optional, is_exact = fields
        values: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            kind = head & 15
            number = number + (head >> 4) if head > 15 else self.integer(16)
            of = always.get(number) or optional.get(number)
            if (of is None and is_exact) or number in values:
                raise ValueError(f"a struct has an unexpected field {number}")
            value = self.value(kind, of, depth + 1)
            if of is not None:
                values[number] = value
        if not always.keys() <= values.keys():
            raise ValueError("a struct lacks fields")
        return values

    def value(self, kind: int, of: Any, depth: int) -> Any:
        """Return a value of one of the types, which must fit ``of`` unless that is None."""
        if depth > _DEEPEST:
            raise ValueError("structs are nested too deeply")
        result: Any
        if kind in (_TRUE, _FALSE):
            result, own = kind == _TRUE, _FALSE
        elif kind in (_I16, _I32, _I64):
            result, own = self.integer(8 << kind - 3), kind
        elif kind == _BINARY:
            result, own = self.skip(self.natural()), kind
        elif kind in (_BYTE, _DOUBLE):
            result, own = self.skip(1 if kind == _BYTE else 8), kind
        elif kind == _STRUCT:
            if not isinstance(of, _Fields | None):
                raise ValueError("a field has another type")
            return self.struct(of or _NONE, depth)
        elif kind in (_LIST, _SET):
            return self.items(kind, of, depth)
        else:
            raise ValueError(f"a field has type {kind}")
        if of not in (None, own):
            raise ValueError("a field has another type")
        return result

    def items(self, kind: int, of: Any, depth: int) -> list[Any]:
        """Return a list of structs, or skip a list of any values."""
        head = self.byte()
        count, of_item = head >> 4, head & 15
        count = self.natural() if count == 15 else count
        is_read = of is not None
        if is_read and (not isinstance(of, _Items) or (kind, of_item) != (_LIST, _STRUCT)):
            raise ValueError("a field has another type")
        if count > min(len(self.data) - self.at, of.most if is_read else count):
            raise ValueError(f"a list claims {count} items")
        of_item = _BYTE if of_item in (_TRUE, _FALSE) else of_item
        items = []
        for _ in range(count):
            item = self.value(of_item, of.fields if is_read else None, depth + 1)
            if is_read:
                items.append(item)
        return items


class Footer(NamedTuple):
    """Claims of a footer; those of ``groups`` are not checked yet."""

    columns: list[tuple[str, tuple[Any, ...]]]  # name and types of each
    row_count: int
    groups: list[dict[int, Any]]
    documents: dict[bytes, bytes]
    start: int  # its offset in the file


ReadAt = Callable[[int, int], bytes]
"""Function that reads a number of bytes at an offset."""


def read_footer(read_at: ReadAt, size: int) -> Footer:
    """Return the footer of a Parquet file of ``size`` bytes.

    Raises
    ------
    ValueError
        If it is no Parquet file, or if its footer is damaged or too long.
    """
    end = read_at(8, size - 8) if size >= 12 else b""
    length = int.from_bytes(end[:4], "little")
    # Python takes 50 bytes for a byte of the smallest row groups.
    most = min(size - 12, MOST_FOOTER_BYTES, max(size // 8, _SMALL_FOOTER_BYTES))
    if end[4:] != _MAGIC or length > most:
        raise ValueError("it has no footer of a Parquet file")
    start = size - 8 - length
    reader = _Reader(read_at(length, start))
    values = reader.struct(_FOOTER)
    if reader.at != length:
        raise ValueError("its footer has another length")
    columns = [
        (element[4].decode(), tuple(map(element.get, (1, 6, 3, 5)))) for element in values[2][1:]
    ]
    documents = {pair[1]: pair.get(2, b"") for pair in values.get(5, [])}
    return Footer(columns, values[3], values[4], documents, start)


def checked_footer(
    read_at: ReadAt, footer: Footer, types: dict[str, str], texts: Iterable[str]
) -> bytes:
    """Return a Parquet file of a footer only, with the checked columns and pages of a file.

    Pages are uncompressed and have checksums, and no two share bytes. Columns of ``texts`` may
    have a dictionary; no other encoding lets a few bytes fill the memory.

    Raises
    ------
    ValueError
        If columns, row groups or pages differ from this.
    """
    kinds = [(name, (*_PHYSICAL[of], 0, None)) for name, of in types.items()]
    if footer.columns != kinds:
        raise ValueError(f"its columns are {', '.join(name for name, _ in footer.columns)}")
    groups, at, with_dictionary = [], len(_MAGIC), frozenset(texts)
    for group in footer.groups:
        rows, chunks = group[3], []
        if len(group[1]) != len(kinds):
            raise ValueError(f"a row group has {len(group[1])} columns")
        for (name, (kind, *_)), chunk in zip(kinds, group[1], strict=True):
            about = chunk[3]
            if about[4]:
                raise ValueError(f"the pages of column {name} are compressed")
            start, length = min(about[9], about.get(11) or about[9]), about[7]
            if not at <= start <= start + length <= footer.start:
                raise ValueError(f"its column {name} exceeds the file or another column")
            if (about[1], about[5]) != (kind, rows):
                raise ValueError(f"its column {name} has {about[5]} values of type {about[1]}")
            at = start + length
            _check_pages(read_at, start, at, rows, name, name in with_dictionary)
            chunks.append(_chunk(kind, name, rows, start, length))
        size = sum(chunk[3][7] for chunk in group[1])
        items = [(1, _LIST, _list(_STRUCT, chunks)), (2, _I64, _int(size)), (3, _I64, _int(rows))]
        groups.append(_struct(*items))
    root = _struct((4, _BINARY, _text("schema")), (5, _I32, _int(len(kinds))))
    elements = [root, *(_element(name, *of[:2]) for name, of in kinds)]
    data = _struct(
        (1, _I32, _int(1)),
        (2, _LIST, _list(_STRUCT, elements)),
        (3, _I64, _int(footer.row_count)),
        (4, _LIST, _list(_STRUCT, groups)),
    )
    return _MAGIC + data + len(data).to_bytes(4, "little") + _MAGIC


def _check_pages(
    read_at: ReadAt, at: int, end: int, rows: int, name: str, may_have_dictionary: bool
) -> None:
    """Refuse pages that do not fill a column chunk, or whose values exceed their bytes."""
    encodings, is_first = {_PLAIN}, True
    while at < end:
        reader = _Reader(read_at(min(_PAGE_HEADER_BYTES, end - at), at))
        page = reader.struct(_PAGE)
        kind, size = page[1], page[3]
        at += reader.at + size
        if size < 0 or at > end or page[2] != size:
            raise ValueError(f"a page of column {name} exceeds it")
        if 4 not in page:
            raise ValueError(f"a page of column {name} has no checksum")
        if kind == _DICTIONARY_PAGE and 7 in page and is_first and may_have_dictionary:
            count, encoding = page[7][1], page[7][2]
            if not 0 <= count <= size // 4 or encoding not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ValueError(f"the dictionary of column {name} claims {count} texts")
            encodings |= {_PLAIN_DICTIONARY, _RLE_DICTIONARY}
        elif kind == _DATA_PAGE and 5 in page:
            count, encoding = page[5][1], page[5][2]
            rows -= count
            if count < 1 or rows < 0 or encoding not in encodings:
                raise ValueError(
                    f"a page of column {name} has {count} values of encoding {encoding}"
                )
        else:
            raise ValueError(f"a page of column {name} has type {kind}")
        is_first = False
    if rows:
        raise ValueError(f"the pages of column {name} lack {rows} values")


def _size(value: int) -> bytes:
    """Return an unsigned number in the compact protocol."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def _int(value: int) -> bytes:
    return _size(2 * value)  # of numbers that are not negative


def _text(text: str) -> bytes:
    data = text.encode()
    return _size(len(data)) + data


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    return bytes([0xF0 | kind]) + _size(len(items)) + b"".join(items)


def _struct(*fields: tuple[int, int, bytes]) -> bytes:
    parts, last = [], 0
    for number, kind, data in fields:
        parts += [bytes([number - last << 4 | kind]), data]
        last = number
    return b"".join([*parts, b"\0"])


def _element(name: str, kind: int, logical: int | None) -> bytes:
    """Return the schema of a column without nulls."""
    fields = [(1, _I32, _int(kind)), (3, _I32, _int(0)), (4, _BINARY, _text(name))]
    return _struct(*fields, *([] if logical is None else [(6, _I32, _int(logical))]))


def _chunk(kind: int, name: str, rows: int, start: int, length: int) -> bytes:
    """Return the struct of an uncompressed column chunk."""
    about = _struct(
        (1, _I32, _int(kind)),
        (2, _LIST, _list(_I32, [_int(_PLAIN)])),
        (3, _LIST, _list(_BINARY, [_text(name)])),
        (4, _I32, _int(0)),
        (5, _I64, _int(rows)),
        (6, _I64, _int(length)),
        (7, _I64, _int(length)),
        (9, _I64, _int(start)),
    )
    return _struct((2, _I64, _int(0)), (3, _STRUCT, about))
