"""The engine as a whole: whatever is stored, each engine draws what plain Python would."""
