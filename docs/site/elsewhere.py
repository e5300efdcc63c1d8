"""Pages of the site that stand elsewhere in the repository, and the tutorial, which is a notebook.

Links stay as they are on the code host: relative to the file that has them. Here those that lead
out of `docs/` are turned towards the pages made from their targets.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "architecture.md": "ARCHITECTURE.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "tutorials/notebook.md": "docs/tutorials/notebook.ipynb",
    "index.md": "README.md",
}
"""Page of the site: file of the repository."""
_PAGE_OF = {source: page for page, source in PAGES.items()}
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, source in PAGES.items():
        if page in files.src_uris:  # the home page: the site has its own
            continue
        text = (ROOT / source).read_text(encoding="utf-8")
        content = from_notebook(json.loads(text)) if source.endswith(".ipynb") else text
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    source = f"docs/{here}" if (ROOT / "docs" / here).is_file() else PAGES.get(here)
    if source is None:  # made from the code
        return markdown
    return _LINK.sub(lambda link: _target(link.group(), source, here), markdown)


def _target(link: str, source: str, here: str) -> str:
    """Return the target on the site of a link in a file of the repository."""
    wanted = os.path.normpath(os.path.join(os.path.dirname(source), link))
    page = _PAGE_OF.get(wanted, wanted.removeprefix("docs/"))
    return os.path.relpath(page, os.path.dirname(here) or ".")


def from_notebook(notebook: dict[str, Any]) -> str:
    """Its cells as Markdown, each with what it showed."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        shown = "".join("".join(output["text"]) for output in cell["outputs"]).rstrip()
        if shown:
            parts.append(f'```text title="Shows"\n{shown}\n```')
    return "\n\n".join(parts) + "\n"
