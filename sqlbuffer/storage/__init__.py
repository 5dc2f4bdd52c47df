"""Everything that speaks SQL: one folder for each capability."""
