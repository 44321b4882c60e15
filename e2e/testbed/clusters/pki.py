"""A certificate authority for one control plane, made with the openssl command line."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

# 127.0.0.1: this machine. 10.77.0.1: the bridge that nodes in namespaces hang on. 10.96.0.1: the API server's Service.
_SERVER_NAMES = ("IP:127.0.0.1", "IP:10.77.0.1", "IP:10.96.0.1", "DNS:localhost", "DNS:kubernetes.default.svc")


class Authority:
    """Certificates for one control plane.

    Attributes:
        directory: where the files are; only the owner can read it.
        certificate: the authority's own certificate.
        key: its key.
    """

    def __init__(self, directory: Path) -> None:
        """Take over what an earlier run has left in ``directory``, or make a new authority there."""
        self.directory = directory
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.certificate.exists():
            self._openssl(
                "req", "-x509", *_NEW_KEY, "-keyout", self.key, "-out", self.certificate, "-days", "365",
                "-subj", "/CN=kubernetes-ca",
            )  # fmt: skip

    def server(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of the API server."""
        return self._issue(
            name, f"/CN={name}", f"subjectAltName={','.join(_SERVER_NAMES)}\nextendedKeyUsage=serverAuth"
        )

    def client(self, name: str, cn: str, org: str | None = None) -> tuple[Path, Path]:
        """Certificate and key of user ``cn``, member of group ``org``; ``name`` is that of the files."""
        return self._issue(name, f"/O={org}/CN={cn}" if org else f"/CN={cn}", "extendedKeyUsage=clientAuth")

    def signing_key(self, name: str) -> tuple[Path, Path]:
        """Public and private key to sign service account tokens with."""
        public, private = self.directory / f"{name}.pub", self.directory / f"{name}.key"
        if not public.exists():
            self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private)
            self._openssl("ec", "-in", private, "-pubout", "-out", public)
        return public, private

    def _issue(self, name: str, subject: str, extensions: str) -> tuple[Path, Path]:
        certificate, key = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        if not certificate.exists():
            request, options = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
            options.write_text(extensions + "\n")
            self._openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", subject)
            self._openssl(
                "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key, "-days", "365",
                "-set_serial", f"0x{os.urandom(16).hex()}", "-extfile", options, "-out", certificate,
            )  # fmt: skip
            request.unlink()
            options.unlink()
        return certificate, key

    def _openssl(self, *arguments: str | Path) -> None:
        done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, umask=0o077)
        if done.returncode:
            raise RuntimeError(f"openssl {' '.join(map(str, arguments))}: {done.stderr.strip()}")


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def kubeconfig(server: str, authority: bytes, user: dict[str, str], namespace: str = "default") -> str:
    """A kubeconfig of one context that needs no other file but those that ``user`` names."""
    cluster = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "concerto",
            "contexts": [
                {"name": "concerto", "context": {"cluster": "concerto", "user": "concerto", "namespace": namespace}}
            ],
            "clusters": [{"name": "concerto", "cluster": cluster}],
            "users": [{"name": "concerto", "user": user}],
        },
        indent=1,
    )


def certificate_user(certificate: Path, key: Path) -> dict[str, str]:
    """The user section of a kubeconfig that authenticates by a certificate, both inline."""
    return {
        "client-certificate-data": base64.b64encode(certificate.read_bytes()).decode(),
        "client-key-data": base64.b64encode(key.read_bytes()).decode(),
    }
