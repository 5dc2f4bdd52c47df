"""Everything that speaks SQL: one folder for each capability."""

from importlib import import_module
from pathlib import Path

# Each capability's tables, so that the metadata is whole whatever is imported first. Those of
# buffers come before the others: overlays add their flags to them.
_here = Path(__file__).parent
for _path in sorted(
    _here.glob("**/tables.py"), key=lambda path: (path.parent.name != "buffers", path)
):
    import_module(".".join([__name__, *_path.relative_to(_here).with_suffix("").parts]))
