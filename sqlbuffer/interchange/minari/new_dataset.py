"""A data set of Minari that gets its name when it is complete."""

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4


def dataset_folder(dataset_id: str) -> Path:
    """Return where Minari keeps a data set."""
    from minari.storage import get_dataset_path

    return Path(get_dataset_path(dataset_id))


class NewDataset:
    """A data set that is written by another name, and renamed at the end.

    Args:
        minari: The module.
        dataset_id: Its name; one that is there is replaced.

    Attributes:
        work_id: The name to write it by.
    """

    def __init__(self, minari: Any, dataset_id: str) -> None:
        from minari.dataset.minari_dataset import gen_dataset_id, parse_dataset_id

        space, name, version = parse_dataset_id(dataset_id)
        self._id = dataset_id
        self.work_id = gen_dataset_id(space, f"{name}-partial-{uuid4().hex[:8]}", version)

    def __enter__(self) -> "NewDataset":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(dataset_folder(self.work_id), ignore_errors=True)

    def finish(self) -> None:
        """Give it its name."""
        work, path = dataset_folder(self.work_id), dataset_folder(self._id)
        about = work / "data" / "metadata.json"
        known = json.loads(about.read_text("utf-8"))
        about.write_text(json.dumps({**known, "dataset_id": self._id}), "utf-8")
        old = None
        if path.exists():
            old = path.with_name(f"{path.name}-old-{uuid4().hex[:8]}")
            path.rename(old)
        work.rename(path)
        if old is not None:
            shutil.rmtree(old)
