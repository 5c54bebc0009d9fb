"""Certificates: renewal, announcement of new authorities, and refusal of unusable ones."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from qsync_operator.resources.authority import (
    ANNOUNCED,
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    CLOCK_SKEW,
    Bundle,
    CertificateAuthority,
    CertificateError,
    expiry,
    refuse_unusable,
    renew,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["orders-leader", "*.orders"]


def made(now: datetime = NOW) -> tuple[CertificateAuthority, Bundle]:
    return renew(None, None, "orders", NAMES, now)


def trusted(bundle: Bundle) -> int:
    return len(x509.load_pem_x509_certificates(bundle.authorities.encode()))


def test_what_is_made_can_be_used_and_is_left_alone() -> None:
    authority, bundle = made()
    refuse_unusable(bundle, NOW, NAMES)
    assert renew(authority, bundle, "orders", NAMES, NOW + timedelta(days=1)) == (authority, bundle)
    assert expiry(bundle) == NOW + CERTIFICATE_LIFE


def test_a_certificate_is_renewed_before_it_expires_and_for_other_names() -> None:
    authority, bundle = made()
    later = NOW + CERTIFICATE_LIFE * 2 / 3
    same, fresh = renew(authority, bundle, "orders", NAMES, later)
    assert same == authority
    assert expiry(fresh) > expiry(bundle)
    _, renamed = renew(authority, bundle, "orders", ["other"], NOW)
    assert renamed.certificate != bundle.certificate


def test_a_new_authority_is_announced_before_it_signs() -> None:
    _, bundle = made()
    # The Secret of the authority was deleted, but the bundle still has the trusted authorities.
    at = NOW + timedelta(days=1)
    authority, announced = renew(None, bundle, "orders", NAMES, at)
    assert announced.certificate == bundle.certificate
    assert trusted(announced) == 2
    refuse_unusable(announced, at, NAMES)
    almost = at + ANNOUNCED - timedelta(seconds=1)
    assert renew(authority, announced, "orders", NAMES, almost) == (authority, announced)
    _, signed = renew(authority, announced, "orders", NAMES, at + ANNOUNCED)
    assert signed.certificate != bundle.certificate
    assert trusted(signed) == 2, "the old one is trusted until it expires"
    refuse_unusable(signed, at + ANNOUNCED, NAMES)


def test_an_authority_signs_nothing_that_members_have_not_seen_announced() -> None:
    _, bundle = made()
    authority, _ = renew(None, bundle, "orders", NAMES, NOW)
    # The announcing bundle was never stored: even an old authority must not sign.
    _, late = renew(authority, bundle, "orders", NAMES, NOW + timedelta(days=1))
    assert late.certificate == bundle.certificate
    assert trusted(late) == 2


def test_an_authority_is_replaced_in_time_and_forgotten_when_it_expired() -> None:
    authority, _ = made()
    # The authority is valid from CLOCK_SKEW before NOW, because clocks differ.
    due = NOW - CLOCK_SKEW + (AUTHORITY_LIFE + CLOCK_SKEW) * 2 / 3
    recent, bundle = renew(authority, None, "orders", NAMES, due)
    assert recent != authority
    assert trusted(bundle) == 2
    after = NOW + AUTHORITY_LIFE + timedelta(days=1)
    _, last = renew(recent, bundle, "orders", NAMES, after)
    assert trusted(last) == 1


def pem_of(key: rsa.RSAPrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(
        serialization.Encoding.PEM, form, serialization.NoEncryption()
    ).decode()


def test_authority_that_cannot_sign_is_refused() -> None:
    authority, bundle = made()
    other, _ = made()
    rsa_key = pem_of(rsa.generate_private_key(65537, 2048))
    for key, sentence in (
        ("no key", "ca.key is not PEM"),
        (rsa_key, "no key of an elliptic curve"),
        (other.key, "does not belong"),
    ):
        with pytest.raises(CertificateError, match=sentence):
            renew(replace(authority, key=key), None, "orders", NAMES, NOW)
    with pytest.raises(CertificateError, match="not PEM"):
        renew(replace(authority, previous="no certificate"), bundle, "orders", NAMES, NOW)
    with pytest.raises(CertificateError, match="not PEM"):
        renew(other, replace(bundle, authorities="nothing"), "orders", NAMES, NOW)


def test_what_a_user_gives_is_checked() -> None:
    _, bundle = made()
    _, other = made()
    with pytest.raises(CertificateError, match="does not belong"):
        refuse_unusable(Bundle(bundle.authorities, bundle.certificate, other.key), NOW, NAMES)
    with pytest.raises(CertificateError, match="is not signed by"):
        refuse_unusable(Bundle(other.authorities, bundle.certificate, bundle.key), NOW, NAMES)
    with pytest.raises(CertificateError, match="expired on"):
        refuse_unusable(bundle, NOW + CERTIFICATE_LIFE, NAMES)
    with pytest.raises(CertificateError, match="not PEM"):
        refuse_unusable(Bundle(bundle.authorities, "nothing", bundle.key), NOW, NAMES)
