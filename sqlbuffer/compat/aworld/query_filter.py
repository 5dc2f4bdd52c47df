"""The names of AWorld's module `query_filter`."""

from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.query.query_filter import QueryFilter

QueryCondition = Tree

__all__ = ["QueryBuilder", "QueryCondition", "QueryFilter"]
