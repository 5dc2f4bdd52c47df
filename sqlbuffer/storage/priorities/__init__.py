"""Priorities of rows, and draws by them."""
