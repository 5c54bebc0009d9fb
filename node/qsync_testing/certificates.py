"""Certificates for TLS, made by openssl."""

import subprocess
from pathlib import Path


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def certificates(folder: Path, name: str, names: str = "DNS:orders") -> dict[str, str]:
    """Return the files of a new CA and of one certificate that it issues."""
    folder.mkdir()
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(ca_key), "-out",
            str(ca), "-days", "2", "-subj", f"/CN={name}",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    key, request, cert = folder / "key.pem", folder / "request.pem", folder / "cert.pem"
    issue(ca, ca_key, key, request, cert, names)
    return {"cert": str(cert), "key": str(key), "ca": str(ca)}


def issue(ca: Path, ca_key: Path, key: Path, request: Path, cert: Path, names: str) -> None:
    san = ["-addext", f"subjectAltName={names}"] if names else []
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(request),
            "-subj", "/CN=member", *san)  # fmt: skip
    openssl("x509", "-req", "-in", str(request), "-CA", str(ca), "-CAkey", str(ca_key),
            "-CAcreateserial", "-out", str(cert), "-days", "2", "-copy_extensions", "copy",
            )  # fmt: skip


def another_certificate(folder: Path, name: str, names: str) -> dict[str, str]:
    """Return the files of another certificate, issued by the CA in `folder`."""
    key, request, cert = (folder / f"{name}.{kind}" for kind in ("key", "request", "cert"))
    issue(folder / "ca.pem", folder / "ca.key", key, request, cert, names)
    return {"cert": str(cert), "key": str(key), "ca": str(folder / "ca.pem")}
