"""The site: Sphinx over these pages. `scripts/site.py` builds it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_site"))

project = "Penstock"
author = copyright = "The Penstock authors"  # noqa: A001 - Sphinx's name
extensions = ["myst_parser", "sphinx_copybutton", "generated"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "_site"]
html_theme = "furo"
html_title = "Penstock"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
copybutton_exclude = ".linenos, .gp"
highlight_language = "none"
