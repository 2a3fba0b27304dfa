"""How Sphinx makes the guide and the reference: `./run test docs`, or `sphinx-build -W docs OUTPUT`."""

import pgmip  # noqa: F401  what the reference is made of

project = "pg_mip"
author = "the pg_mip developers"
version = release = "0.1"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_show_copyright = False  # LICENSE has it
exclude_patterns = ["tests"]

# Headings can be linked to, as on the web.
myst_heading_anchors = 3

# What is between single backticks in a docstring is code, and a link where it names something.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # those of the standard library say nothing of us
autodoc_preserve_defaults = True
autoclass_content = "both"
