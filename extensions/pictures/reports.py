"""HTML of explanations, diagnoses, checks and figures of loaders, for notebooks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from ...core.views import Report
from ...diagnosing import Diagnosis, Measurement
from ...diagnosing.check_data import CheckReport
from ...diagnosing.cost_model import short_number
from .html import box, code

_MOST_FINDINGS = 50
_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
_NUMBER = "text-align:right;padding:1px 12px 1px 0;vertical-align:top;white-space:nowrap"
_TABLE = "border-collapse:collapse;border:0;margin:4px 0;font:inherit;color:inherit"
_WIDTH = 160  # pixels of the longest bar
_LIMIT, _OTHER = "#d55e00", "#0072b2"


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], *, raw: int = -1) -> str:
    """Return rows as a table with a head; the column ``raw`` is HTML already."""

    def cell(number: int, text: str, tag: str) -> str:
        is_number = tag == "td" and text[:1].isdigit()
        inner = text if number == raw and tag == "td" else escape(text)
        return f'<{tag} style="{_NUMBER if is_number else _CELL}">{inner}</{tag}>'

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = "".join(cell(number, text, tag) for number, text in enumerate(texts))
        return f'<tr style="background:none">{cells}</tr>'

    body = "".join([line("th", head), *(line("td", one) for one in rows)])
    return f'<table style="{_TABLE}">{body}</table>'


def report_html(report: Report) -> str:
    """Return the parts of an explanation, each in a frame."""
    parts = str(report).split("\n\n")
    return box(*(f'<div style="margin:4px 0">{code(part)}</div>' for part in parts))


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """Return the time of each part of a loader as bars, with the limit and the advice."""
    longest = max((1000 / row.rate for row in diagnosis.rows), default=1.0) or 1.0
    rows = []
    for row in diagnosis.rows:
        width = _WIDTH * 1000 / row.rate / longest
        bar = (
            f'<span style="display:inline-block;height:9px;width:{width:.0f}px;'
            f'background:{_LIMIT if row.is_limit else _OTHER}"></span>'
            f"{' limit' if row.is_limit else ''}"
        )
        rate = "-" if math.isinf(row.rate) else short_number(row.rate)
        times = short_number(1000 / row.rate)
        # A sum is that of parts of one place, which the text of the place names.
        name = f"sum of {row.where.partition(': ')[2]}" if row.name == "sum" else row.name
        rows.append((name, rate, times, bar))
    whole = "with your step" if diagnosis.has_step else "without your step"
    items = diagnosis.costs.items
    lines = [
        f"<b>{escape(diagnosis.headline)}</b> {escape(diagnosis.advice)}",
        f"end to end, {whole}: {short_number(diagnosis.end_to_end)} batches/s, "
        f"{short_number(diagnosis.end_to_end * items)} items/s; forecast: "
        f"{short_number(diagnosis.forecast_rate)} batches/s",
        *(escape(note) for note in diagnosis.notes),
    ]
    head = ("part", "batches/s", "ms/batch", "")
    return box(columns(head, rows, raw=3), *(f"<div>{line}</div>" for line in lines))


def measurement_html(measurement: Measurement) -> str:
    """Return a diagnosis as bars; another measurement as its table."""
    if isinstance(measurement, Diagnosis):
        return diagnosis_html(measurement)
    return box(code(str(measurement)))


def check_html(report: CheckReport) -> str:
    """Return the bad volumes of a check with their reasons, and the count."""
    bad = report.bad
    state, colour = ("sound", _OTHER) if report.ok else (f"{len(bad)} bad", _LIMIT)
    manifest = f", written to {report.manifest}" if report.manifest else ""
    head = (
        f'<div><b style="color:{colour}">{state}</b>: {report.volumes} volumes checked'
        f"{escape(manifest)}</div>"
    )
    rows = [(one.case, one.key, one.error, one.reason) for one in bad[:_MOST_FINDINGS]]
    more = f"<div>and {len(bad) - len(rows)} more</div>" if len(bad) > len(rows) else ""
    sizes = [f"{key}: {', '.join([*every][:5])}" for key, every in report.shown_lengths.items()]
    rows_html = columns(("case", "key", "error", "reason"), rows) if rows else ""
    return box(head, rows_html, more, *(f"<div>{escape(line)}</div>" for line in sizes))


def text_html(thing: Any) -> str:
    """Return the text of a thing, line by line."""
    return box(code(str(thing)))
