"""How samplers choose among the steps in memory."""
