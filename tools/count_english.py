"""Count dialect words and long sentences in docstrings, comments and documentation.

``python tools/count_english.py`` prints a row for each folder; ``--list FOLDER`` prints the lines.
``tests/test_english.py`` keeps the counts from growing. A sentence above `LONGEST` words is long.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from count_tree import ROOT, package_folders

LONGEST = 25
"""Words of a sentence, at most."""
PATTERNS: Mapping[str, re.Pattern[str]] = {
    "what": re.compile(r"\b(?:what|whatever|whoever)\b(?![^.?]*\?)", re.IGNORECASE),
    "opening": re.compile(r"(?:^|(?<=[.:;!?]\s))(?:What|Whoever|Who|Of)\b"),
    "tell": re.compile(r"\b(?:tell|tells|told|telling)\b", re.IGNORECASE),
    "stand": re.compile(r"\b(?:stands?|stood|lies?|lay)\b(?! for)", re.IGNORECASE),
    "let go": re.compile(r"\blet(?:s|ting)? go\b", re.IGNORECASE),
    "beside": re.compile(r"\b(?:beside|behind)\b", re.IGNORECASE),
    "nobody": re.compile(r"\b(?:nobody|somebody)\b", re.IGNORECASE),
}
DOCUMENTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# Directives, code and links of documentation are no prose.
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|\]\([^)]*\)|:\w+:", re.DOTALL)
_EXAMPLE = re.compile(r"^\s*(?:>>>|\.\.\.|::)")
_SENTENCE = re.compile(r"(?<=[.:!?])\s+(?=[A-Z`(*])")
_COMMENT_CODE = re.compile(r"noqa|type: ignore|pragma|fmt:")


class Prose(NamedTuple):
    """A paragraph and the line at which it begins."""

    file: Path
    line: int
    text: str


class Row(NamedTuple):
    """Counts of a folder: words, long sentences, all sentences, and hits by pattern."""

    words: int
    long: int
    sentences: int
    hits: Counter[str]


def prose_of_module(file: Path) -> Iterator[Prose]:
    """Yield the paragraphs of the docstrings and comments of a Python file."""
    source = file.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = getattr(statement, "value", None)
            is_text = isinstance(statement, ast.Expr) and isinstance(value, ast.Constant)
            if is_text and isinstance(value.value, str):
                yield from _paragraphs(file, statement.lineno, value.value)
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _COMMENT_CODE.search(token.string):
            continue
        if token.start[0] != last + 1:
            yield from _paragraphs(file, start, "\n".join(block))
            block, start = [], token.start[0]
        last = token.start[0]
        block.append(token.string.lstrip("#: "))
    yield from _paragraphs(file, start, "\n".join(block))


def prose_of_document(file: Path) -> Iterator[Prose]:
    """Yield the paragraphs, table cells and headings of a Markdown file."""
    fenced = _CODE.sub(lambda match: "\n" * match[0].count("\n") + "_", file.read_text("utf-8"))
    cells = "\n".join(
        "\n\n".join(line.split("|")) if line.lstrip().startswith("|") else line
        for line in fenced.splitlines()
    )
    yield from _paragraphs(
        file, 1, re.sub(r"^(\s*(?:[-*]|\d+\.|#+)\s)", r"\n\1", cells, flags=re.M)
    )


def _paragraphs(file: Path, line: int, text: str) -> Iterator[Prose]:
    kept = ["" if _EXAMPLE.match(each) else each for each in text.split("\n")]
    number = line
    for part in re.split(r"(\n\s*\n)", "\n".join(kept)):
        words = _CODE.sub("_", part)
        if words.strip():
            yield Prose(file, number, " ".join(words.split()))
        number += part.count("\n")


def count(paragraphs: list[Prose]) -> Row:
    """Count the words, sentences and hits of paragraphs."""
    sentences = [each for one in paragraphs for each in _SENTENCE.split(one.text)]
    lengths = [len(re.findall(r"[\w'-]+", each)) for each in sentences]
    hits = Counter(dict.fromkeys(PATTERNS, 0))
    for name, pattern in PATTERNS.items():
        hits[name] = sum(len(pattern.findall(one.text)) for one in paragraphs)
    return Row(sum(lengths), sum(n > LONGEST for n in lengths), len(sentences), hits)


def prose_by_folder() -> dict[str, list[Prose]]:
    """Return the paragraphs of each root folder of the package, of docs/ and of root documents."""
    found: dict[str, list[Prose]] = {}
    folders = {path.relative_to(ROOT).parts[0] for path in package_folders().values()}
    for name in sorted(folders):
        files = sorted((ROOT / name).rglob("*.py"))
        found[name] = [each for file in files for each in prose_of_module(file)]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found["docs"] = [each for file in pages for each in prose_of_document(file)]
    roots = [ROOT / name for name in DOCUMENTS]
    found["root"] = [each for file in roots for each in prose_of_document(file)]
    return found


def main() -> None:
    """Print the table, or the lines of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", metavar="FOLDER", help="print the paragraphs with hits")
    folder = parser.parse_args().list
    prose = prose_by_folder()
    if folder is not None:
        for one in prose[folder]:
            names = [name for name, pattern in PATTERNS.items() if pattern.search(one.text)]
            if names:
                print(f"{one.file.relative_to(ROOT)}:{one.line}: {', '.join(names)}: {one.text}")
        return
    print(f"{'':18}{'words':>8}{'long %':>8}" + "".join(f"{name:>9}" for name in PATTERNS))
    for name, paragraphs in prose.items():
        row = count(paragraphs)
        share = 100 * row.long / max(1, row.sentences)
        rates = "".join(f"{1000 * n / max(1, row.words):9.2f}" for n in row.hits.values())
        print(f"{name:18}{row.words:8}{share:8.1f}{rates}")


if __name__ == "__main__":
    main()
