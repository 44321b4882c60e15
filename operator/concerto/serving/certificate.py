"""A key and a certificate signed with it, made by the very OpenSSL that Python's ssl is linked with.

ssl itself cannot make any. A package that can would stay in the agent's memory, and the agent's image has no program
but Python.
"""

from __future__ import annotations

import _ssl
import ctypes
import hashlib
import os
import ssl
from dataclasses import dataclass

_YEARS = 10
_MBSTRING_ASC = 0x1001  # <openssl/asn1.h>


class CertificateError(Exception):
    """No certificate could be made; the message says why."""


@dataclass(frozen=True)
class Certificate:
    """What a server is known by.

    Attributes:
        context: for the server's side of TLS.
        sha256: fingerprint, hexadecimal.
    """

    context: ssl.SSLContext
    sha256: str


def make_certificate(name: str = "concerto") -> Certificate:
    """A new key on P-256 and its certificate, good for ten years; both only in memory.

    Raises:
        CertificateError: OpenSSL is older than 3.0, or fails.
    """
    try:
        pem = _make(name)
    except AttributeError as error:
        raise CertificateError(f"{ssl.OPENSSL_VERSION} is too old: {error}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # A file in memory: ssl takes keys only by path
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    except (ssl.SSLError, OSError) as error:
        raise CertificateError(f"the certificate that was made is not usable: {error}") from error
    finally:
        os.close(descriptor)
    text = pem.decode()
    der = ssl.PEM_cert_to_DER_cert(text[text.index("-----BEGIN CERTIFICATE-----") :])
    return Certificate(context, hashlib.sha256(der).hexdigest())


def _make(name: str) -> bytes:
    """Key and certificate as PEM, one after the other; see the manual pages of the functions, section 3."""
    openssl = ctypes.CDLL(getattr(_ssl, "__file__", None))

    def call(function: str, result: type, *arguments: object) -> int:
        """A function whose result is 0 only when it fails; integers are passed as 64 bits wide."""
        found = getattr(openssl, function)
        found.restype = result
        given = found(*(ctypes.c_int64(a) if isinstance(a, int) else a for a in arguments))
        if not given:
            raise CertificateError(f"OpenSSL: {function} failed")
        return int(given)

    def make(function: str, *arguments: object) -> int:
        return call(function, ctypes.c_void_p, *arguments)

    def do(function: str, *arguments: object) -> int:
        return call(function, ctypes.c_int, *arguments)

    key = make("EVP_PKEY_Q_keygen", None, None, b"EC", b"P-256")
    certificate = make("X509_new")
    output = make("BIO_new", make("BIO_s_mem"))
    try:
        do("X509_set_version", certificate, 2)  # the third
        do("ASN1_INTEGER_set", make("X509_get_serialNumber", certificate), int.from_bytes(os.urandom(7)) + 1)
        make("X509_gmtime_adj", make("X509_getm_notBefore", certificate), -60)
        make("X509_gmtime_adj", make("X509_getm_notAfter", certificate), _YEARS * 365 * 86400)
        subject = make("X509_get_subject_name", certificate)
        do("X509_NAME_add_entry_by_txt", subject, b"CN", _MBSTRING_ASC, name.encode(), -1, -1, 0)
        do("X509_set_issuer_name", certificate, subject)
        do("X509_set_pubkey", certificate, key)
        do("X509_sign", certificate, key, make("EVP_sha256"))
        do("PEM_write_bio_PrivateKey", output, key, None, None, 0, None, None)
        do("PEM_write_bio_X509", output, certificate)
        pem = ctypes.create_string_buffer(8192)
        length = do("BIO_read", output, pem, len(pem))
        return pem.raw[:length]
    finally:
        for free, what in (("BIO_free", output), ("X509_free", certificate), ("EVP_PKEY_free", key)):
            getattr(openssl, free)(ctypes.c_void_p(what))
