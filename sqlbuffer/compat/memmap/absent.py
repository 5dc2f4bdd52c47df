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


def absent(name: str) -> ImportError:
    """Return the error for importing one of them."""
    return ImportError(
        f"sqlbuffer has no {name} of memmap-replay-buffer; instead, {ALTERNATIVES[name]}"
    )
