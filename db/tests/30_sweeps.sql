-- functions/30_sweeps: what time does to todos. Races with holders are in isolation/specs.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready') \g /dev/null

-- reap_expired
select test.make('lapsed') as lapsed, test.make('lapsed', 'b', 'r') as of_b \gset
select test.make('spent') as spent \gset
create table test.others as select s as situation, test.make(s) as id from unnest('{pending,claimed,parked,dead,done}'::text[]) s;
select test.heard('todo_ready') \g /dev/null
create table test.reaped as select * from switchboard.reap_expired();
select set_eq('select endpoint_id::text, id::text, queue, state from test.reaped', format($$ values (test.a(), %L, 'q', 'pending'), (test.b(), %L, 'r', 'pending'), (test.a(), %L, 'q', 'failed') $$, :'lapsed', :'of_b', :'spent'),
    'reap_expired moves what lapsed, of every endpoint, and returns it');
select ok(test.stored(:'lapsed') @> '{"state": "pending", "owner": null, "lease_expires_at": null, "lease_token": null, "attempt": 1, "completed_at": null}', 'below the cap: pending, owner and lease cleared');
select ok(test.stored(:'spent') @> '{"state": "failed", "next_retry_at": null, "lease_expires_at": null, "attempt": 1}' and test.stored(:'spent') ->> 'completed_at' is not null, 'at the cap: a dead letter');
select is(test.situation(id), situation, 'a ' || situation || ' todo is left alone') from test.others;
select is(test.heard('todo_ready'), (select array_agg(x order by x) from unnest(array[test.a() || ':q', test.b() || ':r']) x), 'it rings for what is pending again');
select results_eq(format('select owner, outcome, state from switchboard.todo_history(%L, %L)', e, id), format($$ values ('w1', 'lapsed', %L) $$, s), 'the attempt ends as lapsed: ' || s) from (values (test.a(), :'lapsed', 'pending'), (test.a(), :'spent', 'failed')) v(e, id, s);
select is_empty($$ select * from switchboard.reap_expired() $$, 'a second one finds nothing');
select test.invalid(format('select * from switchboard.%s(%s)', f, l), 'limit', format('%s with a limit of %s', f, l)) from unnest('{reap_expired,requeue_due_retries,sweep_stalled,prune}'::text[]) f, unnest('{0,-1}'::int[]) l;

-- fault 12: a lapsed one behind a thousand long leases
select test.clear() \g /dev/null
select switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 1000))) \g /dev/null
select count(*) from switchboard.claim_batch(test.a(), 'w', 1000, null, 86400) \g /dev/null
select test.make('lapsed') as id \gset
select results_eq($$ select id::text from switchboard.reap_expired(100) $$, array[:'id'], 'fault 12: one lapsed among 1,000 long leases is reached');
select test.pass('1 d') \g /dev/null
select is((select count(*) from switchboard.reap_expired(100)), 100::bigint, 'a limit is kept');
select is((select count(*) from switchboard.reap_expired(null)), 900::bigint, 'a NULL limit is the default');

-- requeue_due_retries
select test.clear() \g /dev/null
select test.make('due', p_key => 'k1') as due, test.make('due', 'b', 'r', 'k1') as of_b \gset
truncate test.others;
insert into test.others select s, test.make(s) from unnest('{pending,claimed,parked,dead,done}'::text[]) s;
select test.heard('todo_ready') \g /dev/null
select set_eq('select endpoint_id::text, id::text, queue, state from switchboard.requeue_due_retries()', format($$ values (test.a(), %L, 'q', 'pending'), (test.b(), %L, 'r', 'pending') $$, :'due', :'of_b'), 'requeue_due_retries moves what is due, of every endpoint');
select ok(test.stored(:'due') @> '{"state": "pending", "owner": null, "next_retry_at": null, "attempt": 1}', 'pending, owner and window cleared, the attempts count on');
select is(test.situation(id), situation, 'a ' || situation || ' todo is left alone') from test.others;
select is(test.heard('todo_ready'), (select array_agg(x order by x) from unnest(array[test.a() || ':q', test.b() || ':r']) x), 'it rings');
-- fault 21: keys never stop the sweep, for a parked todo keeps its key
select test.clear() \g /dev/null
create table test.keyed_due as select n, test.make('due', 'a', 'q', 'due ' || n) as id from generate_series(1, 3) n;
select is((select (switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => 'due 2')).created), false, 'fault 21: a due todo still holds its key');
select is((select count(*) from switchboard.requeue_due_retries()), 3::bigint, 'fault 21: the sweep finishes for all');

-- endpoints that are no longer active
select test.clear() \g /dev/null
create table test.expired as select s as situation, test.make(s, 'b') as id from unnest('{done,dead,parked,claimed,pending}'::text[]) s;
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.b();
update switchboard.sweeps set last_run_at = 'epoch';
select test.make('pending') as mine \gset
select switchboard.tick() \g /dev/null
select is(test.situation(id), case situation when 'done' then 'done' else 'dead' end, 'on an expired endpoint: a ' || situation || ' todo') from test.expired;
select is(test.situation(:'mine'), 'pending', 'others are left alone');

-- tick: each sweep at most once in 30 s
update switchboard.sweeps set last_run_at = 'epoch';
select is(switchboard.sweep_age(), null, 'no sweep has ever run: no age');
select is(switchboard.sweep_names(), '{reap_expired,requeue_due_retries,retire_endpoints,reopen_admission,sweep_stalled,settle_marks,fold_attempts,prune}', 'what lapsed and what is due goes before the nudges: what they name is pending');
select set_eq('select name from switchboard.sweep_status()', $$ select unnest(switchboard.sweep_names()) $$, 'each has its row');
select set_eq($$ select jsonb_object_keys(switchboard.tick()) $$, $$ select unnest(switchboard.sweep_names()) $$, 'a tick runs every sweep');
select is(switchboard.tick(), '{}', 'fault 55: a second one runs none');
update switchboard.sweeps set last_run_at = last_run_at + interval '1 s';
select is(switchboard.tick(), '{}', 'fault 55: nor does one that read the clock before the other did, and comes after it');
update switchboard.sweeps set last_run_at = last_run_at - interval '1 s';
select is(switchboard.sweep_age(), interval '0 s', 'the age of the last sweep');
select test.pass('28 s') \g /dev/null
select is(switchboard.tick(), '{}', 'nor after 28 s');
select is(switchboard.sweep_age(), interval '28 s', 'which is then 28 s');
select test.pass('2 s') \g /dev/null
select set_eq($$ select jsonb_object_keys(switchboard.tick()) $$, $$ select unnest(switchboard.sweep_names()) $$, 'after 30 s all run again');
select test.pass('3 h') \g /dev/null
select test.make('lapsed') as id \gset
select is((switchboard.tick() ->> 'reap_expired')::int, 1, 'fault 55: a tick three hours late does what is due');
select is(test.situation(:'id'), 'pending', 'fault 55: once');
select test.pass('-1 h') \g /dev/null
select set_eq($$ select jsonb_object_keys(switchboard.tick()) $$, $$ select unnest(switchboard.sweep_names()) $$, 'a clock that was set back stops no sweep');

-- one sweep's failure stops no other
create function test.broken() returns trigger language plpgsql as $$ begin raise exception 'broken' using errcode = 'P0042'; end $$;
create trigger broken before update on switchboard.todos for each row when (old.state = 'failed' and new.state = 'pending') execute function test.broken();
select test.clear(), test.make('due'), test.make('lapsed') as lapsed, test.pass('1 h') \gset
select is(switchboard.tick() - '{retire_endpoints,reopen_admission,sweep_stalled,settle_marks,fold_attempts,prune}'::text[], '{"reap_expired": 1, "requeue_due_retries": "error P0042"}', 'a tick tells what failed, and goes on');
select is(test.situation(:'lapsed'), 'pending', 'the other sweep did its work');
select is((select last_error from switchboard.sweep_status() where name = 'requeue_due_retries'), 'P0042', 'sweep_status names the error');
drop trigger broken on switchboard.todos;
select test.pass('30 s') \g /dev/null
select is((switchboard.tick() ->> 'requeue_due_retries')::int, 1, 'the next tick makes up for it');
select is((select array_agg(last_error) filter (where last_error is not null) from switchboard.sweep_status()), null, 'and the error is gone');

-- counters: each ended attempt once, however it is pruned
select test.clear(), test.real_time() \g /dev/null
select test.settle(), switchboard.fold_attempts() \g /dev/null
truncate switchboard.attempt_totals;
create function test.totals() returns bigint language sql as $$ select coalesce(sum(total), 0) from switchboard.attempt_totals $$;
create function test.end_one(p_n int) returns void language sql as $$ select switchboard.complete(test.a(), (switchboard.claim(test.a(), test.create('a', 'q', 'n' || p_n), 'w')).id::text, 'w') $$;
select test.end_one(n) from generate_series(1, 3) n \g /dev/null
select test.connect('open') \g /dev/null
select test.there('open', 'begin') \g /dev/null
select test.there('open', 'do $b$ begin perform test.end_one(4); end $b$') \g /dev/null
select test.end_one(5) \g /dev/null
select switchboard.fold_attempts() \g /dev/null
select cmp_ok(test.totals(), '<=', 4::bigint, 'an attempt of an open transaction is not counted yet');
select test.there('open', 'commit') \g /dev/null
select test.settle(), switchboard.fold_attempts() \g /dev/null
select is(test.totals(), 5::bigint, 'after it all are counted');
select switchboard.fold_attempts() \g /dev/null
select is(test.totals(), 5::bigint, 'once each');
select is((select done from switchboard.queue_counts(test.a()) where queue = 'q'), 5::bigint, 'queue_counts shows them');

-- prune
select test.clear(), test.at('2026-03-02T12:00Z') \g /dev/null
truncate switchboard.attempt_totals;
create table test.aged as select age, s as situation, null::text as id from unnest('{old,new}'::text[]) age, unnest('{pending,claimed,parked,dead,done}'::text[]) s;
update test.aged set id = test.make(situation) where age = 'old';
select test.pass('29 d') \g /dev/null
update test.aged set id = test.make(situation) where age = 'new';
select test.pass('1 d 1 h') \g /dev/null
select test.settle(), switchboard.fold_attempts(), test.totals() as before \gset
select is(switchboard.prune(), 2::bigint, 'prune deletes what ended 30 days ago');
select is(test.stored(id) is null, age = 'old' and situation in ('dead', 'done'), format('an %s %s todo is %s', age, situation, case when age = 'old' and situation in ('dead', 'done') then 'gone' else 'kept' end)) from test.aged;
select is((select count(*) from switchboard.todo_attempts a join test.aged g on g.id = a.todo_id::text where g.age = 'old' and g.situation in ('dead', 'done')), 0::bigint, 'with its attempts');
select is(test.totals(), :before::bigint, 'the counters keep what was deleted');
select is(switchboard.prune(), 0::bigint, 'a second one finds nothing');
select switchboard.set_retention(test.a(), 1) \g /dev/null
select is(switchboard.prune(), 2::bigint, 'an endpoint''s own retention goes before the installation''s');
select test.clear(), switchboard.set_retention(test.a(), null, 3) \g /dev/null
create table test.line as select n, null::text as id from generate_series(1, 6) n;
do $$ begin for v_n in 1..6 loop update test.line set id = test.make('done') where n = v_n; perform test.pass('1 s'); end loop; end $$;
select test.settle() \g /dev/null
select is(switchboard.prune(1), 1::bigint, 'a limit is kept');
select switchboard.prune() \g /dev/null
select is((select array_agg(n order by n) from test.line where test.stored(id) is not null), '{4,5,6}'::int[], 'no more rows than the retention allows: the newest stay');
select switchboard.set_retention(test.a(), null, 0), switchboard.prune() \g /dev/null
select is((select count(*) from switchboard.todos where endpoint_id::text = test.a()), 0::bigint, 'a retention of no rows keeps none');
select switchboard.set_retention(test.a()) \g /dev/null

-- an attempt is not deleted before it is counted
select test.clear(), test.real_time() \g /dev/null
select test.there('open', 'begin') \g /dev/null
select test.there('open', 'create temporary table held_open()') \g /dev/null
truncate switchboard.attempt_totals;
select test.end_one(6) \g /dev/null
select switchboard.set_retention(test.a(), null, 0), switchboard.prune() \g /dev/null
select is((select count(*) from switchboard.todos where idempotency_key = 'n6'), 1::bigint, 'a todo stays while its attempt cannot be counted');
select test.there('open', 'rollback'), test.settle() \g /dev/null
select switchboard.prune() \g /dev/null
select is((select array[count(*), test.totals()] from switchboard.todos where idempotency_key = 'n6'), '{0,1}'::bigint[], 'then it is counted and goes');

-- fault 67: one endpoint's login disturbs no sweep and no other endpoint
select test.clear(), switchboard.set_retention(test.a()), test.login('rude', 'switchboard_worker') as rude \gset
select switchboard.bind_login(test.a(), :'rude') \g /dev/null
select test.connect('rude', :'rude') \g /dev/null
select test.there('rude', $$ do $b$ begin perform pg_advisory_lock(n), pg_advisory_lock_shared(-n) from generate_series(1, 1000) n; end $b$ $$) \g /dev/null
select test.there('rude', s) from unnest(array['listen todo_ready', 'set switchboard.test_now = ''2000-01-01''', 'set role switchboard_worker', 'begin',
    $$ do $b$ begin perform switchboard.create_todo(null, 'q', 'rude'); perform switchboard.claim_next(null, 'rude'); end $b$ $$]) s \g /dev/null
set lock_timeout = '2s';
update switchboard.endpoints set expires_at = null;
update switchboard.sweeps set last_run_at = 'epoch';
select is((select count(*) from jsonb_each(switchboard.tick()) t where jsonb_typeof(t.value) = 'number'), (select count(*) from unnest(switchboard.sweep_names())), 'fault 67: every sweep runs');
select is((switchboard.claim(test.b(), test.create('b'), 'w')).state, 'claimed', 'fault 67: another endpoint creates and claims');
select is((switchboard.claim(test.a(), test.create('a'), 'w')).state, 'claimed', 'fault 67: and so does its own');
select test.there('rude', 'rollback') \g /dev/null

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
