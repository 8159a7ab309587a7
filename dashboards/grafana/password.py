"""The first secrets of the stack: given by variables, or made here once and printed.

GRAFANA_PASSWORD is Grafana's, which it takes at its first start only: later it is changed there, or
with `grafana cli admin reset-admin-password`. LOADGEN_API_TOKEN is of loadgen's page and API; where
it is set, it is taken at every start. Each stands in a volume of its own container alone.
"""

import os
import secrets
from pathlib import Path

PASSWORD = Path("/state/password")
TOKEN = Path("/token/token")


def main() -> None:
    chosen = os.environ.get("GRAFANA_PASSWORD")
    if PASSWORD.exists():
        print("Grafana's password was set at its first start; it is kept in the volume `password`")
    else:
        password = chosen or secrets.token_urlsafe(12)
        write(PASSWORD, password, 0o444)  # Grafana is another user
        print("Grafana: user admin,", "GRAFANA_PASSWORD" if chosen else f"password {password}")
    chosen = os.environ.get("LOADGEN_API_TOKEN")
    if TOKEN.exists() and not chosen:
        print("loadgen's token was made at the first start; it is kept in the volume `token`")
    else:
        token = chosen or secrets.token_urlsafe(24)
        write(TOKEN, token, 0o400)
        print("loadgen:", "LOADGEN_API_TOKEN" if chosen else f"token {token}")


def write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all."""
    partial = path.with_suffix(".part")
    partial.unlink(missing_ok=True)
    partial.write_text(text)
    partial.chmod(mode)
    partial.replace(path)


if __name__ == "__main__":
    main()
