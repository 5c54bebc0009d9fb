"""The settings of the operator, from environment variables that the chart sets."""

import os
import socket
from dataclasses import dataclass


class SettingsError(Exception):
    """The operator cannot start; the text states the invalid variable."""


@dataclass(frozen=True, slots=True)
class SparkSupply:
    """The image of Spark's drivers and executors, and the role of drivers.

    Without an image, no audit or compaction runs.
    """

    image: str = ""
    role: str = ""


NO_SPARK = SparkSupply()


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of the operator's installation that apply to all clusters."""

    namespace: str = ""  # namespace of the operator; "" if unknown
    is_template_restricted: bool = False  # podTemplate grants no privileges
    prometheus_namespace: str = ""  # namespace of the Prometheus that may read metrics; "" for any
    has_web_page: bool = False  # whether pods of the web page read from members
    runbook_url: str = ""  # URL of runbooks with `{alert}` in it; "" if alerts have no URL


ANYWHERE = Site()


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The operator's settings; empty `namespaces` select the whole Kubernetes cluster."""

    node_image: str
    spark: SparkSupply
    namespaces: tuple[str, ...]
    own_namespace: str
    own_name: str
    health_port: int
    metrics_port: int
    site: Site = ANYWHERE


def load_settings() -> ProcessSettings:
    """Read the settings from the environment.

    Raises:
        SettingsError: a variable is missing or invalid.
    """
    image = os.environ.get("QSYNC_NODE_IMAGE", "")
    if not image:
        raise SettingsError("QSYNC_NODE_IMAGE is empty: set it to the image of nodes")
    return ProcessSettings(
        node_image=image,
        spark=SparkSupply(
            os.environ.get("QSYNC_SPARK_IMAGE", ""), os.environ.get("QSYNC_SPARK_ROLE", "")
        ),
        namespaces=_namespaces(),
        own_name=os.environ.get("POD_NAME") or socket.gethostname(),
        own_namespace=os.environ.get("POD_NAMESPACE", "default"),
        health_port=_port("QSYNC_HEALTH_PORT", "8080", "/healthz"),
        metrics_port=_port("QSYNC_METRICS_PORT", "8082", "/metrics"),
        site=Site(
            os.environ.get("POD_NAMESPACE", ""),
            os.environ.get("QSYNC_POD_TEMPLATE", "") == "restricted",
            os.environ.get("QSYNC_PROMETHEUS_NAMESPACE", ""),
            os.environ.get("QSYNC_WEB", "") == "enabled",
            _runbook_url(),
        ),
    )


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The settings of the web page; empty `namespaces` select the whole Kubernetes cluster."""

    namespaces: tuple[str, ...]
    port: int
    health_port: int


def load_web_settings() -> WebSettings:
    """Read the settings of the web page from the environment.

    Raises:
        SettingsError: a variable is invalid.
    """
    return WebSettings(
        _namespaces(),
        _port("QSYNC_WEB_PORT", "8083", "the page"),
        _port("QSYNC_HEALTH_PORT", "8080", "/healthz"),
    )


def _runbook_url() -> str:
    text = os.environ.get("QSYNC_RUNBOOK_URL", "")
    if text and (not text.startswith(("http://", "https://")) or "{alert}" not in text):
        raise SettingsError(
            f"invalid QSYNC_RUNBOOK_URL {text!r}: set it to a URL with {{alert}} for the name of"
            " the alert"
        )
    return text


def _namespaces() -> tuple[str, ...]:
    names = os.environ.get("QSYNC_NAMESPACES", "").split(",")
    return tuple(name.strip() for name in names if name.strip())


def _port(variable: str, default: str, what: str) -> int:
    text = os.environ.get(variable, default)
    if not text.isdigit():
        raise SettingsError(f"invalid {variable} {text!r}: set it to the port of {what}")
    return int(text)
