"""What mkdocs calls while it builds the site: pages that are made, and texts that are linked."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from scripts.site_pages import notebook, reference, text  # noqa: E402 - by the path above

_logger = logging.getLogger("mkdocs.telegrad")  # of the warnings that strict mode counts


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made: the Reference, and those of files outside docs/.

    Raises:
        PluginError: A public name has no docstring.
    """
    missing = [name for face in reference.FACES for name in reference.undocumented(face)]
    if missing:
        raise PluginError(f"public names without a docstring: {', '.join(missing)}")
    made = {reference.page_path(face): reference.page_of(face) for face in reference.FACES}
    for name, page in text.ROOT_PAGES.items():
        path = ROOT / name
        is_notebook = path.suffix == ".ipynb"
        made[page] = notebook.page_of_notebook(path) if is_notebook else path.read_text()
    for page, content in made.items():
        files.append(File.generated(config, page, content=content))
    for left_out in ("quickstart.ipynb", "bench.json"):
        if (file := files.get_file_from_path(left_out)) is not None:
            files.remove(file)
    config.extra["titles"] = text.titles_of(
        {file.src_uri: file.content_string for file in files.documentation_pages()}
    )
    config.extra["anchors"] = reference.anchors()
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Makes links of the files and public names that a page mentions."""
    path = page.file.src_uri
    if path.startswith("reference/"):
        return markdown
    markdown = text.keep_one_title(markdown)
    linked = text.link_files(markdown, path, config.extra["titles"])
    return text.link_names(linked, path, config.extra["anchors"])


def on_page_content(html: str, page: Page, **_: Any) -> None:
    """Warns of raw Markdown and of plain text where a link belongs, which fails a strict build."""
    for raw in text.find_raw(html):
        _logger.warning("%s shows %r, which is no link", page.file.src_uri, raw)
