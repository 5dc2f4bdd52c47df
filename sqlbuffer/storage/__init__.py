"""Everything that speaks SQL: one folder for each capability."""

from importlib import import_module
from pathlib import Path

# Imports the tables of all capabilities, so that the metadata is complete whichever module is
# imported first. Tables of buffers come first: overlays add their flags to them.
_here = Path(__file__).parent
for _path in sorted(
    _here.glob("**/tables.py"), key=lambda path: (path.parent.name != "buffers", path)
):
    import_module(".".join([__name__, *_path.relative_to(_here).with_suffix("").parts]))
