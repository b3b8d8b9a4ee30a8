"""Functions that make, sign and read certificates; alone imports the package `cryptography`.

`telegrad.transport.security.certificates` imports this file on first use.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from telegrad.transport.security.certificate import Certificate, KeyPair

DAY: Final = datetime.timedelta(days=1)
# The clocks of two hosts differ, and a time zone is set wrong now and then.
BACKDATED: Final = DAY
# A key that lives only in one process' memory cannot be stolen, and an expired certificate would
# make that process unreachable for new dials. So the validity is longer than processes run.
SELF_SIGNED_DAYS = 366.0
SELF_SIGNED_NAME = "telegrad"


def make_authority(*, days: float) -> KeyPair:
    """Makes an authority that signs certificates of workers, and no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"telegrad CA {x509.random_serial_number() % 2**32:08x}")  # unique
    builder = _builder(subject, subject, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    return _signed(builder.add_extension(_usage(authority=True), critical=True), key, key)


def make_certificate(
    authority: KeyPair, names: Sequence[str], *, addresses: Sequence[str], days: float
) -> KeyPair:
    """Makes a key, and a certificate in which an authority signs that its holder has these names.

    Raises:
        ValueError: The authority's files are not a certificate and its key.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key was not made by `telegrad certs init`")
    key = ec.generate_private_key(ec.SECP256R1())
    holders = [x509.DNSName(name) for name in names] + [_address(each) for each in addresses]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    builder = (
        _builder(_subject(names[0]), signer.subject, key, days)
        .add_extension(x509.SubjectAlternativeName(holders), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(signed_by, critical=False)
    )
    return _signed(builder, key, signing)


def make_self_signed() -> KeyPair:
    """Makes the certificate of one process, signed by itself and by no authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(SELF_SIGNED_NAME)
    holder = x509.SubjectAlternativeName([x509.DNSName(SELF_SIGNED_NAME)])
    builder = (
        _builder(subject, subject, key, SELF_SIGNED_DAYS)
        .add_extension(holder, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    return _signed(builder, key, key)


def read_certificate(data: bytes) -> Certificate:
    """Reads a certificate in PEM or DER form; the first one if there are several.

    Raises:
        ValueError: The data is not a certificate.
    """
    pem = b"-----BEGIN" in data
    found = x509.load_pem_x509_certificate(data) if pem else x509.load_der_x509_certificate(data)
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    authority = False
    for extension in found.extensions:
        match extension.value:
            case x509.SubjectAlternativeName() as holders:
                names = tuple(holders.get_values_for_type(x509.DNSName))
                addresses = tuple(map(str, holders.get_values_for_type(x509.IPAddress)))
            case x509.BasicConstraints(ca=bool(authority)):
                pass
    return Certificate(
        names=names,
        addresses=addresses,
        issuer=_common_name(found.issuer),
        valid_from=found.not_valid_before_utc,
        valid_until=found.not_valid_after_utc,
        authority=authority,
        fingerprint=found.fingerprint(hashes.SHA256()).hex(),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    until = now + days * DAY
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, until) - BACKDATED)
        .not_valid_after(until)
        .add_extension(identifier, critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    pem = serialization.Encoding.PEM
    form, cipher = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    certificate = builder.sign(signing, hashes.SHA256())
    return KeyPair(certificate.public_bytes(pem), key.private_bytes(pem, form, cipher))


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else name.rfc4514_string()


def _address(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
