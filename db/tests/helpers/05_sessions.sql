-- A second session of this database, by dblink: for what a session cannot see of itself, such as the notifications it sends.

create extension dblink schema test;

create function test.connect(p_session text, p_login text default session_user) returns text language sql as $$
    select test.dblink_connect(p_session, format('host=%s port=%s dbname=%I user=%I options=''-c lock_timeout=20s''',
        btrim(split_part(current_setting('unix_socket_directories'), ',', 1), '"'), current_setting('port'), current_database(), p_login))
$$;

-- Runs a statement without a result in that session.
create function test.there(p_session text, p_sql text) returns text language sql as $$ select test.dblink_exec(p_session, p_sql) $$;

-- Starts to listen; test.heard() gives the payloads that have arrived since it was last asked, sorted.
create function test.listen(p_channel text) returns text language sql as $$
    select test.connect(p_channel);
    select test.there(p_channel, 'listen ' || quote_ident(p_channel))
$$;

create function test.heard(p_channel text) returns text[] language sql as $$
    select test.there(p_channel, 'listen ' || quote_ident(p_channel)); -- a round trip: what was sent before has arrived after it
    select coalesce(array_agg(n.extra order by n.extra), '{}') from test.dblink_get_notify(p_channel) n where n.notify_name = p_channel
$$;
