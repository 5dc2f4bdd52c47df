"""The names of AWorld's module `query_filter`."""

from sqlbuffer.query import QueryBuilder, Tree
from sqlbuffer.query_filter import QueryFilter

QueryCondition = Tree

__all__ = ["QueryBuilder", "QueryCondition", "QueryFilter"]
