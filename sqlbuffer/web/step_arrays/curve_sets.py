"""The curves of all fields of a rollout."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlbuffer.web.step_arrays.field_curves import FieldCurve, curve_of
from sqlbuffer.web.step_arrays.step_values import arrays_of, is_image

if TYPE_CHECKING:
    from sqlbuffer.steps.data_rows import DataRow

MOST_CURVES = 24
# Number of steps that are read of a longer rollout, at even distances.
MOST_STEPS_READ = 1_000


def curves_of(rows: "Sequence[tuple[int, DataRow]]") -> list[FieldCurve]:
    """Return a curve for each field of some steps, the reward first; images have none.

    Args:
        rows: (place in the rollout, step), in order.
    """
    arrays = [arrays_of(row) for _, row in rows]
    names = dict.fromkeys(
        name for found in arrays for name, array in found.items() if not is_image(array)
    )
    steps = [position for position, _ in rows]
    return [
        curve_of(name, steps, [found.get(name) for found in arrays])
        for name in [*names][:MOST_CURVES]
    ]
