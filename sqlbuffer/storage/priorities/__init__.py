"""Priorities of rows, and draws by priority."""
