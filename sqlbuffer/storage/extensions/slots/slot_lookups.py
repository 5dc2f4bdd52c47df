"""Find the steps of slots, and delete whole episodes."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.extensions.slots import postgresql, sqlite

slot_steps = by_database(sqlite=sqlite.slot_steps, postgresql=postgresql.slot_steps)
changed_steps = by_database(sqlite=sqlite.changed_steps, postgresql=postgresql.changed_steps)
remove_episode = by_database(sqlite=sqlite.remove_episode, postgresql=postgresql.remove_episode)
