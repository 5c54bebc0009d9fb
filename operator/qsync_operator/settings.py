"""The settings of the operator, from its environment: the chart sets them."""

import os
import socket
from dataclasses import dataclass


class SettingsError(Exception):
    """The operator cannot start; the text says which variable is wrong."""


@dataclass(frozen=True, slots=True)
class SparkSupply:
    """What runs need: the image of drivers and executors, and the role that drivers are bound to.
    Without an image there are no runs."""

    image: str = ""
    role: str = ""


NO_SPARK = SparkSupply()


@dataclass(frozen=True, slots=True)
class Site:
    """What the operator's installation decides for all clusters."""

    namespace: str = ""  # of the operator; "" where it is not known
    is_template_restricted: bool = False  # podTemplate gives pods no privilege
    prometheus_namespace: str = ""  # of the Prometheus that may read metrics; "" for any


ANYWHERE = Site()


@dataclass(frozen=True, slots=True)
class Settings:
    """`namespaces` is empty where the whole Kubernetes cluster is looked after."""

    node_image: str
    spark: SparkSupply
    namespaces: tuple[str, ...]
    own_namespace: str
    own_name: str
    health_port: int
    metrics_port: int
    site: Site = ANYWHERE


def load_settings() -> Settings:
    """Raises SettingsError."""
    image = os.environ.get("QSYNC_NODE_IMAGE", "")
    if not image:
        raise SettingsError("QSYNC_NODE_IMAGE is empty: it names the image of nodes")
    names = os.environ.get("QSYNC_NAMESPACES", "").split(",")
    return Settings(
        node_image=image,
        spark=SparkSupply(
            os.environ.get("QSYNC_SPARK_IMAGE", ""), os.environ.get("QSYNC_SPARK_ROLE", "")
        ),
        namespaces=tuple(name.strip() for name in names if name.strip()),
        own_name=os.environ.get("POD_NAME") or socket.gethostname(),
        own_namespace=os.environ.get("POD_NAMESPACE", "default"),
        health_port=_port("QSYNC_HEALTH_PORT", "8080", "/healthz"),
        metrics_port=_port("QSYNC_METRICS_PORT", "8082", "/metrics"),
        site=Site(
            os.environ.get("POD_NAMESPACE", ""),
            os.environ.get("QSYNC_POD_TEMPLATE", "") == "restricted",
            os.environ.get("QSYNC_PROMETHEUS_NAMESPACE", ""),
        ),
    )


def _port(variable: str, default: str, what: str) -> int:
    text = os.environ.get(variable, default)
    if not text.isdigit():
        raise SettingsError(f"{variable} is {text!r}: it is the port of {what}")
    return int(text)
