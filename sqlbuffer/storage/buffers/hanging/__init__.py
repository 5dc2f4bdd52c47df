"""Writers whose transaction stays open: their steps stay invisible, and other calls may wait."""
