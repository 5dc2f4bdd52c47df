"""Everything that speaks SQL: one module or folder for each capability."""
