"""Examples with other libraries that take minutes; `make test-nightly` runs them."""
