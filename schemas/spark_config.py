"""Section `data.spark`: the Spark session of `data.engine: spark`, and its limits."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from schemas.section import Section

OWN_MASTER = "local[*]"
SECRET = re.compile(r"token|password|secret|credential|access\.key", re.IGNORECASE)


class SparkConfig(Section):
    """A session of this process, or a Spark Connect server; executors see the same folders and have
    the same packages.
    """

    master: str = Field(
        OWN_MASTER,
        description=(
            "Master of a session of this process, e.g. local[4], spark://host:7077 or yarn."
        ),
    )
    remote: str | None = Field(
        None,
        description=(
            "Address of a Spark Connect server, sc://host:15002, in place of a session of this"
            " process; its token comes from the environment."
        ),
    )
    conf: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Settings of the session, e.g. {spark.executor.memory: 8g}.",
    )

    @model_validator(mode="after")
    def _no_secrets(self) -> SparkConfig:
        if self.remote is not None and self.master != OWN_MASTER:
            raise ValueError(
                "master is for a session of this process, remote for a server; give one of them"
            )
        if self.remote is not None and not re.match(r"sc://|local", self.remote):
            raise ValueError(
                "remote: expected sc://host:port, got"
                f" {self.remote.split('://', maxsplit=1)[0]}://…"
            )
        if self.remote is not None and (SECRET.search(self.remote) or "@" in self.remote):
            raise ValueError(
                "remote holds a secret, which would appear in logs; set"
                " SPARK_CONNECT_AUTHENTICATE_TOKEN in the environment"
            )
        if secret := next((key for key in self.conf if SECRET.search(key)), None):
            raise ValueError(
                f"conf: {secret} would appear in logs; set it in spark-defaults.conf"
                " (SPARK_CONF_DIR)"
            )
        return self
