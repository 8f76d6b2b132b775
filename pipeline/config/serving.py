"""Settings of the service: YAML's section `serve`. Nothing but pydantic is imported here."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ServeSettings(BaseModel):
    """Settings of the service: where it listens, what it takes, and how much of it at once.

    Every field is a key of the section `serve` of a run's YAML file; `model_fields` describes each.

    Raises
    ------
    pydantic.ValidationError
        For unknown keys, values out of bounds, a `queue` that is longer than `max_in_flight`, and several `workers`
        on a GPU.

    Examples
    --------
    >>> from gigabatch.pipeline.config.serving import ServeSettings
    >>> settings = ServeSettings(port=0, max_k=100)
    >>> settings.host, settings.max_k
    ('127.0.0.1', 100)
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    host: str = Field("127.0.0.1", min_length=1, description="address to listen at; the default is this machine alone")
    port: int = Field(8000, ge=0, le=65535, description="0: any free port, which the first log line names")
    token_file: Path | None = Field(
        None, description="file with the bearer token; or the environment variable GIGABATCH_TOKEN"
    )
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="where the model computes")
    threads: int = Field(1, ge=1, description="threads of torch; last bits of scores may depend on their number")
    workers: int = Field(1, ge=1, le=64, description="processes that answer at the one port, on the CPU")
    poll_seconds: float = Field(5.0, gt=0, description="how often the run's link is looked at for a new bundle")
    max_body_bytes: int = Field(1 << 20, ge=1 << 10, description="longest body of a request")
    max_candidates: int = Field(1_000, ge=1, description="items of one request to /rank")
    max_k: int = Field(500, ge=1, description="items that /recommend may be asked for")
    max_scan: int = Field(
        20_000, ge=0, description="items that /recommend scores one by one, for a model that has no vectors to search"
    )
    max_exclude: int = Field(5_000, ge=0, description="items that one request to /recommend may exclude")
    max_rows: int = Field(1_000, ge=1, description="rows of one request to /score")
    max_list: int = Field(1_000, ge=1, description="elements of one list in a row or among a user's columns")
    max_text: int = Field(1_000, ge=1, description="characters of one text in a request")
    max_in_flight: int = Field(256, ge=1, description="requests that are read, wait or are computed; then 503")
    queue: int = Field(64, ge=1, description="read requests that wait for the model; then 503")
    timeout_seconds: float = Field(
        2.0, gt=0, le=600, description="longest time to read a body (408), and to wait for the model (503)"
    )
    drain_seconds: float = Field(10.0, gt=0, le=600, description="after SIGTERM: time for running requests to finish")
    overfetch: int = Field(
        4, ge=1, description="/recommend: items that are retrieved for each one asked for, for the top network to rank"
    )

    @model_validator(mode="after")
    def _fits(self) -> ServeSettings:
        if self.queue > self.max_in_flight:
            raise ValueError(
                f"queue: {self.queue} requests cannot wait where max_in_flight lets in {self.max_in_flight}."
            )
        if self.workers > 1 and self.device != "cpu":
            raise ValueError(
                f"workers: {self.workers} processes would each hold the model on {self.device}, which one process keeps"
                " busy. Set workers to 1, or device to cpu."
            )
        return self
