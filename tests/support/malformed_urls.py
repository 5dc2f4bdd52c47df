"""URLs that cannot be used, each with a password that no message may show."""

SECRET = "s3cret"

PASSWORDS = (
    "s3cret",
    "s3cret@s3cret",
    "s3cret:s3cret",
    "s3cret/s3cret",
    "s3cret@s3cret/s3cret",
    "s3cret@s3cret:1",
    "s3cret?s3cret=s3cret",
    "s3cret#s3cret%s3cret",
    "s3cret s3cret",
    "s3cret@'s3cret'",
)
_FORMS = (
    "me:{}@127.0.0.1/db",
    "//me:{}@127.0.0.1/db",
    "postgresql:me:{}@127.0.0.1/db",
    "postgresql:/me:{}@127.0.0.1/db",
    "postgresql//me:{}@127.0.0.1/db",
    "postgresql ://me:{}@127.0.0.1/db",
    "<postgresql://me:{}@127.0.0.1:1/db>",
    "postgresql://me:{}@127.0.0.1:port/db",
    "postgresql://me:{}@[::1/db",
    "postgresql+psycopg2://me:{}@127.0.0.1/db",
    "postgresql+{}://me@127.0.0.1/db",
    "{}://me@127.0.0.1/db",
    "mysql://me:{}@127.0.0.1/db",
    "oracle+cx://me/{}@127.0.0.1/db",
    "sqlite://me:{}@127.0.0.1/db",
    "sqlite+aiosqlite://me:{}@127.0.0.1/db",
    "jdbc:postgresql://127.0.0.1/db?user=me&password={}",
    "postgresql://127.0.0.1/db;password={}",
    "host=127.0.0.1 user=me password={} dbname=db",
    "user=me password='{}'",
)
MALFORMED_URLS = tuple(form.format(password) for form in _FORMS for password in PASSWORDS)
# What is behind the @ is a host to the parser, and may be a password to the user.
NO_PASSWORD = f"postgresql://me:@{SECRET}"
