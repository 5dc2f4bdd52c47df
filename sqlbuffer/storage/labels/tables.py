"""The tables of what was annotated after the insert."""

from sqlalchemy import BigInteger, Column, Double

from sqlbuffer.storage.schema.metadata import JSON, TIME
from sqlbuffer.storage.schema.overlays import overlay_table
from sqlbuffer.storage.schema.server_clock import utc_now

# What holds now of rows that were annotated: null where the row's own value does.
labels = overlay_table(
    "labels",
    Column("reward_t", Double, comment="reward given late"),
    Column("adv_t", Double, comment="advantage given late"),
    Column("v_t", Double, comment="value estimate given late"),
    Column("extra", JSON, comment="the row's extra with what was given late"),
    flag="has_labels",
    flag_comment="rows may have rows in labels and label_history",
    learner_may="INSERT, UPDATE",
    learner_sets_flag=True,
)

label_history = overlay_table(
    "label_history",
    Column(
        "version", BigInteger, primary_key=True, autoincrement=False, comment="the highest wins"
    ),
    Column("reward_t", Double, comment="reward given"),
    Column("adv_t", Double, comment="advantage given"),
    Column("v_t", Double, comment="value estimate given"),
    Column("extra", JSON, comment="keys of extra given"),
    Column("labelled_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    flag="has_labels",
    learner_may="INSERT, UPDATE",
)
