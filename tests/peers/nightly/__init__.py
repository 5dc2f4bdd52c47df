"""Tests with other libraries that take half a minute and more; `make test-nightly` runs them."""
