#!/bin/sh
# Makes the cluster on the first start, then becomes postgres. Needs POSTGRES_PASSWORD.
set -eu
database=${POSTGRES_DB:-switchboard}

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    if [ -z "${POSTGRES_PASSWORD:-}" ]; then
        echo "Set POSTGRES_PASSWORD: docker run -e POSTGRES_PASSWORD=… (openssl rand -hex 16 makes one)." >&2
        exit 1
    fi
    # Whatever a start that was interrupted has left: there is no cluster yet, so there is no data in it.
    find "$PGDATA" -mindepth 1 -delete
    passwords=$(mktemp)
    trap 'rm -f "$passwords"' EXIT
    printf '%s\n' "$POSTGRES_PASSWORD" >"$passwords"
    initdb -U postgres --pwfile="$passwords" --auth-local=peer --auth-host=scram-sha-256 \
        --encoding=UTF8 --locale=C.UTF-8 --data-checksums --no-instructions
    rm -f "$passwords"
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    cat >>"$PGDATA/postgresql.conf" <<CONF
listen_addresses = '*'
unix_socket_directories = '/run/postgresql'
timezone = 'UTC'
log_timezone = 'UTC'
log_parameter_max_length = 0
shared_preload_libraries = 'pg_cron'
cron.database_name = '$database'
cron.use_background_workers = on
CONF
fi

# Every start makes sure of the database and of pg_cron in it; pg_cron can live in one database only,
# so where an argument gives it to another one, that one's owner creates the extension.
pg_ctl -w -s start -o "-c listen_addresses=''"
if ! psql -XAtq -d postgres -v name="$database" <<'SQL' | grep -q 1; then
select 1 from pg_database where datname = :'name'
SQL
    createdb --encoding=UTF8 --template=template0 "$database"
fi
if [ "$(postgres -C cron.database_name "$@")" = "$database" ]; then
    psql -XAtq -d "$database" -c "set client_min_messages = warning; create extension if not exists pg_cron"
fi
pg_ctl -w -s -m fast stop

unset POSTGRES_PASSWORD
exec postgres "$@"
