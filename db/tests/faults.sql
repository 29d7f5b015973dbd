-- Faults of docs/faults.md whose sequence no other file tries as it is given: 7, 8, 9, 14, 21, 34, 35, 36, 37, 39, 67. With real sessions: py/tests/test_faults.py.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null

-- fault 7: a limit of 0, -1, NULL and 10^9, for every function that somebody may execute and that has one. default_limit and most are what
-- NULL and 10^9 stand for; read_event's is in characters of its text.
create table test.limits (call text, default_limit int, most int);
insert into test.limits values
    ('claim_batch(test.a(), ''w'', %s)', 1, 1000), ('list_todos(test.a(), p_limit => %s)', 50, 200), ('list_todos_any_endpoint(p_limit => %s)', 50, 200), ('find_todos_any_endpoint(p_limit => %s)', 50, 200),
    ('unsound_todos(%s)', null, null), ('reap_expired(%s)', 1000, 100000), ('requeue_due_retries(%s)', 1000, 100000), ('prune(%s)', null, null), ('read_event(test.a(), test.event(), 0, %s)', null, null),
    ('list_events_any_endpoint(p_limit => %s)', 50, 200), ('webhook_audit_of(test.hook(), %s)', 50, 1000), ('read_event_any_endpoint(test.event(), 0, %s)', null, null),
    ('take_doorbells(test.a(), %s)', 10, 100), ('doorbells(test.a(), %s)', null, null), ('take_deliveries(%s)', null, null), ('sweep_stalled(%s)', null, null);
create function test.event() returns text language sql as $$ select event_id::text from switchboard.todos where event_id is not null $$;
select is_empty($$ select p.proname from pg_proc p, switchboard.granted() g where p.oid = ('switchboard.' || g.signature)::regprocedure and 'p_limit' = any (p.proargnames)
    and not exists (select from test.limits l where split_part(l.call, '(', 1) = p.proname) $$, 'fault 7: no function with a limit is left out');
select switchboard.create_webhook(test.a(), 'github', 'q', '\xaa', sha256('a')) \g /dev/null
select switchboard.receive_delivery(sha256('a'), 'd', 'push', '{}', '{"a": 1}', 'application/json') \g /dev/null
select test.invalid(format('select * from switchboard.' || l.call, n), 'limit', format('fault 7: a limit of %s for %s', n, split_part(l.call, '(', 1))) from test.limits l, unnest('{0,-1,-2147483648}'::int[]) n;
select lives_ok(format('select * from switchboard.' || l.call, n), format('fault 7: a limit of %s for %s', n, split_part(l.call, '(', 1))) from test.limits l, unnest('{"null",1,1000000000,2147483647}'::text[]) n;
select test.clear() \g /dev/null
-- 1,100 todos: some pending, some that lapsed, some that are due, each more than the default; and as many events, and entries of the audit
select switchboard.receive_delivery(sha256('a'), n::text, 'push', '{}', '{}', 'application/json') from generate_series(2, 1100) n \g /dev/null
select switchboard.hold_webhook(test.hook(), n % 2 = 0) from generate_series(2, 1100) n \g /dev/null
create function test.many() returns void language plpgsql as $$
begin
    perform test.clear();
    perform switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 1100)));
end
$$;
create table test.counted (call text, n text, rows bigint);
do $$
declare
    v_limit record;
    v_n text;
    v_rows bigint;
begin
    for v_limit in select * from test.limits where default_limit is not null loop
        foreach v_n in array '{"null",1000000000}'::text[] loop
            perform test.many();
            if v_limit.call ~ 'reap|requeue' then
                update switchboard.todos set state = case when v_limit.call ~ 'reap' then 'claimed' else 'failed' end::switchboard.todo_state, attempt = 1, claims = 1, owner = 'w', claimed_at = switchboard.now(),
                    due_at = switchboard.now();
            end if;
            execute format('select count(*) from switchboard.' || v_limit.call, v_n) into v_rows;
            insert into test.counted values (split_part(v_limit.call, '(', 1), v_n, v_rows);
        end loop;
    end loop;
end
$$;
select is(c.rows, least(case c.n when 'null' then l.default_limit else l.most end, 1100)::bigint, format('fault 7: %s(%s) is %s', c.call, case c.n when 'null' then 'NULL' else '10^9' end, case c.n when 'null' then 'the default' else 'clamped' end))
    from test.counted c join test.limits l on split_part(l.call, '(', 1) = c.call;

-- faults 8 and 9: a claim for 1 s, which passes; another takes it over; the first one ends it, in each of the ways there are, with its own token and without
select test.clear() \g /dev/null
create function test.taken_over(p_call text) returns text language plpgsql as $$
declare
    v_id text := test.create();
    v_first text := (switchboard.claim(test.a(), v_id, 'T1', 1)).lease_token;
    v_before jsonb;
    v_outcome text;
begin
    perform test.pass('1 s');
    perform switchboard.claim(test.a(), v_id, 'T2', 60);
    v_before := test.stored(v_id);
    v_outcome := test.outcome(format('select * from switchboard.' || p_call, test.a(), v_id, v_first));
    return v_outcome || case when test.stored(v_id) = v_before then ', T2 untouched' else ', T2 disturbed' end;
end
$$;
select is(test.taken_over(call), e || ', T2 untouched', case when call ~ 'complete' then 'fault 8: ' else 'fault 9: ' end || call) from (values
    ('complete(%1$L, %2$L, ''T1'')', 'SB409'), ('complete(%1$L, %2$L, ''T1'', null, %3$L)', 'SB409'), ('complete(%1$L, %2$L, ''T2'', null, %3$L)', 'SB409'),
    ('complete_batch(%1$L, ''T1'', array[%2$L])', null), ('complete_batch(%1$L, ''T2'', array[%2$L], array[%3$L])', null),
    ('fail(%1$L, %2$L, ''T1'')', 'SB409'), ('fail(%1$L, %2$L, ''T1'', null, %3$L)', 'SB409'), ('fail(%1$L, %2$L, ''T2'', null, %3$L)', 'SB409'),
    ('release(%1$L, %2$L, ''T1'')', 'SB409'), ('release(%1$L, %2$L, ''T1'', %3$L)', 'SB409'), ('release(%1$L, %2$L, ''T2'', %3$L)', 'SB409')) v(call, e) where e is not null;
select matches(test.taken_over(call), 'conflict, T2 untouched$', 'fault 8: ' || call) from unnest(array['complete_batch(%1$L, ''T1'', array[%2$L])', 'complete_batch(%1$L, ''T2'', array[%2$L], array[%3$L])']) call;

-- fault 14: there are no slots that could be released: what is in flight is the claimed rows. A paused worker that comes back and gives its
-- todo up twice changes nothing of it.
select test.clear() \g /dev/null
select test.create('a', 'q', 'k' || n) from generate_series(1, 3) n \g /dev/null
create function test.in_flight() returns text language sql as $$
    select c.claimed || ' of ' || (select count(*) from switchboard.todos where state = 'claimed' and due_at > switchboard.now()) from switchboard.queue_counts(test.a()) c where c.queue = 'q'
$$;
select id::text as paused from switchboard.claim_next(test.a(), 'paused', '{q}', 1) \gset
select test.pass('1 s') \g /dev/null
select is((select id::text from switchboard.claim_next(test.a(), 'w2', '{q}', 60)), :'paused', 'fault 14: another takes over what the paused worker held');
select switchboard.claim_next(test.a(), 'w3', '{q}', 60) \g /dev/null
select is(test.in_flight(), '2 of 2', 'fault 14: two are in flight');
select test.conflict(format('select switchboard.release(test.a(), %L, ''paused'')', :'paused'), 'fault 14: the paused worker gives it up, time ' || n) from generate_series(1, 2) n;
select is(test.in_flight(), '2 of 2', 'fault 14: in flight is what is claimed');
select switchboard.release(test.a(), :'paused', 'w2') \g /dev/null
select test.conflict(format('select switchboard.release(test.a(), %L, ''w2'')', :'paused'), 'fault 14: nor does the holder give it up twice');
select is(test.in_flight(), '1 of 1', 'fault 14: one is left');

-- fault 21: a parked retry keeps its slot; A(k) dead, B(k) created, retry(A): conflict; a sweep over both, parked and due, finishes for all others
select test.clear() \g /dev/null
select test.make('dead', p_key => 'k') as a \gset
select test.make('parked', p_key => 'k') as b \gset
select ok(not t.created and t.id::text = :'b', 'fault 21: a parked retry keeps its slot') from switchboard.create_todo(test.a(), 'q', 't', p_idempotency_key => 'k') t;
select test.conflict(format('select switchboard.retry(test.a(), %L)', :'a'), 'fault 21: retry(A) while B is parked: conflict');
create table test.dues as select n, test.make('parked', 'a', 'q', 'other ' || n) as id from generate_series(1, 5) n;
select test.make('lapsed', p_key => 'lapsed') as lapsed, test.pass('1 h') \gset
select is(switchboard.tick() - '{retire_endpoints,reopen_admission,sweep_stalled,settle_marks,fold_attempts,prune}'::text[], '{"reap_expired": 1, "requeue_due_retries": 6}', 'fault 21: a sweep over both finishes for all others');
select is((select array_agg(test.situation(id)) from (select :'b' as id union all select id from test.dues union all select :'lapsed') s), array_fill('pending'::text, '{7}'), 'fault 21: B and the others are pending');
select is(test.situation(:'a'), 'dead', 'fault 21: A is a dead letter still');
select test.conflict(format('select switchboard.retry(test.a(), %L)', :'a'), 'fault 21: retry(A) while B is pending: conflict');
select is(test.situation(:'b'), 'pending', 'fault 21: which leaves B alone');

-- fault 34: a queue name of any allowed length makes no NOTIFY fail
select test.clear(), test.listen('todo_ready') \g /dev/null
create table test.names as select left(n, 63) as queue from unnest(array['a', '0', 'a.b_c-d', repeat('x', 63), '0' || repeat('.', 62), 'z' || repeat('_-', 31)]) n;
select test.vend('names', test.human('a'), (select array_agg(queue) from test.names)) \g /dev/null
select test.notify_hook('names') \g /dev/null
select lives_ok(format('select test.create(''names'', %L)', queue), format('fault 34: a create in a queue of %s characters', length(queue))) from test.names;
select lives_ok($$ select switchboard.create_todos(test.endpoint('names'), (select jsonb_agg(jsonb_build_object('queue', queue, 'title', 't')) from test.names)) $$, 'fault 34: a batch in all of them');
select lives_ok(format('select switchboard.release(test.endpoint(''names''), c.id::text, ''w'') from switchboard.claim_next(test.endpoint(''names''), ''w'', array[%L]) c', queue), format('fault 34: a release, %s characters', length(queue))) from test.names;
select is((select array_agg(distinct substr(p, strpos(p, ':') + 1) order by substr(p, strpos(p, ':') + 1)) from unnest(test.heard('todo_ready')) p where split_part(p, ':', 1) = test.endpoint('names')), (select array_agg(queue order by queue) from test.names), 'fault 34: the payload, split at its first colon, gives the endpoint and the queue');
delete from switchboard.notify_hooks;

-- fault 35: a listener that is stuck in a transaction keeps no create from committing
select test.clear(), test.connect('stuck') \g /dev/null
select test.there('stuck', s) from unnest(array['listen todo_ready', 'listen switchboard_outbox', 'begin', 'do $b$ begin perform switchboard.list_todos(test.a()); end $b$']) s \g /dev/null
set lock_timeout = '2s';
select test.notify_hook() \g /dev/null
select test.create('a', 'q', 'k' || n) from generate_series(1, 5) n \g /dev/null
select is((select count(*) from switchboard.todos), 5::bigint, 'fault 35: a listener stuck in a transaction: creates commit');
select test.there('stuck', 'rollback') \g /dev/null
reset lock_timeout;
delete from switchboard.notify_hooks;

-- fault 36: two dispatchers, and one dies: between taking and committing, between sending and recording. The same webhook-id again, never two at once.
select test.clear() \g /dev/null
select test.notify_hook(), test.create(), test.create('a', 'r'), test.connect('dispatcher') \g /dev/null
create function test.dispatch(p_limit int) returns text[] language sql as $$
    select coalesce(array_agg(d.queue || ' attempt ' || (c ->> 'attempt') || ' as ' || (c ->> 'message_id') order by d.queue), '{}') from jsonb_array_elements(switchboard.take_deliveries(p_limit)) c join switchboard.notify_deliveries d on d.id::text = c ->> 'id'
$$;
create function test.messages() returns text[] language sql as $$ select array_agg('msg_' || replace(id::text, '-', '') order by queue) from switchboard.notify_deliveries $$;
select test.pass('1 s') \g /dev/null
select test.there('dispatcher', format('set switchboard.test_now = %L', switchboard.now())) \g /dev/null
select test.there('dispatcher', s) from unnest(array['begin', 'do $b$ begin perform switchboard.take_deliveries(); end $b$']) s \g /dev/null
select is(test.dispatch(10), '{}', 'fault 36: what one dispatcher is taking, the other one passes by');
select test.dblink_disconnect('dispatcher') \g /dev/null
do $$ begin  -- its backend ends after the connection
    for n in 1..1000 loop
        exit when not exists (select from pg_locks l where l.relation = 'switchboard.notify_hooks'::regclass and l.pid <> pg_backend_pid());
        perform pg_sleep(0.01);
    end loop;
end $$;
select is(test.dispatch(10), array['q attempt 1 as ' || (test.messages())[1], 'r attempt 1 as ' || (test.messages())[2]], 'fault 36: died before it committed: nothing was sent, the other one takes both');
select is(test.settle(jsonb_build_object('endpoint_id', endpoint_id, 'id', id, 'attempt', 1), '2xx'), 'delivered', 'fault 36: and records one of them, then dies') from switchboard.notify_deliveries where queue = 'r';
select test.pass('14 s') \g /dev/null
select is(test.dispatch(10), '{}', 'fault 36: while it may yet record the other, nobody sends it');
select test.pass('1 s') \g /dev/null
select is(test.dispatch(10), array['q attempt 2 as ' || (test.messages())[1]], 'fault 36: then it is sent again, under the same webhook-id');
select is(test.settle(jsonb_build_object('endpoint_id', endpoint_id, 'id', id, 'attempt', 1), '5xx'), 'superseded', 'fault 36: the dead one, if it lives, changes nothing any more') from switchboard.notify_deliveries where queue = 'q';
select is(test.settle(jsonb_build_object('endpoint_id', endpoint_id, 'id', id, 'attempt', 2), '2xx'), 'delivered', 'fault 36: the living one records it') from switchboard.notify_deliveries where queue = 'q';
select test.pass('1 d') \g /dev/null
select is(test.dispatch(10), '{}', 'fault 36: nothing is sent twice for one id after success');

-- fault 37: a hook without a secret sends nothing, however it came to have none
select test.clear() \g /dev/null
delete from switchboard.notify_hooks;
select test.notify_hook('a', null, null), test.notify_hook('a', null, '\x') \g /dev/null
select test.call('create_notify_hook', '{"url": "https://agent.example"}'), test.create(), test.make('due') \g /dev/null
select count(*) from switchboard.requeue_due_retries() \g /dev/null
select test.pass('1 d') \g /dev/null
select is(test.nudge() || test.posted() || test.calls(), '{}', 'fault 37: hooks without a secret get no call, of no kind');
select is((select count(*) from switchboard.list_notify_hooks(test.a()) where enabled), 0::bigint, 'fault 37: and are not enabled');
select test.notify_hook() as hook, test.create() \gset
update switchboard.notify_hooks set sealed_secret = null;
select is(test.calls(), '{}', 'fault 37: one whose secret is gone, neither, whatever waits');
delete from switchboard.notify_hooks;

-- fault 39, as far as SQL has it: 500, 301, after 6 s, 10 MB and never are retried, 200 is not; disabled at the tenth failed delivery
select test.clear(), test.notify_hook() as hook \gset
create function test.receive(p_statuses text[]) returns text[] language plpgsql as $$
declare
    v_status text;
    v_results text[] := '{}';
begin
    perform test.create();
    foreach v_status in array p_statuses loop
        v_results := v_results || test.settle(switchboard.take_deliveries() -> 0, v_status);
        perform test.pass('7 s');
    end loop;
    return v_results;
end
$$;
select is(test.receive(array[s, s, s]), '{again,again,failed}', 'fault 39: ' || s || ' is tried three times') from unnest('{5xx,3xx,timeout,too_large,unreachable,4xx,tls}'::text[]) s;
select is(test.receive('{timeout,2xx}'), '{again,delivered}', 'fault 39: a success in between is one');
select is((select failures from switchboard.list_notify_hooks(test.a())), 0, 'fault 39: and makes good for those before');
select is(test.receive('{5xx,5xx,5xx}'), '{again,again,failed}', 'fault 39: failed delivery ' || n) from generate_series(1, 9) n;
select is((select enabled || ' ' || failures from switchboard.list_notify_hooks(test.a())), 'true 9', 'fault 39: not yet');
select is(test.receive('{5xx,5xx,5xx}'), '{again,again,failed}', 'fault 39: failed delivery 10');
select is((select enabled || ' ' || failures from switchboard.list_notify_hooks(test.a())), 'false 10', 'fault 39: disabled at the tenth');
select is(test.posted(test.create()) || test.calls(), '{}', 'fault 39: and nothing more is sent');
delete from switchboard.notify_hooks;

-- fault 67: the login of an endpoint leaves a transaction open with a claim in it, and the endpoint expires: the sweeps pass it by
select test.clear(), test.real_time(), test.login('idle', 'switchboard_worker') as idle \gset
select switchboard.bind_login(test.a(), :'idle') \g /dev/null
select test.create('a'), test.create('a'), test.create('b') as of_b \gset
select switchboard.claim(test.b(), :'of_b', 'w1'), test.lapse() \g /dev/null
select test.connect('idle', :'idle') \g /dev/null
select test.there('idle', s) from unnest(array['begin', 'do $b$ begin perform switchboard.claim_next(null, ''idle''); end $b$']) s \g /dev/null
update switchboard.endpoints set expires_at = switchboard.now() - interval '1 s' where id::text = test.a();
update switchboard.sweeps set last_run_at = 'epoch';
set lock_timeout = '2s';
select is((select count(*) from jsonb_each(switchboard.tick()) t where jsonb_typeof(t.value) = 'number'), (select count(*) from unnest(switchboard.sweep_names())), 'fault 67: a claim left open on an expired endpoint holds up no sweep');
select is(test.situation(:'of_b'), 'pending', 'fault 67: what lapsed elsewhere is swept');
select test.there('idle', 'rollback') \g /dev/null
update switchboard.sweeps set last_run_at = 'epoch';
select switchboard.tick() \g /dev/null
select is((select array_agg(distinct test.situation(id::text)) from switchboard.todos where endpoint_id::text = test.a()), '{dead}', 'fault 67: and when it is over the next sweep retires it');

select * from finish();
