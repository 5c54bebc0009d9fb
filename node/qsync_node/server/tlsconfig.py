"""Configuration of TLS, which nodes and brokers share.

It is apart from the node's own: a broker starts without the modules that this one needs.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class TlsConfig(BaseModel):
    """Certificates of this node; `ca` verifies those of peers.

    With `listen` the TLS port is separate from the plain one, and `peers` name TLS ports. Without
    it, or with `is_required`, the main port accepts TLS only. The admin port always accepts TLS,
    and plain HTTP for probes. A peer's certificate must have one of `names`. If `names` is empty,
    it must have one of the names in `cert`.
    """

    model_config = ConfigDict(extra="allow")

    cert: Path
    key: Path
    ca: Path
    listen: str | None = None
    is_required: bool = False
    names: list[str] = Field(default_factory=list)
