"""Connections and transactions, as each database needs them.

An operation of one capability is in the folder of that capability instead, in its modules `sqlite`
and `postgresql`.
"""

from sqlbuffer.storage.dialects import postgresql, sqlite
from sqlbuffer.storage.dialects.by_database import by_database

writing = by_database(sqlite=sqlite.writing, postgresql=postgresql.writing)
claiming = by_database(sqlite=sqlite.claiming, postgresql=postgresql.claiming)
hurried = by_database(sqlite=sqlite.hurried, postgresql=postgresql.hurried)
at_once = by_database(sqlite=sqlite.at_once, postgresql=postgresql.at_once)
reuse_log = by_database(sqlite=sqlite.reuse_log, postgresql=postgresql.reuse_log)
make_room = by_database(sqlite=sqlite.make_room, postgresql=postgresql.make_room)
