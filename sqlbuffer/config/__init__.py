"""What is stored about a buffer, and what each opener of it chooses."""
