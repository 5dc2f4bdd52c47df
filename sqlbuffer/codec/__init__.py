"""Python values as JSON text and bytes, and back."""
