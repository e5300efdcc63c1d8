"""Certificates for tests and trials: a new authority (CA) and a server certificate that it issues.

In production the operator's own CA issues the server's certificate.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privirec.durable import private_folder, write_whole
from privirec.errors import UsageError


def make_certificates(
    folder: Path,
    names: Sequence[str] = ("localhost", "127.0.0.1"),
    *,
    days: float = 365,
    now: dt.datetime | None = None,
) -> None:
    """Write `ca.crt`, `server.crt` and `server.key`.

    The CA's private key is discarded, so that it can never issue another certificate.
    """
    private_folder(folder)
    begin = (now or dt.datetime.now(dt.UTC)) - dt.timedelta(minutes=5)
    end = begin + dt.timedelta(days=days)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = _name("PriviRec test authority")
    ca = (
        _builder(issuer, issuer, authority.public_key(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(issuer, _name(names[0]), key.public_key(), begin, end)
        .add_extension(x509.SubjectAlternativeName([_subject(name) for name in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False
        )
        .sign(authority, hashes.SHA256())
    )
    write_whole(folder / "ca.crt", ca.public_bytes(Encoding.PEM))
    write_whole(folder / "server.crt", certificate.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_whole(folder / "server.key", private)


def check_certificate(path: Path, key: Path | None = None) -> x509.Certificate:
    """Return a server's certificate; raise UsageError for one that every client would refuse.

    `key` is the file of its private key, which must belong to it.
    """
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise UsageError(f"{path}: not a certificate") from None
    now = dt.datetime.now(dt.UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        begin, end = found.not_valid_before_utc.date(), found.not_valid_after_utc.date()
        raise UsageError(f"{path}: valid from {begin} to {end}, not today; renew it")
    if key is not None:
        try:
            own = load_pem_private_key(key.read_bytes(), None).public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise UsageError(f"{key}: not a private key without a password") from None
        if own != found.public_key():
            raise UsageError(f"{key}: not the key of the certificate {path.name}; bring both again")
    return found


def names_in(certificate: x509.Certificate) -> list[str]:
    """Return the host names and addresses of a certificate."""
    try:
        kind = x509.SubjectAlternativeName
        found = certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def certified_host(path: Path) -> str:
    """Return the first name for which a server's certificate is valid."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        first = next(iter(names))
    except FileNotFoundError:
        raise UsageError(f"{path}: missing; make one: privirec server certificates") from None
    except (ValueError, x509.ExtensionNotFound, StopIteration):
        raise UsageError(f"{path}: a certificate that names no host") from None
    host = str(first.value)
    return f"[{host}]" if ":" in host else host


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _subject(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
