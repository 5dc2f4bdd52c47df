import pytest

from sqlbuffer import ReplayBuffer

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}


@pytest.fixture(params=LAYOUTS)
def opened(buffer_url, request):
    """Make buffers with leases whose rows are used once, of each layout."""
    buffers = []

    def make(**settings):
        settings = {"leases": True, "max_use": 1, **LAYOUTS[request.param], **settings}
        buffers.append(ReplayBuffer(buffer_url, **settings))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()
