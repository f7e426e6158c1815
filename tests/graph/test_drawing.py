"""Drawings hold every pipe and edge once, and no sign of a user's text breaks them."""

from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.graph import to_dot, to_mermaid


class Quoted(IterableWrapper):
    def describe(self):
        return 'read("a<b>", \\ & more)' + "x" * 100


def test_a_diamond_is_drawn_with_one_source():
    """Four pipes, four arrows."""
    source = IterableWrapper([1])
    sink = source.map(str).zip(source.map(float))

    lines = to_mermaid(sink).splitlines()

    assert sum("-->" in line for line in lines) == 4
    assert len(lines) == 1 + 4 + 4


def test_a_label_cannot_leave_its_box():
    """Quotes, brackets and backslashes are written so that both languages read them as text."""
    pipe = Quoted([1])
    mermaid, dot = to_mermaid(pipe).splitlines()[1], to_dot(pipe).splitlines()[2]

    assert mermaid.count('"') == 2
    assert "<" not in mermaid
    assert "#quot;a#lt;b#gt;#quot;" in mermaid
    assert '\\"a<b>\\", \\\\ & more' in dot
    assert "x…" in dot


def test_pipes_that_only_watch_are_left_out():
    """As in explain(): the drawing shows what the user wrote."""
    pipe = vp.from_cases([{"image": [[[0.0]]]}]).shuffle()
    timed = vp.Profile().rewrite(pipe).after

    assert to_dot(timed) == to_dot(pipe)
