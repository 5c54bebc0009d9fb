"""The cluster's own authority, and the certificate that its members share; pure functions.

Invariants:
1. A new authority signs a certificate only after it was announced for `ANNOUNCED`. By then every
   member has read a bundle with it, so all members can verify each other's certificates.
2. A replaced authority stays in the bundle until it expires.
3. A valid certificate is signed again only after two thirds of its validity, or if its names
change.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from qsync_node.certnames import identifying_names, shared_names, subject_names

AUTHORITY_LIFE = timedelta(days=5 * 365)
CERTIFICATE_LIFE = timedelta(days=90)
ANNOUNCED = timedelta(minutes=10)
CLOCK_SKEW = timedelta(minutes=5)


class CertificateError(Exception):
    """Certificates that cannot be used; the text states which ones and why."""


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """An authority, as PEM texts; `previous` holds the certificates of replaced authorities."""

    certificate: str
    key: str
    previous: str = ""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The PEM files of a member: trusted authorities, and its own certificate and key."""

    authorities: str
    certificate: str
    key: str


def renew(
    authority: CertificateAuthority | None,
    bundle: Bundle | None,
    cluster: str,
    names: list[str],
    now: datetime,
) -> tuple[CertificateAuthority, Bundle]:
    """Return the authority and the bundle to store; they are unchanged if no renewal is due.

    Args:
        authority: stored authority, or None to create one.
        bundle: stored bundle, or None to create one.
        cluster: name of the cluster.
        names: host names for the certificate, then addresses.
        now: current time.

    Raises:
        CertificateError: a stored certificate is not PEM, or the authority cannot sign.
    """
    trusted = bundle.authorities if bundle is not None else ""
    if authority is None or _is_due(_one(authority.certificate), now):
        before = [authority.certificate, authority.previous] if authority is not None else []
        kept = _unexpired([*before, trusted], now)
        authority = _found(cluster, kept, now)
    kept = _unexpired([authority.certificate, authority.previous], now)
    if bundle is None or _must_sign(authority, bundle, names, now):
        certificate, key = _sign(authority, cluster, names, now)
        return authority, Bundle(kept, certificate, key)
    return authority, Bundle(kept, bundle.certificate, bundle.key)


def expiry(bundle: Bundle) -> datetime:
    """Return when the bundle's certificate expires.

    Raises:
        CertificateError: the certificate is not PEM.
    """
    return _one(bundle.certificate).not_valid_after_utc


def refuse_unusable(bundle: Bundle, now: datetime, names: list[str]) -> None:
    """Refuse a bundle that members could not use.

    A certificate without any of `names` is refused as well, because its owner is unknown.

    Raises:
        CertificateError: the bundle cannot be used; the text states why.
    """
    certificate = _one(bundle.certificate)
    try:
        key = serialization.load_pem_private_key(bundle.key.encode(), None)
        authorities = x509.load_pem_x509_certificates(bundle.authorities.encode())
    except (ValueError, TypeError) as error:
        raise CertificateError(f"tls.key or ca.crt is not PEM: {error}") from error
    if key.public_key() != certificate.public_key():
        raise CertificateError("tls.key does not belong to tls.crt")
    if certificate.not_valid_after_utc <= now:
        raise CertificateError(f"tls.crt expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if not any(_is_issued(certificate, one) for one in authorities):
        raise CertificateError(
            "tls.crt is not signed by ca.crt: members would refuse it; issue it with this authority"
        )
    if not names_of(bundle, names):
        hosts = [name for name in names if name in identifying_names(names)]
        raise CertificateError(
            "tls.crt contains no host name of the cluster with its namespace: issue it "
            f"for {', '.join(hosts[:4])}"
        )


def names_of(bundle: Bundle, names: list[str]) -> frozenset[str]:
    """Return those of the cluster's `names` by which members with `bundle` are identified.

    If the certificate has names with a namespace, only those count. Older certificates have none.

    Raises:
        CertificateError: the certificate cannot be read.
    """
    try:
        return shared_names(subject_names(_one(bundle.certificate)), names)
    except ValueError as error:
        raise CertificateError(f"cannot read tls.crt: {error}") from error


def _must_sign(
    authority: CertificateAuthority, bundle: Bundle, names: list[str], now: datetime
) -> bool:
    certificate, issuer = _one(bundle.certificate), _one(authority.certificate)
    if _is_issued(certificate, issuer):
        return _is_due(certificate, now) or subject_names(certificate) != names
    is_known = issuer.fingerprint(hashes.SHA256()) in {
        one.fingerprint(hashes.SHA256()) for one in _all(bundle.authorities)
    }
    was_announced = is_known and now - issuer.not_valid_before_utc >= CLOCK_SKEW + ANNOUNCED
    return was_announced or certificate.not_valid_after_utc <= now


def _is_issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # noqa: BLE001  # verification can fail with several classes of errors
        return False
    return True


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    validity = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return now >= certificate.not_valid_before_utc + validity * 2 / 3


def _one(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise CertificateError(f"a certificate is not PEM: {error}") from error


def _all(pem: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem.encode()) if pem.strip() else []
    except ValueError as error:
        raise CertificateError(f"a list of certificates is not PEM: {error}") from error


def _unexpired(pems: Iterable[str], now: datetime) -> str:
    """Return the unexpired certificates of these texts, each once, in their order."""
    found: dict[bytes, str] = {}
    for pem in pems:
        for one in _all(pem):
            if one.not_valid_after_utc > now:
                found[one.fingerprint(hashes.SHA256())] = _pem(one)
    return "".join(found.values())


def _found(cluster: str, previous: str, now: datetime) -> CertificateAuthority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"{cluster} authority of {now:%Y-%m-%d %H:%M}")
    certificate = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return CertificateAuthority(_pem(certificate), _key_pem(key), previous)


def _sign(
    authority: CertificateAuthority, cluster: str, names: list[str], now: datetime
) -> tuple[str, str]:
    issuer = _one(authority.certificate)
    signer = _signer(authority, issuer)
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        _builder(_name(cluster), issuer.subject, key.public_key(), now, CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([_subject(name) for name in names]), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _signer(
    authority: CertificateAuthority, issuer: x509.Certificate
) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(authority.key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"ca.key is not PEM: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("ca.key is no key of an elliptic curve")
    if key.public_key() != issuer.public_key():
        raise CertificateError("ca.key does not belong to ca.crt")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    validity: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + validity)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
