-- For SQL tests whose statements meet now one session of the server, now another: through a pooler that lends them for a
-- transaction (scripts/with-pgbouncer). What pgTAP and the helpers keep in their session is kept in the database instead,
-- which belongs to one test file; what the tests keep there themselves, they may not (scripts/psql-in-clone).

create sequence tap.__tcache___id_seq;
create table tap.__tcache__ (id integer primary key default nextval('tap.__tcache___id_seq'), label text not null, value integer not null, note text not null default '');
create sequence tap.__tresults___numb_seq;
grant all on table tap.__tcache__ to public;
grant all on sequence tap.__tcache___id_seq, tap.__tresults___numb_seq to public;

-- pgTAP makes those three as temporary ones here, and does no more than this.
create or replace function tap.plan(integer) returns text language sql as $$
    select format('1..%s', $1) from (select tap._set('plan', $1), tap._set('failed', 0)) done
$$;

-- The clock of the database, where 02_clock has that of the session.
create or replace function test.at(p_time timestamptz) returns timestamptz language sql as $$
    update switchboard.settings set is_test = true, test_now = p_time returning test_now
$$;
create or replace function test.pass(p_span interval) returns timestamptz language sql as $$
    select test.at(coalesce((select s.test_now from switchboard.settings s), '2026-03-02T12:00:00Z') + p_span)
$$;
create or replace function test.real_time() returns void language sql as $$ update switchboard.settings set test_now = null $$;

-- Logins by the database's number, where 04_logins has that of the session.
create or replace function test.login_name(p_name text) returns text language sql stable as $$
    select format('test_%s_%s', p_name, d.oid) from pg_catalog.pg_database d where d.datname = current_database()
$$;
create or replace function test.login(p_name text, p_role text) returns text language plpgsql as $$
begin
    execute format('create role %I login', test.login_name(p_name));
    execute format('grant %I to %I', p_role, test.login_name(p_name));
    return test.login_name(p_name);
end
$$;
