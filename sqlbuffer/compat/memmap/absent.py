"""What memmap-replay-buffer has and this package has not, and what to use instead."""

_FRAMES = (
    "read the frames with buffer.data['<field>'][episode, :length] and give them to a video "
    "library such as imageio"
)
_VIEWER = (
    "`sqlbuffer show` and `sqlbuffer sql` look into a buffer, and analysts read the view "
    "v_experiences"
)
ALTERNATIVES = {
    "ReplayBufferH5PY": "ReplayBuffer(folder, ...) keeps the same episodes in a SQLite file",
    "ReplayBufferBase": "ReplayBuffer takes any database URL that sqlbuffer knows for a folder",
    "frames_to_sheet": _FRAMES,
    "trajectory_to_video": _FRAMES,
    "video": _FRAMES,
    "frontend": _VIEWER,
    "replay_buffer_h5py": "ReplayBuffer(folder, ...) keeps the same episodes in a SQLite file",
}
# Methods of its buffers.
METHODS = {
    "image_fields": "look at buffer.shapes: images have two or more axes",
    "default_image_field": "name the field yourself; buffer.shapes has the shapes of all fields",
    "episode_frames": "read the frames with buffer.data['<field>'][episode, :length]",
    "save_video": _FRAMES,
    "get_buffered_storer": "store_episode stores a whole episode in one transaction",
}


def absent(name: str) -> ImportError:
    """Return the error for importing one of them."""
    return ImportError(advice(name))


def advice(name: str) -> str:
    """Return a message that says what to use instead."""
    instead = ALTERNATIVES.get(name) or METHODS[name]
    return f"sqlbuffer has no {name} of memmap-replay-buffer; instead, {instead}"
