"""The large databases of these tests are made once: by the one worker that runs all tests on one."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    for item in items:
        if "large" in getattr(item, "fixturenames", ()) or "large_url" in item.fixturenames:
            parameters = item.callspec.params
            database = next(
                parameters[name] for name in ("large_url", "large") if name in parameters
            )
            group = f"{item.module.__name__}-{database}-{parameters['analyzed']}"
            item.add_marker(pytest.mark.xdist_group(group))
