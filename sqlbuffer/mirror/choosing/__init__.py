"""The choice of samplers among the steps in memory."""
