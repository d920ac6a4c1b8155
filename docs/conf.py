"""How Sphinx builds these pages: `make docs`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "_extensions"), str(Path(__file__).parents[1])]

from fleet import __version__  # noqa: E402 - the path that it is found on comes first

project = "fleet"
release = version = __version__
html_title = f"fleet {__version__}"
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
smartquotes = False  # options begin with two hyphens, and are copied
exclude_patterns = ["_build", "_extensions"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "reference"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing.external"]

autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
# Only our own names are checked: the pages are built without the network, so nobody else's can be looked up.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!fleet\.).*"),
    ("py:class", r"fleet\.\w+\.[PR]"),  # type variables
    ("py:class", r"fleet\.(app\.Declare|events\.Events|lease\.Lease|postgres\.database\.Database)"),  # not public
]
