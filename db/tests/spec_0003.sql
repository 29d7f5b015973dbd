-- Every scenario of SPEC-0003 by its name, once, in the order of the document. What a scenario needs of two sessions at once
-- stands beside it in isolation/specs; "Graceful shutdown drains cleanly" is also a test of the server process in py/tests.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null

-- Only defined transitions are honored ----------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('pending') as id \gset
select test.conflict(format('select switchboard.complete(%L, %L, %L)', test.a(), :'id', 'w1'),
    'Only defined transitions are honored: complete of a pending todo is a conflict');
select is(test.state(:'id'), 'pending', 'Only defined transitions are honored: and it stays pending');

-- Terminal states are final ---------------------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('done') as done, test.make('dead') as dead, test.make('parked') as parked \gset
select test.conflict(format('select switchboard.claim(%L, %L, %L)', test.a(), t.id, 'w2'), 'Terminal states are final: no claim of a ' || t.name || ' todo')
    from (values ('done', :'done'), ('dead', :'dead'), ('parked', :'parked')) t(name, id);
select is((select count(*) from switchboard.claim_batch(test.a(), 'w2', 100, '{q}') c where c.id::text in (:'done', :'dead', :'parked')), 0::bigint,
    'Terminal states are final: nor by a scan of the queue');
select test.conflict(format('select switchboard.retry(%L, %L)', test.a(), :'done'), 'Terminal states are final: done cannot be retried');
select lives_ok(format('select switchboard.retry(%L, %L)', test.a(), :'dead'), 'Terminal states are final: a dead letter goes back by an explicit retry');
select is(test.state(:'dead'), 'pending', 'Terminal states are final: and is pending then');
select test.pass('31 s') \g /dev/null
select is((switchboard.claim(test.a(), :'parked', 'w2')).state::text, 'claimed',
    'Terminal states are final: a failed todo with a window comes back when the window elapses');

-- Concurrent claimants get distinct todos -------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.create('a', 'inbox') from generate_series(1, 20) \g /dev/null
select is((select count(distinct c.id) from generate_series(1, 20) n, switchboard.claim_next(test.a(), 'worker ' || n, '{inbox}') c), 20::bigint,
    'Concurrent claimants get distinct todos: 20 claims of 20 todos (at once: isolation/specs/claim_claim)');
select is_empty($$ select * from switchboard.claim_next(test.a(), 'late', '{inbox}') $$, 'Concurrent claimants get distinct todos: the next finds none');

-- Direct assignment is respected ----------------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.create('a', 'r', p_assignee => 'ann') as id \gset
select test.conflict(format('select switchboard.claim(%L, %L, %L)', test.a(), :'id', 'w1'), 'Direct assignment is respected: another worker gets a conflict');
select is_empty($$ select * from switchboard.claim_next(test.a(), 'w1', '{r}') $$, 'Direct assignment is respected: another worker''s scan passes it by');
select is((select id::text from switchboard.claim_next(test.a(), 'ann', '{r}')), :'id', 'Direct assignment is respected: the assignee''s scan finds it');

-- Claimed todo is invisible to other consumers --------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('claimed', 'a', 'inbox') as id \gset
select test.conflict(format('select switchboard.claim(%L, %L, %L)', test.a(), :'id', 'w2'), 'Claimed todo is invisible to other consumers: by id');
select is_empty($$ select * from switchboard.claim_next(test.a(), 'w2', '{inbox}') $$, 'Claimed todo is invisible to other consumers: by a scan');
select lives_ok(format('select switchboard.release(%L, %L, %L)', test.a(), :'id', 'w1'), 'Claimed todo is invisible to other consumers: until the owner releases it');
select is((select id::text from switchboard.claim_next(test.a(), 'w2', '{inbox}', 60)), :'id', 'Claimed todo is invisible to other consumers: then another claims it');
select test.pass('60 s') \g /dev/null
select is((switchboard.claim(test.a(), :'id', 'w3')).owner, 'w3', 'Claimed todo is invisible to other consumers: or until its lease expires');

-- Only the lease owner may complete or fail -----------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('claimed') as id \gset
select test.conflict(format('select switchboard.%s(%L, %L, %L)', f, test.a(), :'id', 'w2'), 'Only the lease owner may complete or fail: ' || f || ' by another is a conflict')
    from unnest('{complete,fail,heartbeat,release}'::text[]) f;
select is(test.stored(:'id') ->> 'owner', 'w1', 'Only the lease owner may complete or fail: nothing has changed');

-- Crashed worker's todo is re-claimable ---------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('lapsed', 'a', 'r') as reaped, test.make('lapsed', 'a', 'inbox') as taken \gset
select is((switchboard.claim(test.a(), :'taken', 'w2')).owner, 'w2', 'Crashed worker''s todo is re-claimable: before any reaper ran');
select is((select state::text from switchboard.reap_expired() where id::text = :'reaped'), 'pending', 'Crashed worker''s todo is re-claimable: the reaper returns it to pending');
select ok(test.stored(:'reaped') @> '{"state": "pending", "owner": null, "lease_expires_at": null, "attempt": 1}',
    'Crashed worker''s todo is re-claimable: owner and lease are cleared, the attempt counts');
select is((select id::text from switchboard.claim_next(test.a(), 'w2', '{r}')), :'reaped', 'Crashed worker''s todo is re-claimable: another worker claims it');

-- Repeated expiry dead-letters at the cap -------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.create('a', 'q', p_max_attempts => 3) as id \gset
create table test.expiries (n int, state text);
do $$
declare
    v_id text := (select id::text from switchboard.todos where max_attempts = 3);
begin
    for n in 1..3 loop
        perform switchboard.claim(test.a(), v_id, 'w1', 60), test.pass('61 s');
        insert into test.expiries select n, r.state from switchboard.reap_expired() r where r.id::text = v_id;
    end loop;
end
$$;
select results_eq('select state from test.expiries order by n', array['pending', 'pending', 'failed'], 'Repeated expiry dead-letters at the cap: after exactly 3 claims of 3');
select ok(test.stored(:'id') @> '{"next_retry_at": null, "attempt": 3}', 'Repeated expiry dead-letters at the cap: no further window');

-- Fail below cap schedules a backoff retry, at cap dead-letters ---------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('claimed') as id \gset
select is((switchboard.fail(test.a(), :'id', 'w1')).next_retry_at, switchboard.now() + interval '30 s',
    'Fail below cap schedules a backoff retry, at cap dead-letters: 30 s after the first attempt');
select is(test.stored(:'id') ->> 'lease_expires_at', null, 'Fail below cap schedules a backoff retry, at cap dead-letters: no lease is left');
select test.pass('29 s') \g /dev/null
select test.conflict(format('select switchboard.claim(%L, %L, %L)', test.a(), :'id', 'w1'),
    'Fail below cap schedules a backoff retry, at cap dead-letters: not claimable before');
select test.make('dead') as id \gset
select ok(test.stored(:'id') @> '{"state": "failed", "next_retry_at": null, "attempt": 1, "max_attempts": 1}',
    'Fail below cap schedules a backoff retry, at cap dead-letters: failed without a window at the cap');

-- Elapsed backoff re-queues ---------------------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('due', 'a', 'r') as swept, test.make('due', 'a', 'inbox') as taken \gset
select is((select id::text from switchboard.claim_next(test.a(), 'w2', '{inbox}')), :'taken', 'Elapsed backoff re-queues: a claim may take it directly');
select is((select state::text from switchboard.requeue_due_retries() where id::text = :'swept'), 'pending', 'Elapsed backoff re-queues: the scheduler returns it to pending');
select ok(test.stored(:'swept') @> '{"owner": null, "lease_expires_at": null, "next_retry_at": null}', 'Elapsed backoff re-queues: owner, lease and window are cleared');

-- Duplicate delivery collapses to one todo ------------------------------------------------------------------------------------
select test.clear() \g /dev/null
create function test.again(p_key text, p_endpoint text default 'a') returns table (id text, created boolean) language sql as $$
    select to_jsonb(t) ->> 'id', (to_jsonb(t) ->> 'created')::boolean
    from switchboard.create_todo(test.endpoint(p_endpoint), 'q', 'again', p_idempotency_key => p_key) t
$$;
create table test.keyed as select s as situation, test.make(s, 'a', 'q', 'key ' || s) as id from unnest('{pending,claimed,parked}'::text[]) s;
select results_eq(format('select id, created from test.again(%L)', 'key ' || situation), format('values (%L, false)', id),
    'Duplicate delivery collapses to one todo: the first is still ' || situation) from test.keyed;
select is((select count(*) from switchboard.todos where idempotency_key like 'key %'), 3::bigint, 'Duplicate delivery collapses to one todo: no second row');

-- A terminal todo does not block a new one ------------------------------------------------------------------------------------
select test.clear() \g /dev/null
create table test.ended as select s as situation, test.make(s, 'a', 'q', 'key ' || s) as id from unnest('{done,dead}'::text[]) s;
select results_eq(format('select id <> %L, created from test.again(%L)', id, 'key ' || situation), 'values (true, true)',
    'A terminal todo does not block a new one: the first is ' || situation) from test.ended;

-- Redelivery during a backoff window does not duplicate -----------------------------------------------------------------------
select test.clear() \g /dev/null
create function test.key_again(p_key text) returns text language sql as $$ select id || ' ' || created from test.again(p_key) $$;
create table test.windows as select w as way, test.make('parked', 'a', w, 'window ' || w) as id from unnest('{q,r,inbox}'::text[]) w;
select is(test.key_again('window ' || way), id || ' false', 'Redelivery during a backoff window does not duplicate: the parked todo is returned') from test.windows;
select lives_ok(format('select switchboard.retry(%L, %L)', test.a(), id), 'Redelivery during a backoff window does not duplicate: a manual retry succeeds')
    from test.windows where way = 'q';
select test.pass('31 s') \g /dev/null
select is((select id::text from switchboard.claim_next(test.a(), 'w9', '{r}')), (select id from test.windows where way = 'r'),
    'Redelivery during a backoff window does not duplicate: a due claim succeeds');
select is((select state::text from switchboard.requeue_due_retries() r join test.windows w on w.id = r.id::text), 'pending',
    'Redelivery during a backoff window does not duplicate: the scheduler succeeds');

-- Graceful shutdown drains cleanly --------------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('claimed', 'b', 'q') as id \gset
begin;
select switchboard.tick() \g /dev/null
rollback;
select is(test.situation(:'id'), 'claimed', 'Graceful shutdown drains cleanly: a sweep that is cancelled leaves leases alone');
select test.pass('61 s') \g /dev/null
begin;
select switchboard.reap_expired() \g /dev/null
rollback;
select is(test.situation(:'id'), 'lapsed', 'Graceful shutdown drains cleanly: and moves nothing by half');
select is((select state::text from switchboard.reap_expired() where id::text = :'id'), 'pending', 'Graceful shutdown drains cleanly: which expire and are requeued');

-- Zero-row update is classified, not swallowed --------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('done') as id \gset
select test.conflict(format('select switchboard.%s(%L, %L, %L)', f, test.a(), :'id', 'w1'), 'Zero-row update is classified, not swallowed: ' || f || ' where the row is')
    from unnest('{claim,heartbeat,complete,fail,release}'::text[]) f;
select test.not_found(format('select switchboard.%s(%L, %L, %L)', f, test.a(), test.unknown(), 'w1'), 'Zero-row update is classified, not swallowed: ' || f || ' where none is')
    from unnest('{claim,heartbeat,complete,fail,release}'::text[]) f;

-- Cross-endpoint queue collision is isolated ----------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('pending', 'a', 'inbox', 'collision') as id \gset
select is_empty(format('select * from switchboard.list_todos(test.b(), ''inbox'') t where t.id::text = %L', :'id'), 'Cross-endpoint queue collision is isolated: B''s list');
select is_empty($$ select * from switchboard.claim_next(test.b(), 'w1', '{inbox}') $$, 'Cross-endpoint queue collision is isolated: B''s scan');
select test.not_found(format('select switchboard.claim(test.b(), %L, ''w1'')', :'id'), 'Cross-endpoint queue collision is isolated: B''s claim by id');
select is_empty(format('select * from switchboard.pending_doorbell_todos(test.b()) t where t.id::text = %L', :'id'), 'Cross-endpoint queue collision is isolated: B''s doorbell');

-- Doorbell never crosses endpoints --------------------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.listen('todo_ready') \g /dev/null
select test.create('a', 'q') \g /dev/null
select is(test.heard('todo_ready'), array[test.a() || ':q'], 'Doorbell never crosses endpoints: the notification names A');
select is_empty($$ select * from switchboard.pending_doorbell_todos(test.b()) t where t.endpoint_id::text <> test.b() $$, 'Doorbell never crosses endpoints: B rings for its own');

-- A foreign todo id is indistinguishable from a nonexistent one ---------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('claimed') as id \gset
create table test.transitions (call text);
insert into test.transitions values ('get_todo(%L, %L)'), ('claim(%L, %L, ''w1'')'), ('heartbeat(%L, %L, ''w1'')'), ('complete(%L, %L, ''w1'')'), ('fail(%L, %L, ''w1'')'),
    ('release(%L, %L, ''w1'')'), ('retry(%L, %L)');
select is(test.error_of('select switchboard.' || format(call, test.b(), :'id')), test.error_of('select switchboard.' || format(call, test.b(), test.unknown())),
    'A foreign todo id is indistinguishable from a nonexistent one: ' || call) from test.transitions;
select test.not_found('select switchboard.' || format(call, test.b(), :'id'), 'A foreign todo id is indistinguishable from a nonexistent one: not_found of ' || call)
    from test.transitions;

-- Background sweep spans tenants without a scope ------------------------------------------------------------------------------
select test.clear() \g /dev/null
select test.make('due', 'a') as a_due, test.make('due', 'b') as b_due, test.make('lapsed', 'a') as a_lapsed, test.make('lapsed', 'b') as b_lapsed \gset
select test.heard('todo_ready') \g /dev/null
select set_eq($$ select endpoint_id::text, id::text from switchboard.reap_expired() $$, format('values (test.a(), %L), (test.b(), %L)', :'a_lapsed', :'b_lapsed'),
    'Background sweep spans tenants without a scope: the reaper');
select is(test.heard('todo_ready'), (select array_agg(e || ':q' order by e) from unnest(array[test.a(), test.b()]) e),
    'Background sweep spans tenants without a scope: each wakeup names the owning endpoint');
select set_eq($$ select endpoint_id::text, id::text from switchboard.requeue_due_retries() $$, format('values (test.a(), %L), (test.b(), %L)', :'a_due', :'b_due'),
    'Background sweep spans tenants without a scope: the retry scheduler');
select is(test.heard('todo_ready'), (select array_agg(e || ':q' order by e) from unnest(array[test.a(), test.b()]) e),
    'Background sweep spans tenants without a scope: its wakeups, too');

-- Same delivery routed to two endpoints yields two todos ----------------------------------------------------------------------
select test.clear() \g /dev/null
select test.receiver('token') as hook, switchboard.set_grant(test.endpoint('a2'), p_webhook_max => 2) \gset
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a2') \g /dev/null
select test.deliver('token', '{}', 'delivery 1') as got \gset
select is(test.outcomes(:'got'), '{a q new,a2 q new}', 'Same delivery routed to two endpoints yields two todos: one each');
select is((select count(distinct id) || ' ' || count(distinct endpoint_id) || ' ' || count(distinct idempotency_key) from switchboard.todos), '2 2 1', 'Same delivery routed to two endpoints yields two todos: under the same key');

-- Redelivery to one target dedups only within that target ---------------------------------------------------------------------
select test.deliver('token', '{}', 'delivery 1') as again \gset
select is(test.outcomes(:'again'), '{a q old,a2 q old}', 'Redelivery to one target dedups only within that target: each collapses');
select is(test.made(:'again', e), test.made(:'got', e), 'Redelivery to one target dedups only within that target: onto its own, ' || e) from unnest('{a,a2}'::text[]) e;
select is((select count(*) from switchboard.todos), 2::bigint, 'Redelivery to one target dedups only within that target: two in total');
select test.finish(test.made(:'got')) \g /dev/null
select is(test.outcomes(test.deliver('token', '{}', 'delivery 1')), '{a q new,a2 q old}', 'Redelivery to one target dedups only within that target: what ended on one does not touch the other');

-- Claim never scans terminal rows ---------------------------------------------------------------------------------------------
select test.clear() \g /dev/null
-- The figures are in plans.sql: claim_next over 100,000 terminal rows.
select ok(exists (select from pg_index i where i.indrelid = 'switchboard.todos'::regclass and pg_get_expr(i.indpred, i.indrelid) ~ 'pending'),
    'Claim never scans terminal rows: there is a partial index on pending rows (its use: plans.sql)');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
