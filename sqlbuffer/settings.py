"""Settings that are read from the environment."""

from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Settings read from `SQLBUFFER_*` environment variables.

    Attributes:
        url: Database URL used where none is given (`SQLBUFFER_URL`).
    """

    model_config = SettingsConfigDict(env_prefix="SQLBUFFER_")

    url: str = "sqlite:///sqlbuffer.db"
