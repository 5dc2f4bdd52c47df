"""The errors of memmap-replay-buffer, and its names that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives
from sqlbuffer.errors import SQLBufferError


class MemmapError(SQLBufferError, ValueError, AssertionError):
    """A call has an argument that it cannot take; the message says what it takes.

    memmap-replay-buffer raises AssertionError up to 0.1.4 and ValueError since.
    """


class MemmapTypeError(MemmapError, TypeError):
    """An argument has the wrong type."""


class MemmapIndexError(MemmapError, IndexError):
    """There is no slot of that number."""


class UnknownNameError(SQLBufferError, KeyError):
    """There is no field of that name; the message lists the fields."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


_FRAMES = (
    "read the frames with buffer.data['<field>'][episode, :length] and give them to a video "
    "library such as imageio"
)
_VIEWER = (
    "`sqlbuffer show` and `sqlbuffer sql` look into a buffer, and analysts read the view "
    "v_experiences"
)
_INSTEAD = {
    "ReplayBufferH5PY": "ReplayBuffer(folder, ...) keeps the same episodes in a SQLite file",
    "ReplayBufferBase": "ReplayBuffer takes any database URL that sqlbuffer knows for a folder",
    "frames_to_sheet": _FRAMES,
    "trajectory_to_video": _FRAMES,
    "video": _FRAMES,
    "frontend": _VIEWER,
    "replay_buffer_h5py": "ReplayBuffer(folder, ...) keeps the same episodes in a SQLite file",
}
ALTERNATIVES = Alternatives("memmap-replay-buffer", _INSTEAD)
# Methods of its buffers.
_INSTEAD_OF_METHODS = {
    "image_fields": "look at buffer.shapes: images have two or more axes",
    "default_image_field": "name the field yourself; buffer.shapes has the shapes of all fields",
    "episode_frames": "read the frames with buffer.data['<field>'][episode, :length]",
    "save_video": _FRAMES,
    "get_buffered_storer": "store_episode stores a whole episode in one transaction",
}
METHODS = Alternatives("memmap-replay-buffer", _INSTEAD_OF_METHODS)
