"""Authorities and certificates, made when a test asks for them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Authority:
    """Issues certificates for brokers and writes them as the settings want them."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        """`directory` gets the files."""
        self._directory = directory
        self._ca = trustme.CA(organization_name=name)
        self.ca_file = directory / f"{name}.pem"
        self.ca_file.write_bytes(self._ca.cert_pem.bytes())

    def issue(
        self, name: str, *hosts: str, is_expired: bool = False, days: tuple[int, int] | None = None
    ) -> tuple[str, str]:
        """Files of a certificate and its key.

        Args:
            hosts: that it is for, 127.0.0.1 unless named. The common name is `name`.
            days: from when until when it is valid, from now.
        """
        begin, end = (-2, -1) if is_expired else days or (-1, 3650)
        now = datetime.now(UTC)
        made = self._ca.issue_cert(
            *(hosts or ("127.0.0.1",)),
            common_name=name,
            not_before=now + timedelta(days=begin),
            not_after=now + timedelta(days=end),
        )
        cert, key = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        cert.write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        key.touch(mode=0o600)
        key.write_bytes(made.private_key_pem.bytes())
        return str(cert), str(key)

    def settings(
        self, name: str, *hosts: str, is_expired: bool = False, trusts: "Authority | None" = None
    ) -> dict[str, str]:
        """Settings of a broker with a fresh certificate, who trusts this authority or another one."""
        cert, key = self.issue(name, *hosts, is_expired=is_expired)
        return {"haTlsCertFile": cert, "haTlsKeyFile": key, "haTlsCaFile": str((trusts or self).ca_file)}
