-- functions/72_doctor: each check in its bad state.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
-- The level of the row of that name that is worst; NULL: there is none.
create function test.level(p_name text) returns text language sql as $$
    select f.level from switchboard.doctor_facts() f where f.name like p_name order by array_position('{error,warning,ok}', f.level) limit 1
$$;
create function test.said(p_name text) returns text language sql as $$ select string_agg(f.found || ' ' || coalesce(f.advice, ''), ' ') from switchboard.doctor_facts() f where f.name like p_name and f.level <> 'ok' $$;

-- nothing wrong; fsync is off on servers of tests
select is_empty($$ select * from switchboard.doctor_facts() where level not in ('ok', 'warning', 'error') or found is null or name is null $$, 'three levels, and something found');
select is_empty($$ select * from switchboard.doctor_facts() where (advice is null) <> (level = 'ok') $$, 'what is not ok says what to do, and nothing else does');
select switchboard.tick() \g /dev/null
select is((select array_agg(name order by name) from switchboard.doctor_facts() where level = 'error'), null, 'no error in a new database');
select is(test.level(n), 'ok', n) from unnest('{sweeps,calls to hooks,notify queue,connections,transaction ids,indexes,bloat}'::text[]) n;

-- sweeps
select test.pass('91 s') \g /dev/null
select is(test.level('sweeps'), 'warning', 'late');
select alike(test.said('sweeps'), '%switchboard tick%', 'what to do');
update switchboard.sweeps set last_run_at = 'epoch';
select alike(test.said('sweeps'), 'not all of them have ever run%', 'or never');
select test.real_time(), switchboard.tick() \g /dev/null
update switchboard.sweeps set last_error = '57014' where name = 'prune';
select alike(test.said('sweep prune'), '%57014%', 'one that failed');

-- budgets
select test.set_budget('q', 5) \g /dev/null
select is(test.level('budget of %'), null, 'one that can be read is no matter');
update switchboard.admission_policies set window_tz = 'Mars/Olympus';
select is(test.level('budget of %, q'), 'error', 'one that cannot is an error');
delete from switchboard.admission_policies;

-- hooks
select test.notify_hook(p_secret => null), test.notify_hook() \g /dev/null
select is(test.level('hook %'), 'warning', 'a hook without a secret');
select alike(test.said('hook %'), 'it has no secret%switchboard hook rotate%', 'what to do');
update switchboard.notify_hooks set disabled_at = now(), failures = 10, last_status = '5xx' where sealed_secret is not null;
select alike(test.said('hook %'), '%disabled after 10 failed calls, the last one 5xx%', 'and a disabled one');
update switchboard.notify_hooks set disabled_at = null;
select test.create('a') \g /dev/null
select is(test.level('calls to hooks'), 'ok', 'a call that has just come');
update switchboard.notify_deliveries set due_at = now() - interval '3 minutes';
select is(test.level('calls to hooks'), 'warning', 'one that nobody makes');

-- stalled
select is(test.level('stalled %'), null, 'not stalled');
insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges, last_nudged_at) values (test.a()::uuid, 'q', 2, now());
select is(test.level('stalled %, q'), 'warning', 'stalled');

-- settings
set synchronous_commit = off;
select alike(test.said('settings'), '%synchronous_commit = off%', 'commits that may be lost');
reset synchronous_commit;
select unalike(coalesce(test.said('settings'), ''), '%synchronous_commit%', 'not any more');
set default_transaction_read_only = on;
select alike(test.said('settings'), '%default_transaction_read_only = on: nothing can be written%', 'a database that does not write');
reset default_transaction_read_only;
do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$;
select alike(test.said('settings'), '%synchronous_commit=off of every login%', 'of all logins of the database');
do $$ begin execute format('alter database %I reset synchronous_commit', current_database()); end $$;
set log_parameter_max_length = 100;
create function test.said_with(p_setting text, p_value text) returns text language sql as $$
    select set_config(p_setting, p_value, false);
    select test.said('settings') from set_config(p_setting, p_value, false)
$$;
select alike(test.said_with(s, v), '%digests of credentials%', format('parameters in the log: %s', s)), set_config(s, r, false)
    from (values ('log_statement', 'all', 'none'), ('log_min_duration_statement', '0', '-1'), ('log_min_duration_statement', '1s', '-1'), ('log_min_duration_sample', '5s', '-1'), ('log_transaction_sample_rate', '0.1', '0')) v(s, v, r);
select unalike(coalesce(test.said('settings'), ''), '%digests of credentials%', 'as long as no statement is logged');
set log_min_duration_statement = 0;
set log_parameter_max_length = 0;
select unalike(coalesce(test.said('settings'), ''), '%digests of credentials%', 'without them');
set log_parameter_max_length_on_error = 100;
select alike(test.said('settings'), '%log_parameter_max_length_on_error%', 'those of statements that fail');
reset log_parameter_max_length_on_error;
reset log_min_duration_statement;
update switchboard.settings set is_test = true;
select alike(test.said('settings'), '%test database%', 'a test database');
update switchboard.settings set is_test = false;

-- indexes
update pg_index set indisvalid = false where indexrelid = 'switchboard.todos_live_key'::regclass;
select is(test.level('index todos_live_key'), 'error', 'an invalid index');
select alike(test.said('index %'), '%reindex index concurrently switchboard.todos_live_key;', 'what to do');
update pg_index set indisvalid = true where indexrelid = 'switchboard.todos_live_key'::regclass;
select is(test.level('indexes'), 'ok', 'valid again');

-- levels
select is(switchboard.level_of(v, 10, 50), l, format('%s is %s', v, l)) from (values (0, 'ok'), (9.9, 'ok'), (10, 'warning'), (49.9, 'warning'), (50, 'error')) v(v, l);
select is(switchboard.level_of(1e9, 10, null), 'warning', 'no limit for errors');

-- sizes, as they are estimated
analyze switchboard.endpoints, switchboard.todos;
select isnt_empty($$ select from switchboard.relation_sizes() where relation = 'todos_pool' and kind = 'index' $$, 'indexes are looked at');
select is((select expected between 100 and 100000 from switchboard.relation_sizes() where relation = 'endpoints'), true, 'two rows are not much');

-- a part that fails takes no other with it
alter table switchboard.sweeps rename to swept;
select is(test.level('sweeps'), 'error', 'what cannot be looked at is an error');
select is(test.level('indexes'), 'ok', 'and the others are looked at');
alter table switchboard.swept rename to sweeps;

select * from finish();
