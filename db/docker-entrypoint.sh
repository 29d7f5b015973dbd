#!/bin/sh
# Makes the cluster on the first start, then becomes postgres.
#
# A start that is interrupted is made good by the next: a cluster counts as made when PG_VERSION is there, its
# database when the file `prepared` names it. Nothing is done to a cluster that is ready, so that recovery after a
# crash is the server's own and takes as long as it takes.
set -eu
database=${POSTGRES_DB:-switchboard}
prepared=$PGDATA/prepared

password=${POSTGRES_PASSWORD:-}
if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
    if [ ! -r "$POSTGRES_PASSWORD_FILE" ]; then
        echo "POSTGRES_PASSWORD_FILE: user $(id -u) cannot read $POSTGRES_PASSWORD_FILE" >&2
        exit 1
    fi
    password=$(cat "$POSTGRES_PASSWORD_FILE")
fi
unset POSTGRES_PASSWORD

make_cluster() {
    # Whatever a start that was interrupted has left: there is no cluster yet, so there is no data in it.
    find "$PGDATA" -mindepth 1 -delete
    if [ -n "$password" ]; then
        passwords=$(mktemp)
        trap 'rm -f "$passwords"' EXIT
        printf '%s\n' "$password" >"$passwords"
        set -- --pwfile="$passwords"
    fi
    initdb -U postgres "$@" --auth-local=peer --auth-host=scram-sha-256 \
        --encoding=UTF8 --locale=C.UTF-8 --data-checksums --no-instructions
    if [ -n "$password" ]; then rm -f "$passwords"; fi
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    cat >>"$PGDATA/postgresql.conf" <<CONF
listen_addresses = '*'
unix_socket_directories = '/run/postgresql'
timezone = 'UTC'
log_timezone = 'UTC'
jit = off
log_parameter_max_length = 0
log_parameter_max_length_on_error = 0
shared_preload_libraries = 'pg_cron'
cron.database_name = '$database'
cron.use_background_workers = on
cron.log_statement = off
CONF
}

# pg_cron can live in one database only: where an argument gives it to another one, that one's owner creates it.
prepare_database() {
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
    printf '%s\n' "$database" >"$prepared.new"
    mv "$prepared.new" "$prepared"
}

[ -s "$PGDATA/PG_VERSION" ] || make_cluster
[ "$(cat "$prepared" 2>/dev/null)" = "$database" ] || prepare_database "$@"
exec postgres "$@"
