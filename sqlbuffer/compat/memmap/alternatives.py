"""Names of memmap-replay-buffer that this package does not have."""

from sqlbuffer.compat.alternatives import Alternatives

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
