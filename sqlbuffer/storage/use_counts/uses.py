"""The table `uses`: how often rows were sampled."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.use_counts import postgresql, sqlite

claim_uses = by_database(sqlite=sqlite.claim_uses, postgresql=postgresql.claim_uses)
return_uses = by_database(sqlite=sqlite.return_uses, postgresql=postgresql.return_uses)
add_uses = by_database(sqlite=sqlite.add_uses, postgresql=postgresql.add_uses)
uses_of = by_database(sqlite=sqlite.uses_of, postgresql=postgresql.uses_of)
