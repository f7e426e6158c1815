"""Contents of JSON files."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from ....core.errors import placed
from ....graph import Pipe, Traits
from ...datapipe import PerItem
from ...forms import offered
from .streams import length_or_type_error, named_stream


@offered("parse_json_files")
class JsonParser(PerItem):
    """Yield ``(path, contents)`` for each ``(path, stream)`` of JSON; files are closed.

    Parameters
    ----------
    parent
        Yields ``(path, stream)``, of bytes or of text.
    **kwargs
        Of ``json.loads``.

    Raises
    ------
    json.JSONDecodeError
        A file is no JSON; a note says which.
    SampleError
        The parent yields something else than pairs of a name and an open file.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.json", io.BytesIO(b'{"spacing": [1, 1, 2.5]}'))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_json_files())
    [('a.json', {'spacing': [1, 1, 2.5]})]
    """

    traits: ClassVar[Any] = Traits(per_item=True, plain=True)

    def __init__(self, parent: Pipe, **kwargs: Any) -> None:
        super().__init__(parent)
        self.kwargs = kwargs

    def apply(self, item: Any) -> tuple[str, Any]:
        """Return the contents of one file."""
        name, stream = named_stream(self, item)
        try:
            data = stream.read()
        finally:
            stream.close()
        try:
            return name, json.loads(data, **self.kwargs)
        except (ValueError, RecursionError) as error:
            raise placed(error, self.origin, name)  # noqa: B904  the very same error

    def __len__(self) -> int:
        """Return the length of the parent."""
        return length_or_type_error(self, self.parent)
