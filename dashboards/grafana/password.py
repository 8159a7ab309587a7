"""Grafana's first password: GRAFANA_PASSWORD, or one made here once and printed.

It stands in a volume that Grafana alone reads, and Grafana takes it at its first start only: later
it is changed there, or with `grafana cli admin reset-admin-password`.
"""

import os
import secrets
from pathlib import Path

FILE = Path("/state/password")


def main() -> None:
    chosen = os.environ.get("GRAFANA_PASSWORD")
    if FILE.exists():
        print("Grafana's password was set at its first start; it is kept in the volume `password`")
        return
    password = chosen or secrets.token_urlsafe(12)
    partial = FILE.with_suffix(".part")
    partial.write_text(password)
    partial.chmod(0o444)  # Grafana is another user; the volume is mounted there alone
    partial.replace(FILE)
    print("Grafana: user admin,", "GRAFANA_PASSWORD" if chosen else f"password {password}")


if __name__ == "__main__":
    main()
