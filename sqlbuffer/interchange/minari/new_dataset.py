"""A data set of Minari that gets its name when it is complete."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

from sqlbuffer.checks import refused
from sqlbuffer.interchange.manifest import write_manifest
from sqlbuffer.interchange.work_place import WorkPlace, is_ended, put_in_place


def dataset_folder(dataset_id: str) -> Path:
    """Return where Minari keeps a data set."""
    from minari.storage import get_dataset_path

    return Path(get_dataset_path(dataset_id))


def checked_dataset_id(dataset_id: Any) -> str:
    """Return the name of a data set.

    Raises:
        ArgumentError: Minari takes no such name.
    """
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        parse_dataset_id(dataset_id)
    except (ValueError, TypeError):
        raise refused(
            dataset_id, "dataset_id", "a name of Minari, such as 'cartpole/recorded-v0'"
        ) from None
    return str(dataset_id)


class NewDataset:
    """A data set that is written by another name, and renamed at the end.

    Making it removes what exports of the same data set have left that were killed.

    Args:
        dataset_id: Its name; one that is there is replaced.

    Attributes:
        work_id: The name to write it by.
    """

    def __init__(self, dataset_id: str) -> None:
        from minari.dataset.minari_dataset import gen_dataset_id, parse_dataset_id

        space, name, version = parse_dataset_id(dataset_id)
        self._id, path = dataset_id, dataset_folder(dataset_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        own = re.compile(re.escape(f"{name}-partial-") + "([0-9a-f]{8})" + f"-v{version}")
        for other in path.parent.iterdir():
            found = own.fullmatch(other.name)
            mark = path.parent / f".{path.name}.partial-{found[1]}" if found else None
            if mark is not None and (not mark.exists() or is_ended(mark)):
                shutil.rmtree(other, ignore_errors=True)
        # Minari makes the folder, so a file next to it is locked while this process lives.
        self._place = WorkPlace(path, Path.touch)
        mark_id = self._place.path.name.rpartition("-")[2]
        self.work_id = gen_dataset_id(space, f"{name}-partial-{mark_id}", version)

    def __enter__(self) -> "NewDataset":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(dataset_folder(self.work_id), ignore_errors=True)
        self._place.close()

    def finish(self) -> None:
        """Write its manifest, and give it its name."""
        work = dataset_folder(self.work_id)
        about = work / "data" / "metadata.json"
        known = json.loads(about.read_text("utf-8"))
        about.write_text(json.dumps({**known, "dataset_id": self._id}), "utf-8")
        counts = {"steps": known["total_steps"], "episodes": known["total_episodes"]}
        write_manifest(work, counts)
        put_in_place(work, dataset_folder(self._id))
