"""The places of `compat.memmap` that show episodes, as far as deleting steps concerns them."""
