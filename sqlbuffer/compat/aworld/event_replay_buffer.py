"""Placeholder for an upstream module that this package does not have: names the alternative."""

from sqlbuffer.compat.aworld import ALTERNATIVES

raise ALTERNATIVES.error("EventReplayBuffer")
