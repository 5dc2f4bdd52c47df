"""More random programs against the model of eviction by episode."""

from hypothesis import HealthCheck, settings

from tests.storage.retention.test_episode_eviction import PROGRAMS, check_program


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@PROGRAMS
def test_it_holds_what_a_model_in_memory_holds(buffer_url, actions, max_episodes, max_capacity):
    check_program(buffer_url, actions, max_episodes, max_capacity)
