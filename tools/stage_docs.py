"""Gather the source of the documentation site: the pages of ``docs/`` and the reference.

``python tools/stage_docs.py FOLDER`` copies ``docs/`` to the folder, writes the reference next to
it, and copies files outside of ``docs/`` that pages link to. Links are rewritten to these copies.
With ``--notebooks NOTEBOOKS``, the pages of the tutorials are the notebooks of that folder
(``tools/run_tutorials.py``); else they show the programs. Files that have not changed keep their
time, so that a second build is quick.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).parent))
import write_reference
from count_tree import ROOT

PAGES = ROOT / "docs"
OTHERS = PurePosixPath("repository")
"""Folder of the site for linked files outside of ``docs/``."""
ASSETS = {".svg", ".png", ".ipynb"}
# Further pages below a page, by patterns; links alone give Sphinx no order.
LISTS = {
    PurePosixPath("decisions/README.md"): "[0-9]*.md",
    PurePosixPath("performance.md"): "measured-before.md",
}
TUTORIALS = "tutorials/[0-9]*.py"
TEMPLATES = {PurePosixPath("decisions/0000-template.md")}
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".hpp": "cpp", ".cfg": "ini"}
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")
_CODE = re.compile(r"^(```+).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_ORPHAN = "---\norphan: true\n---\n\n"


class Stage:
    """The staged files by their place in the site, and the links to follow."""

    def __init__(self, notebooks: Path | None = None) -> None:
        self._notebooks = notebooks
        self.texts: dict[PurePosixPath, str] = {}
        self.copies: dict[PurePosixPath, Path] = {}
        self._links: list[Path] = []

    def gather(self, convert: Callable[[str], str] = write_reference.napoleon) -> None:
        """Add the pages of ``docs/``, the reference, and all that they link to."""
        for file in sorted(PAGES.rglob("*")):
            place = self._place_of(file)
            if file.suffix == ".md":
                self._add_page(file)
            elif file.suffix in ASSETS:
                self.copies[place] = file
        while self._links:
            file = self._links.pop()
            place = self._place_of(file)
            if place in self.texts or place in self.copies:
                continue
            if file.suffix == ".md":
                self._add_page(file)
            elif place.suffix == ".ipynb" and self._notebooks is not None:
                self.copies[place] = self._notebooks / place.name
            elif file.suffix in LANGUAGES:
                self.texts[place] = page_of_program(file)
            else:
                self.copies[place] = file
        for name, text in write_reference.reference(convert).items():
            self.texts[PurePosixPath("reference", f"{name}.rst")] = text

    def _add_page(self, file: Path) -> None:
        place = self._place_of(file)
        text = self._with_links(file, file.read_text("utf-8"))
        if place in LISTS:
            names = sorted(other.stem for other in file.parent.glob(LISTS[place]))
            own = [name for name in names if place.with_name(f"{name}.md") not in TEMPLATES]
            text += "\n".join(["", "```{toctree}", ":hidden:", "", *own, "```", ""])
        is_alone = place.parts[0] == OTHERS.name or place in TEMPLATES
        self.texts[place] = f"{_ORPHAN}{text}" if is_alone else text

    def _with_links(self, file: Path, text: str) -> str:
        """Rewrite the links of a page to places of the site; code keeps its text."""

        def rewrite(match: re.Match[str]) -> str:
            target = (file.parent / match[2]).resolve()
            if target.is_dir():
                target /= "README.md"
            if not target.exists():
                return match[0]  # Sphinx reports it
            self._links.append(target)
            path = os.path.relpath(self._place_of(target), self._place_of(file).parent)
            return f"{match[1]}{path}{match[3]}"

        parts, end = [], 0
        for code in _CODE.finditer(text):
            parts += [_LINK.sub(rewrite, text[end : code.start()]), code[0]]
            end = code.end()
        return "".join([*parts, _LINK.sub(rewrite, text[end:])])

    def _place_of(self, file: Path) -> PurePosixPath:
        """Return the place of a file of the repository in the site."""
        if file.is_relative_to(PAGES):
            return PurePosixPath(file.relative_to(PAGES))
        if file.match(TUTORIALS):
            suffix = ".md" if self._notebooks is None else ".ipynb"
            return PurePosixPath("tutorials", file.stem + suffix)
        place = OTHERS / PurePosixPath(file.relative_to(ROOT))
        return place.with_name(f"{place.name}.md") if file.suffix in LANGUAGES else place

    def write(self, folder: Path) -> None:
        """Write the files that differ, and remove those of earlier builds."""
        contents = {place: text.encode() for place, text in self.texts.items()}
        contents |= {place: file.read_bytes() for place, file in self.copies.items()}
        for place, content in contents.items():
            file = folder / place
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)
        for file in folder.rglob("*"):
            if file.is_file() and PurePosixPath(file.relative_to(folder)) not in contents:
                file.unlink()


def page_of_program(file: Path) -> str:
    """Return a page that shows a program."""
    name, language = file.relative_to(ROOT), LANGUAGES[file.suffix]
    return f"{_ORPHAN}# {name}\n\n`````{language}\n{file.read_text('utf-8')}`````\n"


def main() -> None:
    """Gather the files into the folder of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--notebooks", type=Path)
    arguments = parser.parse_args()
    stage = Stage(arguments.notebooks)
    stage.gather()
    stage.write(arguments.folder)


if __name__ == "__main__":
    main()
