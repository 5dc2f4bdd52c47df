"""Steps as bytes and back; knows no SQL."""
