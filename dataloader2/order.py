"""What adapters made of the order in which items come: read off the graphs, not asked of them.

A state belongs to the chain as it was written. Adapters may be others when it is loaded, as most of
them change neither which items come nor when. One that does (``Shuffle(False)``, a function that
filters or gathers) makes the same place another one; so a state tells how the graph that ran
differs from the written one, as far as order is concerned.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator

from ..core.errors import StateMismatch
from ..graph import Pipe, chained_name, fingerprint_of_pipe, is_switched_off, traits_of, walk

# About 25 bytes each: half a kilobyte of the four that a state may have.
_MOST = 20
_OFF = "-off"
_WHOLE = "="
_DO = (
    "Give the loader the adapters that the state was saved with; set others by loader.adapters "
    "when that epoch has ended."
)


def changes_of_order(written: Pipe, run: Pipe) -> str:
    """Return in what pipes that decide on the order two graphs differ; empty if in none.

    Each is a word: ``-`` or ``+``, the chained name, a short hash of the settings, and ``-off`` for
    a shuffle that does not; they say what differs, twenty of them at most. The last word, ``=`` and
    a hash of all that decide now, says that two orders are the same: a shuffle before a batch is
    not one after it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(4)).map(abs)
    >>> changes_of_order(pipe, pipe.map(str))
    ''
    >>> [word.split(":")[0] for word in changes_of_order(pipe, pipe.batch(2)).split()][:-1]
    ['+batch']
    """
    before, after = list(_deciding(written)), list(_deciding(run))
    if before == after:
        return ""
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    words = [f"-{word}" for word in gone.elements()] + [f"+{word}" for word in come.elements()]
    whole = hashlib.blake2b("\0".join(after).encode(), digest_size=8).hexdigest()
    return " ".join([*words[:_MOST], f"{_WHOLE}{whole}"])


def refuse_other_order(saved: str | None, own: str) -> None:
    """Raise if the adapters of a state made another order than those of a loader.

    Raises
    ------
    StateMismatch
        Naming the pipes. Not for None: a state that was saved before orders were told.
    """
    if saved is None or saved == own:
        return
    before, now = _told(saved), _told(own)
    if before == now:
        now = "these pipes in other places"
    msg = f"the state was saved {before}, and this loader runs {now}: "
    raise StateMismatch(msg + "adapters changed which items come, or when", do=_DO)


def _deciding(sink: Pipe) -> Iterator[str]:
    """Yield a word for each pipe that decides which items come, and when, parents first."""
    for pipe in walk(sink):
        traits = traits_of(pipe)
        # Those that make items ahead, or stay in this process, hand on what comes as it comes.
        if traits.per_item or traits.watches or traits.ahead or traits.main_process:
            continue
        off = _OFF if is_switched_off(pipe) else ""
        yield f"{chained_name(pipe)}:{fingerprint_of_pipe(pipe)}{off}"


def _told(words: str) -> str:
    """Return the words as a sentence is made of them."""
    gone: dict[str, int] = {}
    come: dict[str, bool] = {}
    for word in words.split():
        name = word[1:].split(":")[0]
        if word[0] == "-":
            gone[name] = 1
        elif word[0] == "+":
            come[name] = word.endswith(_OFF)
    both = [f"{n}() {'turned off' if off else 'changed'}" for n, off in come.items() if n in gone]
    new = [f"with {name}()" for name in come if name not in gone]
    old = [f"without {name}()" for name in gone if name not in come]
    return ", ".join(both + new + old) or ("with pipes in another order" if words else "as written")
