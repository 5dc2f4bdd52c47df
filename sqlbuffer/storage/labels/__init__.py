"""Values that arrive after a step was stored, as versions."""
