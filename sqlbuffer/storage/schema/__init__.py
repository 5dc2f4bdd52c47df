"""Tables, views, functions and triggers, and the migrations that create them."""
