# What the scripts share: where things are, and how to fail in one line. Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools_env="$root/.venv"
servers_env="$root/.venv-servers"
export LOADGEN_CACHE="${LOADGEN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/loadgen}"

say() { printf '== %s\n' "$*" >&2; }

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}
