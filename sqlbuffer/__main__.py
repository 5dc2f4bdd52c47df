"""`python -m sqlbuffer` is the `sqlbuffer` command."""

from sqlbuffer.cli import app

if __name__ == "__main__":
    app(prog_name="sqlbuffer")
