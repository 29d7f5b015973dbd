-- Doctor: what is wrong with an installation, as far as its database can know.
--
-- doctor_facts() answers one row a check or more: its name, a level (ok; warning: it works, but late, or at a
-- risk; error: something does not work), what was found, and what to do about it, NULL where there is nothing to
-- do. `switchboard doctor` and the board's page of health print these and add what only a process knows: its
-- folder, its keys, whether the server hears what the database says, and who holds an old snapshot, which a
-- function of the owner may not see. Nothing is changed, nothing waits for a lock of a todo, and no todos are
-- read but the heads of queues that were nudged; a part that fails is a row that says so, and takes no other
-- with it. Sizes are estimates, from the statistics of the last ANALYZE.

create or replace function switchboard.doctor_facts()
returns table (name text, level text, found text, advice text)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_part text;
begin
    foreach v_part in array array['sweeps', 'work', 'settings', 'limits', 'indexes', 'bloat'] loop
        begin
            case v_part
                when 'sweeps'   then return query select * from sweep_facts();
                when 'work'     then return query select * from work_facts();
                when 'settings' then return query select * from setting_facts();
                when 'limits'   then return query select * from limit_facts();
                when 'indexes'  then return query select * from index_facts();
                when 'bloat'    then return query select * from bloat_facts();
            end case;
        exception when others then
            return query select v_part, 'error', 'cannot be looked at: ' || sqlstate, 'run `switchboard migrate`, then look again; the log of PostgreSQL says more';
        end;
    end loop;
end $$;
comment on function switchboard.doctor_facts() is
'What is wrong with the installation and what to do about it, one row a check or more: name, level (ok, warning or error), found, advice (NULL: nothing to do). Changes nothing. Reads sweeps, settings, endpoints, admission_policies, notify_hooks, notify_deliveries, queue_stall_nudges, the heads of their queues in todos, and the catalog.';

create or replace function switchboard.level_of(p_value double precision, p_warning double precision, p_error double precision) returns text
language sql immutable set search_path = switchboard, pg_temp
as $$
    select case when p_value >= p_error then 'error' when p_value >= p_warning then 'warning' else 'ok' end
$$;
comment on function switchboard.level_of(double precision, double precision, double precision) is 'The level of a number that should be small: error from p_error on, warning from p_warning on, else ok; a NULL limit is none.';

create or replace function switchboard.finding(p_name text, p_level text, p_found text, p_advice text, out name text, out level text, out found text, out advice text)
language sql immutable set search_path = switchboard, pg_temp
as $$
    select p_name, p_level, p_found, case when p_level <> 'ok' then p_advice end
$$;
comment on function switchboard.finding(text, text, text, text) is 'A row of doctor_facts(): the advice belongs to what is not ok.';

create or replace function switchboard.sweep_facts()
returns table (name text, level text, found text, advice text)
language sql stable set search_path = switchboard, pg_temp
as $$
    select 'sweep ' || s.name, 'warning', format('its last run failed with SQLSTATE %s', s.last_error),
           'the next tick tries again; if it goes on, the log of PostgreSQL says what failed'
    from sweeps s where s.last_error is not null
    union all
    select f.* from (select extract(epoch from sweep_age())::integer as age) a cross join lateral finding('sweeps',
        case when a.age <= 90 then 'ok' else 'warning' end,
        coalesce('all of them ran within the last ' || a.age || ' s', 'not all of them have ever run'),
        'nothing is lost, only late: run `switchboard serve`, or let a scheduler run `switchboard tick` every 30 s') f
$$;
comment on function switchboard.sweep_facts() is 'Whether the sweeps run (late: over 90 s ago), and which of them failed last time. Reads sweeps.';

create or replace function switchboard.work_facts()
returns table (name text, level text, found text, advice text)
language sql stable set search_path = switchboard, pg_temp
as $$
    select 'budget of ' || e.slug || ', ' || p.queue, 'error', 'it cannot be read, most likely because its time zone is gone: nothing is admitted',
           format('set it again with a zone that exists: switchboard queue budget set %s %s …', e.slug, p.queue)
    from admission_policies p join endpoints e on e.id = p.endpoint_id cross join lateral admission_state(p, clock()) s
    where e.revoked_at is null and s.status = 'admission_unavailable'
    union all
    select 'hook ' || h.id, 'warning', case when h.sealed_secret is null then 'it has no secret, so it is never called'
               else format('disabled after %s failed calls, the last one %s', h.failures, coalesce(h.last_status, 'unknown')) end,
           format('when its receiver answers again: switchboard hook rotate %s %s', e.slug, h.id)
    from notify_hooks h join endpoints e on e.id = h.endpoint_id
    where is_active(e.revoked_at, e.expires_at, clock()) and (h.disabled_at is not null or h.sealed_secret is null)
    union all
    select 'stalled ' || q.endpoint || ', ' || q.queue, 'warning', format('work waits, nobody claims it, %s calls to its hooks have not helped', q.nudges),
           'look whether its agent runs; `switchboard top` shows the queue'
    from stalls(null) q where not q.progressed
    union all
    select f.* from (
        select coalesce(extract(epoch from clock() - min(k.due_at)), 0)::integer as late from notify_hooks h cross join lateral (
            select min(d.due_at) as due_at from notify_deliveries d where d.endpoint_id = h.endpoint_id and d.hook_id = h.id and d.due_at is not null) k
        where h.disabled_at is null and h.sealed_secret is not null) o
    cross join lateral finding('calls to hooks', level_of(o.late, 120, null),
        case when o.late < 120 then 'none waits for long' else format('one waits since %s s', o.late) end,
        'a server makes them: run `switchboard serve`; a hook gets 120 calls a minute, more than that wait') f
$$;
comment on function switchboard.work_facts() is
'What keeps work from going on: budgets that cannot be read, hooks that are not called, queues that stall, calls to hooks that wait for over 2 minutes. Reads admission_policies, notify_hooks, notify_deliveries, endpoints and what stalls() reads.';

create or replace function switchboard.setting_facts()
returns table (name text, level text, found text, advice text)
language sql stable set search_path = switchboard, pg_temp
as $$
    with wrong (what, why, advice) as (
        select s.name || ' = ' || s.setting, w.why, w.advice from pg_settings s join (values
            ('fsync', 'off', 'a crash of the machine may destroy the database', 'set fsync = on in postgresql.conf'),
            ('full_page_writes', 'off', 'a crash of the machine may destroy the database', 'set full_page_writes = on in postgresql.conf'),
            ('synchronous_commit', 'off', 'a crash may lose what was acknowledged', 'set synchronous_commit = on'),
            ('default_transaction_read_only', 'on', 'nothing can be written', 'alter system, database or role … reset default_transaction_read_only'),
            ('autovacuum', 'off', 'claims get slower with every todo that ends', 'set autovacuum = on'),
            ('track_counts', 'off', 'autovacuum does not know what to do', 'set track_counts = on')) w (name, setting, why, advice) on w.name = s.name and w.setting = s.setting
        union all
        select format('%s of %s', c.setting, coalesce(nullif(r.setrole, 0)::regrole::text, 'every login')), 'a crash may lose what was acknowledged', 'alter role or database … reset synchronous_commit'
        from pg_db_role_setting r cross join lateral unnest(r.setconfig) c (setting)
        where r.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database())) and c.setting ~* '^synchronous_commit=(off|false|no|0)$'
        union all
        select 'statements are logged with their parameters', 'payloads and digests of credentials get into the log of PostgreSQL', 'set log_parameter_max_length = 0'
        where current_setting('log_parameter_max_length') <> '0'
          and (current_setting('log_statement') in ('all', 'mod') or current_setting('log_min_duration_statement') <> '-1'
               or current_setting('log_min_duration_sample') <> '-1' or current_setting('log_transaction_sample_rate')::float > 0)
        union all
        select 'statements that fail are logged with their parameters', 'payloads and digests of credentials get into the log of PostgreSQL', 'set log_parameter_max_length_on_error = 0'
        where current_setting('log_parameter_max_length_on_error') <> '0'
        union all
        select 'the database is marked as a test database', 'its clock may stand still', 'update switchboard.settings set is_test = false, test_now = null, as its owner' from settings t where t.is_test
    )
    select 'settings', 'warning', w.what || ': ' || w.why, w.advice from wrong w
    union all
    select 'settings', 'ok', 'none that puts work at risk', null where not exists (select from wrong)
$$;
comment on function switchboard.setting_facts() is 'Settings of the server, of logins and of the installation under which acknowledged work may be lost, or secrets get into the log. Reads settings and the catalog.';

create or replace function switchboard.limit_facts()
returns table (name text, level text, found text, advice text)
language sql stable set search_path = switchboard, pg_temp
as $$
    select f.* from (select round((pg_notification_queue_usage() * 100)::numeric, 1) as used) n cross join lateral finding(
        'notify queue', level_of(n.used::double precision, 10, 50), format('%s %% full', n.used),
        'a session that listens sits in a transaction: doctor''s check of snapshots names it, end it; when the queue is full, every create fails') f
    union all
    select f.* from (select sum(d.numbackends)::integer as used, current_setting('max_connections')::integer as most from pg_stat_database d) c
    cross join lateral finding('connections', level_of(100.0 * c.used / c.most, 80, 97), format('%s of %s', c.used, c.most),
        'raise max_connections, or lower SWITCHBOARD_POOL_SIZE of the servers') f
    union all
    select f.* from (select max(age(d.datfrozenxid)) / 1000000 as age from pg_database d) x cross join lateral finding(
        'transaction ids', level_of(x.age, 1000, 1800), format('the oldest is %s million old', x.age),
        'at 2,000 million PostgreSQL stops writing: see that autovacuum runs and that nothing holds an old snapshot') f
    union all
    select 'standby', 'error', 'this is a standby: nothing can be written', 'name the primary in SWITCHBOARD_DATABASE_URL' where pg_is_in_recovery()
$$;
comment on function switchboard.limit_facts() is 'How near the server is to what stops it: its queue of notes (warning from 10 %), its connections (80 %), its transaction ids (1,000 million). Reads the catalog.';

create or replace function switchboard.index_facts()
returns table (name text, level text, found text, advice text)
language sql stable set search_path = switchboard, pg_temp
as $$
    with invalid as (
        select c.relname, x.indisunique from pg_index x join pg_class c on c.oid = x.indexrelid
        where c.relnamespace = 'switchboard'::regnamespace and not (x.indisvalid and x.indisready and x.indislive)
    )
    select 'index ' || i.relname, 'error', case when i.indisunique then 'it is invalid: it is not used, and its promise of one row a key is not kept' else 'it is invalid: it is not used, so that claims are slow' end,
           format('reindex index concurrently switchboard.%I;', i.relname)
    from invalid i
    union all
    select 'indexes', 'ok', 'all of them are valid', null where not exists (select from invalid)
$$;
comment on function switchboard.index_facts() is 'Indexes of the schema that are invalid, as an interrupted REINDEX CONCURRENTLY leaves them. Reads the catalog.';

create or replace function switchboard.relation_sizes()
returns table (relation text, kind text, bytes bigint, expected bigint, dead bigint, live bigint)
language sql stable set search_path = switchboard, pg_temp
as $$
    with widths as materialized (
        select s.tablename, s.attname, (1 - s.null_frac) * s.avg_width as width from pg_stats s where s.schemaname = 'switchboard'
    )
    select c.relname::text, 'table', pg_relation_size(c.oid),
           (greatest(c.reltuples, 0) * (28 + coalesce((select sum(w.width) from widths w where w.tablename = c.relname), 100))
               * 100 / coalesce((select o.option_value::integer from pg_options_to_table(c.reloptions) o where o.option_name = 'fillfactor'), 100))::bigint,
           t.n_dead_tup, t.n_live_tup
    from pg_class c join pg_stat_all_tables t on t.relid = c.oid
    where c.relnamespace = 'switchboard'::regnamespace and c.relkind = 'r' and c.reltuples >= 0
    union all
    select c.relname::text, 'index', pg_relation_size(c.oid),
           (greatest(c.reltuples, 0) / 0.9 * (16 + coalesce((
               select sum(w.width) from pg_attribute a join widths w on w.attname = a.attname and w.tablename = x.indrelid::regclass::text
               where a.attrelid = x.indrelid and a.attnum = any (x.indkey)), 32)))::bigint, 0, 0
    from pg_index x join pg_class c on c.oid = x.indexrelid join pg_class r on r.oid = x.indrelid
    where c.relnamespace = 'switchboard'::regnamespace and c.reltuples >= 0 and r.reltuples >= 0
$$;
comment on function switchboard.relation_sizes() is
'The tables and indexes of the schema: bytes, and how many they would have if they were packed, roughly, by the statistics of the last ANALYZE; rows that are dead and live by the counters of autovacuum. Those that were never analyzed are left out. Reads the catalog.';

create or replace function switchboard.bloat_facts()
returns table (name text, level text, found text, advice text)
language sql stable set search_path = switchboard, pg_temp
as $$
    with worst as (
        select 'vacuum ' || r.relation as name, format('%s dead rows beside %s live ones', r.dead, r.live) as found,
               format('vacuum (analyze) switchboard.%I; if they stay, something holds an old snapshot', r.relation) as advice, r.bytes
        from relation_sizes() r where r.dead > 20000 and r.dead > r.live
        union all
        select 'bloat of ' || r.relation, format('%s for some %s of content', pg_size_pretty(r.bytes), pg_size_pretty(r.expected)),
               case r.kind when 'index' then format('reindex index concurrently switchboard.%I;', r.relation)
                    else format('vacuum full switchboard.%I; stops its callers meanwhile: choose a quiet hour, or use pg_repack', r.relation) end, r.bytes
        from relation_sizes() r where r.bytes > 32 * 1024 * 1024 and r.bytes > 4 * r.expected and r.dead <= greatest(20000, r.live)
    )
    (select w.name, 'warning', w.found, w.advice from worst w order by w.bytes desc limit 10)
    union all
    select 'bloat', 'ok', 'no table or index is much larger than what is in it', null where not exists (select from worst)
$$;
comment on function switchboard.bloat_facts() is
'Tables with more dead rows than live ones (from 20,000 on), and tables and indexes of over 32 MiB that are four times as large as what is in them; the largest ten. Reads the catalog.';
