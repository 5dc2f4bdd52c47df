"""The current late values of steps, and all versions of them."""

from sqlalchemy import BigInteger, Column, Double

from sqlbuffer.storage.schema.expressions import utc_now
from sqlbuffer.storage.schema.metadata import JSON, TIME, overlay_table

# Current values of rows that were annotated: null if the row's own value counts.
labels = overlay_table(
    "labels",
    Column("reward_t", Double, comment="reward given late"),
    Column("adv_t", Double, comment="advantage given late"),
    Column("v_t", Double, comment="value estimate given late"),
    Column("extra", JSON, comment="the row's extra with the keys that were given late"),
    Column("fields", JSON, comment="declared fields that were given late"),
    flag="has_labels",
    learner_may="INSERT, UPDATE",
    learner_sets_flag=True,
    integer_key=True,
)

label_history = overlay_table(
    "label_history",
    Column(
        "version",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="number of the annotation; the highest one counts",
    ),
    Column("reward_t", Double, comment="reward given"),
    Column("adv_t", Double, comment="advantage given"),
    Column("v_t", Double, comment="value estimate given"),
    Column("extra", JSON, comment="keys of extra given"),
    Column("fields", JSON, comment="declared fields given"),
    Column("labelled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    flag="has_labels",
    learner_may="INSERT, UPDATE",
)
