"""Certificates made by the openssl command."""

import subprocess
from pathlib import Path

from tests.support.programs import program


class Certificates:
    """A CA in ``folder``, and the certificates that it signed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._openssl = program("openssl")
        self.ca = folder / "ca.pem"
        self._run("req", "-x509", *self._new_key("ca"), "-out", str(self.ca), "-subj", "/CN=test CA")

    def issue(self, name: str) -> tuple[Path, Path]:
        """Return certificate and key for ``name``, good for localhost and 127.0.0.1."""
        request, certificate = self._folder / f"{name}.csr", self._folder / f"{name}.pem"
        extensions = self._folder / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._run("req", *self._new_key(name), "-out", str(request), "-subj", f"/CN={name}")
        signer = ("-CA", str(self.ca), "-CAkey", str(self._folder / "ca.key"), "-CAcreateserial")
        output = ("-out", str(certificate), "-days", "1", "-extfile", str(extensions))
        self._run("x509", "-req", "-in", str(request), *signer, *output)
        return certificate, self._folder / f"{name}.key"

    def _new_key(self, name: str) -> tuple[str, ...]:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        return (*curve, "-keyout", str(self._folder / f"{name}.key"))

    def _run(self, *arguments: str) -> None:
        subprocess.run([self._openssl, *arguments], check=True, capture_output=True)
