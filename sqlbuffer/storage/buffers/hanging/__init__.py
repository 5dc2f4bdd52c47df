"""Writers whose transaction stays open: nobody sees their steps, and some wait for them."""
