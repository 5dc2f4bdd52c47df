# The fixtures of the layers that call these parts of the storage.
from tests.compat.ding.conftest import make as make_ring  # noqa: F401
from tests.compat.ding.conftest import place  # noqa: F401
from tests.compat.memmap.conftest import make as make_slots  # noqa: F401
from tests.compat.memmap.conftest import reopen as reopen_slots  # noqa: F401
from tests.compat.minestudio.conftest import make as make_pool  # noqa: F401
