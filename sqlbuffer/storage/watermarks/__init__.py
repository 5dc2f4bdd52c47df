"""Up to which number all rows of a buffer are known: what followers and counts rely on."""
