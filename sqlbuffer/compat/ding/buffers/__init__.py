"""The classes of DI-engine's buffers."""
