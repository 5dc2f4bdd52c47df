"""What a buffer is made with, and how the database stores its fields."""
