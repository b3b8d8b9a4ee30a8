"""The text of the site's pages: references to files and names become links, examples get a frame."""

from __future__ import annotations

import collections
import posixpath
import re
from collections.abc import Callable, Mapping
from html.parser import HTMLParser

__all__ = [
    "ROOT_PAGES",
    "fence_examples",
    "find_raw",
    "keep_one_title",
    "link_files",
    "link_names",
    "link_places",
    "title_of",
    "titles_of",
]

ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "docs/quickstart.ipynb": "quickstart.md",
}
"""Files outside docs/, or that are no Markdown, and the pages that the site makes of them."""

_FILE = re.compile(r"(?<!\[)`([\w./-]+\.(?:md|ipynb))`(?!\])")
_PLACE = re.compile(r"(?<![\w`/.])(`?)docs/([\w/-]+\.md)\1")
_NAMED_PAGE = re.compile(r"(?:docs/[\w/-]+|\.\./[\w/.-]+)\.(?:md|ipynb)\b")
_RAW = re.compile(rf"\{{[#:]|\]\(|\]\[|https?://|{_NAMED_PAGE.pattern}")
_FOOTNOTES = re.compile(r"\] \[(?=\d+\])")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]+)(#[^)]*)?\)")
_NAME = re.compile(r"(?<!\[)`((?:\w+\.)*[A-Za-z]\w+)(?:\(\))?`(?!\])")


def title_of(text: str) -> str:
    """Returns the first heading of a page.

    Example:
        >>> title_of("# Streams" + chr(10) + "text")
        'Streams'
    """
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def titles_of(pages: Mapping[str, str]) -> dict[str, str]:
    """Returns the titles of pages by their paths; a page without a heading has its path.

    Args:
        pages: Texts, by path below docs/.
    """
    return {path: title_of(content) or path for path, content in pages.items()}


def outside_code(text: str, change: Callable[[str], str], *, indented: bool = False) -> str:
    """Applies a change to the lines that are neither headings nor code.

    Args:
        text: Markdown, or a docstring.
        change: The change of a line.
        indented: True for a docstring, whose sections are indented; False if that means code.
    """
    lines, fenced = [], False
    for line in text.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        kept = fenced or line.startswith(("#", "```") if indented else ("    ", "#", "```"))
        lines.append(line if kept else change(line))
    return "\n".join(lines)


def keep_one_title(text: str) -> str:
    """Lowers the headings behind a second title by one level; a page's contents begin with one title.

    Example:
        >>> keep_one_title(chr(10).join(["# A", "## B", "# C", "## D"])).split(chr(10))
        ['# A', '## B', '## C', '### D']
    """
    lines, fenced, titles = [], False, 0
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        heading = not fenced and re.match(r"#+ ", line)
        titles += bool(heading) and line.startswith("# ")
        lines.append(f"#{line}" if heading and titles > 1 else line)
    return "\n".join(lines)


def link_files(text: str, page: str, titles: Mapping[str, str]) -> str:
    """Makes links of the pages that a text names as files.

    A link to a file that is no page of the site becomes code: `tests/...` is not published.

    Args:
        text: Markdown.
        page: The page that the text is on, below docs/.
        titles: The titles of all pages, by path below docs/.

    Example:
        >>> titles = {"streams.md": "Streams", "tutorials/rl.md": "RL"}
        >>> link_files("see `docs/streams.md`", "tutorials/rl.md", titles)
        'see [Streams](../streams.md)'
        >>> link_files("see [the test](../tests/house/test_docs.py)", "streams.md", titles)
        'see `tests/house/test_docs.py`'
    """
    folder = posixpath.dirname(page)

    def find(path: str) -> str | None:
        bare = path.removeprefix("docs/")
        beside = posixpath.normpath(posixpath.join(folder, path))
        outside = (path, posixpath.normpath(path), posixpath.normpath(f"docs/{beside}"))
        names = (*(ROOT_PAGES.get(name, "") for name in outside), bare, beside)
        return next((name for name in names if name in titles), None)

    def name_file(found: re.Match[str]) -> str:
        there = find(found[1])
        if there is None or there == page:
            return found[0]
        return f"[{titles[there]}]({posixpath.relpath(there, folder or '.')})"

    def keep_inside(found: re.Match[str]) -> str:
        there = find(found[2])
        if there is not None:
            return f"[{found[1]}]({posixpath.relpath(there, folder or '.')}{found[3] or ''})"
        if not _is_outside(found[2], folder):
            return found[0]  # strict mode tells of it
        return f"`{posixpath.normpath(found[2]).lstrip('./')}`"

    def change(line: str) -> str:
        return _FILE.sub(name_file, _LINK.sub(keep_inside, _FOOTNOTES.sub("], [", line)))

    return outside_code(text, change)


def _is_outside(path: str, folder: str) -> bool:
    """Tells whether a link leads out of docs/; a page of README's level has nothing but those."""
    return posixpath.normpath(posixpath.join("docs", folder, path)).partition("/")[0] != "docs"


def link_names(text: str, page: str, anchors: Mapping[str, str]) -> str:
    """Makes a reference of the first mention of each public name on a page.

    Args:
        text: Markdown.
        page: The page that the text is on, below docs/.
        anchors: Full names, or pages for packages, by the names under which texts mention them.

    Example:
        >>> anchors = {"rpc.gather": "telegrad.rpc.gather"}
        >>> link_names("`rpc.gather()` and `rpc.gather`", "futures.md", anchors)
        '[`rpc.gather()`][telegrad.rpc.gather] and `rpc.gather`'
    """
    seen: set[str] = set()

    def refer(found: re.Match[str]) -> str:
        full = anchors.get(found[1])
        if full is None or full in seen:
            return found[0]
        seen.add(full)
        if full.endswith(".md"):
            return f"[{found[0]}]({posixpath.relpath(full, posixpath.dirname(page) or '.')})"
        return f"[{found[0]}][{full}]"

    return outside_code(text, lambda line: _NAME.sub(refer, line))


def fence_examples(text: str) -> str:
    """Puts a fence around each example of a docstring; Markdown would read `>>>` as a quotation.

    Example:
        >>> fenced = fence_examples(chr(10).join([">>> 1 + 1", "2"]))
        >>> fenced.splitlines()
        ['```pycon', '>>> 1 + 1', '2', '```']
        >>> fence_examples(fenced) == fenced
        True
    """
    if "```pycon" in text:
        return text
    lines: list[str] = []
    indent: str | None = None
    for line in [*text.split("\n"), ""]:
        begins = line.lstrip().startswith(">>> ")
        if indent is None and begins:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])


def link_places(text: str, titles: Mapping[str, str]) -> str:
    """Makes links of the pages that a docstring names, for a page of reference/.

    Args:
        text: A docstring.
        titles: As for `link_files`.

    Example:
        >>> link_places("see docs/streams.md", {"streams.md": "Streams"})
        'see [Streams](../streams.md)'
        >>> link_places("        see `docs/streams.md`", {"streams.md": "Streams"})
        '        see [Streams](../streams.md)'
    """

    def refer(found: re.Match[str]) -> str:
        page = found[2]
        if page not in titles:
            return found[0]
        return f"[{titles[page]}](../{page})"

    return outside_code(text, lambda line: _PLACE.sub(refer, line), indented=True)


class _Prose(HTMLParser):
    """The text of a page that is neither a link nor a block of code.

    Attributes:
        texts: Each piece of it, and whether it is code within a line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[tuple[str, bool]] = []
        self._within: collections.Counter[str] = collections.Counter()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._within[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._within[tag] -= 1

    def handle_data(self, data: str) -> None:
        if not any(self._within[tag] > 0 for tag in ("a", "autoref", "pre")):
            self.texts.append((data, self._within["code"] > 0))


def find_raw(html: str) -> list[str]:
    """Returns what a reader of a page would see of Markdown, and pages that it names without a link.

    Args:
        html: The content of a page.

    Example:
        >>> find_raw("<p>see docs/streams.md and <code>docs/rref.md</code></p><h3>x {#x.y}</h3>")
        ['docs/streams.md', 'docs/rref.md', '{#']
        >>> find_raw('<p><a href="../streams/">Streams</a>, <code>x[0][1]</code></p>')
        []
    """
    prose = _Prose()
    prose.feed(html)
    return [
        found[0]
        for shown, is_code in prose.texts
        for found in (_NAMED_PAGE if is_code else _RAW).finditer(shown)
    ]
