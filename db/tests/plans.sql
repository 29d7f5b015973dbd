-- What claims, owner transitions and wakes cost on a large table, in buffers, and by which index: EXPLAIN of the calls, and the statistics of the
-- indexes. Faults 1, 2, 61, 64; design.md, "Speed". Millions of rows and clients are bench/'s.
select no_plan();
select test.vend('a', (select id from switchboard.create_human('Ada')), (select array_agg('q' || n) from generate_series(1, 20) n)) \g /dev/null
alter table switchboard.todos set (autovacuum_enabled = false); -- statistics are as stale as each test leaves them
set jit = off;

-- Rows as many claims and completes would have left them. p_state: pending, done, failed (dead), claimed (lease p_lease from now).
create function test.bulk(p_state text, p_rows int, p_queues int, p_assignee text default null, p_age interval default '1 h', p_lease interval default '1 h') returns void language sql as $$
    insert into switchboard.todos (endpoint_id, id, created_at, state, queue, assignee, trust_mode, title, attempt, claims, lease_seconds, owner, claimed_at, due_at, lease_token, completed_at)
    select test.a()::uuid, switchboard.new_id(at), at, p_state::switchboard.todo_state, 'q' || 1 + n % p_queues, p_assignee, 'sql', 'bulk', case p_state when 'pending' then 0 else 1 end, case p_state when 'pending' then 0 else 1 end, 300,
        case when p_state <> 'pending' then 'w1' end, case when p_state <> 'pending' then at end, case p_state when 'claimed' then clock_timestamp() + p_lease end, case p_state when 'claimed' then 'token' end,
        case when p_state in ('done', 'failed') then at end
    from (select n, clock_timestamp() - p_age + n * interval '1 ms' as at from generate_series(1, p_rows) n) s
$$;

-- Calls p_call 15 times, a transaction each (dead entries of one's own transaction could not be skipped), and keeps the least buffers of
-- the last nine: plans are made by then, and what an ANALYZE beside it or an open snapshot adds is not the claim's cost. p_call may name %1$L, the endpoint, and %2$L, the next of test.held.
create table test.held (n bigserial, id text);
create table test.costs (name text, cost int);
create procedure test.measure(p_name text, p_call text) language plpgsql as $$
declare
    v_costs int[] := '{}';
    v_id text;
begin
    for n in 1..15 loop
        delete from test.held h where h.n = (select min(i.n) from test.held i) returning h.id into v_id;
        v_costs := v_costs || (test.plan_of(format('select * from switchboard.' || p_call, test.a(), v_id)) ->> 'buffers')::int;
        commit;
    end loop;
    insert into test.costs select p_name, min(c) from unnest(v_costs[7:]) c;
    commit;
end
$$;
create function test.within(p_name text, p_limit int, p_what text) returns text language sql as $$
    select tap.ok(c.cost <= p_limit, format('%s (%s): at most %s buffers', p_what, p_name, p_limit)) || case when c.cost <= p_limit then '' else E'\n' || tap.diag('it took ' || c.cost) end
    from (select (select cost from test.costs where name = p_name) as cost) c
$$;
-- Scans so far: of the table, and of an index.
-- What the session has counted is written when it next becomes idle, and then only once a second unless forced.
create function test.scans(p_index text default null) returns bigint language sql as $$
    select case when p_index is null then pg_stat_get_numscans('switchboard.todos'::regclass) else pg_stat_get_numscans(('switchboard.' || p_index)::regclass) end
$$;
create function test.names(p_queues int) returns text language sql immutable as $$ select (select array_agg('q' || n) from generate_series(1, p_queues) n)::text $$;

-- fault 1: a backlog of other states, and of other queues, costs a claim nothing
select test.bulk('done', 60000, 20, p_age => '1 d'), test.bulk('failed', 10000, 20, p_age => '1 d'), test.bulk('pending', 40000, 19) \g /dev/null
insert into switchboard.todos (endpoint_id, id, queue, trust_mode, title) select test.a()::uuid, switchboard.new_id(clock_timestamp(), n), 'q20', 'sql', 'of q20' from generate_series(1, 100) n;
vacuum analyze switchboard.todos;
select pg_stat_force_next_flush() \g /dev/null
select test.scans() as scans, test.scans('todos_finished') as ended \gset
call test.measure('1 queue', format('claim_next(%%1$L, ''w'', %L)', test.names(1)));
call test.measure('5 queues', format('claim_next(%%1$L, ''w'', %L)', test.names(5)));
call test.measure('20 queues', format('claim_next(%%1$L, ''w'', %L)', test.names(20)));
call test.measure('short queue', 'claim_next(%1$L, ''w'', ''{q20}'')');
call test.measure('batch', 'claim_batch(%1$L, ''w'', 100, ''{q1}'')');
select test.within(name, l, 'fault 1: claim_next') from (values ('1 queue', 44), ('5 queues', 60), ('20 queues', 120), ('short queue', 44)) v(name, l);
select test.within('batch', 5000, 'claim_batch of 100');
select pg_stat_force_next_flush() \g /dev/null
select is(test.scans() - :scans, 0::bigint, 'Claim never scans terminal rows: no scan of the table');
select is(test.scans('todos_finished') - :ended, 0::bigint, 'Claim never scans terminal rows: nor of the index of ended ones');

-- fault 2: lapsed leases among a large backlog are found by their own index
select test.bulk('claimed', 1000, 20, p_age => '2 h', p_lease => '-1 s') \g /dev/null
call test.measure('lapsed', 'claim_next(%1$L, ''w'', ''{q1}'')');
select test.within('lapsed', 120, 'fault 2: claim_next with 1,000 lapsed ones');
select cmp_ok((select count(*) from switchboard.reap_expired(2000)), '>', 900::bigint, 'fault 2: the sweep finds them');
call test.measure('idle sweep', 'reap_expired()');
select test.within('idle sweep', 60, 'fault 2: a sweep with nothing to do');
select test.bulk('claimed', 30000, 20) \g /dev/null
select pg_stat_force_next_flush() \g /dev/null
select test.scans('idx_todos_claimed_endpoint_queue') as held \gset
call test.measure('sweep', 'reap_expired()');
call test.measure('retries', 'requeue_due_retries()');
call test.measure('beside leases', 'claim_next(%1$L, ''w'', ''{q1}'')');
select test.within('sweep', 60, 'a sweep over 30,000 leases that run');
select test.within('beside leases', 60, 'claim_next beside 30,000 leases that run');
select test.within('retries', 60, 'requeue_due_retries beside 30,000 leases that run');
select pg_stat_force_next_flush() \g /dev/null
select is(test.scans('idx_todos_claimed_endpoint_queue') - :held, 0::bigint, 'sweeps, and claims without a budget, never go by the index of what is held');

-- fault 61: 50,000 todos of somebody else at the head of the queues
select test.bulk('pending', 50000, 5, 'ann', p_age => '3 h') \g /dev/null
analyze switchboard.todos;
-- as a sweep would have: the lapsed ones of before are dead entries below the mark
select switchboard.settle_marks() \g /dev/null
call test.measure('assigned, 1 queue', format('claim_next(%%1$L, ''w'', %L)', test.names(1)));
call test.measure('assigned, 5 queues', format('claim_next(%%1$L, ''w'', %L)', test.names(5)));
call test.measure('assigned, 20 queues', format('claim_next(%%1$L, ''w'', %L)', test.names(20)));
call test.measure('ann, 5 queues', format('claim_next(%%1$L, ''ann'', %L)', test.names(5)));
call test.measure('ann, 20 queues', format('claim_next(%%1$L, ''ann'', %L)', test.names(20)));
select test.within(name, l, 'fault 61: claim_next with 50,000 assigned to others at the head') from (values ('assigned, 1 queue', 44), ('assigned, 5 queues', 60), ('assigned, 20 queues', 120)) v(name, l);
select test.within(name, l, 'fault 61: claim_next of their assignee') from (values ('ann, 5 queues', 100), ('ann, 20 queues', 200)) v(name, l);

-- fault 64: owner transitions go by the primary key, when the statistics say that nothing is claimed
truncate switchboard.todos, switchboard.todo_attempts cascade;
select test.bulk('done', 10000, 20, p_age => '1 d') \g /dev/null
vacuum analyze switchboard.todos;
select test.bulk('claimed', 20000, 20) \g /dev/null
insert into test.held (id) select id::text from switchboard.todos where state = 'claimed' order by random() limit 200;
-- dead entries: 10,000 of them have come and gone
update switchboard.todos set state = 'done', due_at = null, lease_token = null, completed_at = now()
    where ctid in (select ctid from switchboard.todos where state = 'claimed' and id::text not in (select id from test.held) limit 10000);
select pg_stat_force_next_flush() \g /dev/null
select test.scans('todos_due') as leases, test.scans('todos_pkey') as keys, test.scans('idx_todos_claimed_endpoint_queue') as held \gset
call test.measure('heartbeat', 'heartbeat(%1$L, %2$L, ''w1'')');
call test.measure('complete', 'complete(%1$L, %2$L, ''w1'')');
call test.measure('complete with token', 'complete(%1$L, %2$L, ''w1'', null, ''token'')');
call test.measure('fail', 'fail(%1$L, %2$L, ''w1'')');
call test.measure('release', 'release(%1$L, %2$L, ''w1'')');
call test.measure('complete_batch', 'complete_batch(%1$L, ''w1'', array[%2$L])');
call test.measure('complete_any_endpoint', 'complete_any_endpoint(%2$L, p_force => true)');
select test.within(name, l, 'fault 64: owner transitions') from (values ('heartbeat', 25), ('complete', 45), ('complete with token', 45), ('fail', 45), ('release', 50), ('complete_batch', 45), ('complete_any_endpoint', 60)) v(name, l);
select pg_stat_force_next_flush() \g /dev/null
select is(test.scans('todos_due') - :leases, 0::bigint, 'fault 64: never over the partial index of what is due');
select is(test.scans('idx_todos_claimed_endpoint_queue') - :held, 0::bigint, 'fault 64: nor over that of what is held');
select cmp_ok(test.scans('todos_pkey') - :keys, '>=', 15 * 7::bigint, 'fault 64: by the primary key');
select is((select count(*) from switchboard.todo_attempts), 15 * 6::bigint, 'fault 64: (and each of them did its work)');

-- wakes: bells, the outbox and nudges on a large table
truncate switchboard.todos, switchboard.todo_attempts cascade;
update switchboard.queue_marks set pending_from = 'epoch', rung_from = 'epoch';
select test.bulk('done', 60000, 20, p_age => '1 d'), test.bulk('pending', 50000, 19, p_age => '2 h'), test.bulk('pending', 50000, 5, 'ann', p_age => '3 h') \g /dev/null
-- they have rung, three times and long ago
update switchboard.todos set ring_attempts = 3, last_ringed_at = clock_timestamp() - interval '10 min' where state = 'pending';
vacuum analyze switchboard.todos;
insert into switchboard.todos (endpoint_id, id, created_at, queue, trust_mode, title) select test.a()::uuid, switchboard.new_id(clock_timestamp(), n), clock_timestamp(), 'q' || 1 + n % 20, 'sql', 'new' from generate_series(1, 2000) n;
call test.measure('bell', 'take_doorbells(%1$L, 3, ''q1'')');
call test.measure('bell, nothing new', 'take_doorbells(%1$L, 3, ''q20'')');
update switchboard.todos set ring_attempts = 3, last_ringed_at = clock_timestamp() - interval '10 min' where state = 'pending' and ring_attempts = 0;
vacuum switchboard.todos;
call test.measure('bell, all has rung', 'take_doorbells(%1$L, 3, ''q1'')');
call test.measure('the oldest, all has rung', 'take_doorbells(%1$L, 3)');
call test.measure('attach', 'take_doorbells(%1$L, 3, null, true)');
select test.within(name, l, 'take_doorbells') from (values ('bell', 200), ('bell, nothing new', 200), ('bell, all has rung', 200), ('the oldest, all has rung', 2500), ('attach', 400)) v(name, l);
-- a mark that was lowered below 50,000 that have rung, as each release does: a look covers 2,000 of them, and goes on where it was
update switchboard.queue_marks set rung_from = 'epoch' where queue = 'q1';
update switchboard.todos set queue = 'q1' where state = 'pending' and assignee is null;
vacuum analyze switchboard.todos;
call test.measure('bell, a low mark', 'take_doorbells(%1$L, 3, ''q1'')');
select test.within('bell, a low mark', 900, 'take_doorbells');

-- nudges: nothing but the heads of the queues is looked at
select test.notify_hook() \g /dev/null
update switchboard.todos set queue = 'q' || 1 + floor(random() * 20) where state = 'pending' and assignee is null;
vacuum analyze switchboard.todos;
call test.measure('sweep', 'sweep_stalled()');  -- the first ones nudge, then nothing is due
select is((select count(*) from switchboard.queue_stall_nudges), 20::bigint, '(20 queues are nudged)');
delete from test.costs where name = 'sweep';
call test.measure('sweep', 'sweep_stalled()');
select test.within('sweep', 250, 'sweep_stalled over 20 stalled queues, 100,000 pending ones and 50,000 assigned to one');
update switchboard.todos set trust_mode = 'open' where state = 'pending' and assignee is null and queue = 'q1';
delete from switchboard.queue_stall_nudges where queue = 'q1';
vacuum analyze switchboard.todos;
call test.measure('sweep, open', 'sweep_stalled()');
select test.within('sweep, open', 3000, 'sweep_stalled with 2,500 open ones at a head');
call test.measure('claim', 'claim_next(%1$L, ''w'', ''{q2}'')');
select test.within('claim', 44, 'claim_next in a queue that was nudged');
select is((select array_agg(proname::text order by proname) from pg_proc where pronamespace = 'switchboard'::regnamespace and 'jit=off' = any (proconfig)), '{board_page,find_todos,find_todos_any_endpoint,queue_overview,sweep_stalled,tick}', 'sweeps and pages are not compiled: it would take longer than they do');

-- the outbox: 10,000 calls wait, 50,000 have ended
select switchboard.post_wakes(test.a()::uuid, 'q3', array(select id from switchboard.todos where state = 'pending' order by id limit 10000), 'created') \g /dev/null
insert into switchboard.notify_deliveries (endpoint_id, id, hook_id, todo_id, queue, reason, attempts, ended_at, outcome)
    select h.endpoint_id, switchboard.new_id(clock_timestamp() - interval '1 d', n % 10000), h.id, gen_random_uuid(), 'q1', 'created', 1, now(), 'delivered' from switchboard.notify_hooks h, generate_series(1, 50000) n;
vacuum analyze switchboard.notify_deliveries;
update switchboard.notify_hooks set quota_full_at = 'epoch';
create procedure test.measure_calls() language plpgsql as $$
declare
    v_costs int[] := '{}';
begin
    for n in 1..15 loop
        update switchboard.notify_hooks set quota_full_at = 'epoch';
        v_costs := v_costs || (test.plan_of('select switchboard.take_deliveries(20)') ->> 'buffers')::int;
        commit;
    end loop;
    insert into test.costs select 'take 20', min(c) from unnest(v_costs[7:]) c;
    insert into test.held (id) select id::text from switchboard.notify_deliveries where attempts = 1 and due_at is not null limit 100;
    commit;
end
$$;
truncate test.held;
call test.measure_calls();
call test.measure('take, no quota', 'take_deliveries(20)');
call test.measure('settle', 'settle_delivery(%1$L, %2$L, 1, ''2xx'')');
update switchboard.notify_deliveries set due_at = null, ended_at = now(), outcome = 'moot' where due_at is not null;
vacuum switchboard.notify_deliveries;
update switchboard.notify_hooks set quota_full_at = 'epoch';
call test.measure('take, nothing due', 'take_deliveries(20)');
call test.measure('prune', 'prune()');
select test.within(name, l, what) from (values ('take 20', 900, 'take_deliveries among 10,000 that wait and 50,000 that ended'), ('take, no quota', 30, 'take_deliveries when the quota is used up'), ('settle', 60, 'settle_delivery'), ('take, nothing due', 30, 'take_deliveries with nothing due'), ('prune', 1000, 'prune with nothing to delete')) v(name, l, what);
delete from switchboard.notify_hooks;
update switchboard.endpoints set stalled_queues = null;

-- reading: lists of the few among the many
truncate switchboard.todos, switchboard.todo_attempts cascade;
select test.bulk('done', 60000, 20, p_age => '1 d'), test.bulk('failed', 3, 1) \g /dev/null
vacuum analyze switchboard.todos;
truncate test.held;
insert into test.held (id) select id::text from switchboard.todos limit 100;
call test.measure('list failed', 'list_todos(%1$L, p_state => ''failed'')');
call test.measure('list queue', 'list_todos(%1$L, ''q1'')');
call test.measure('counts', 'queue_counts(%1$L)');
call test.measure('get', 'get_todo(%1$L, %2$L)');
call test.measure('create', 'create_todo(%1$L, ''q1'', ''t'', p_idempotency_key => gen_random_uuid()::text)');
call test.measure('create 100', 'create_todos(%1$L, (select jsonb_agg(jsonb_build_object(''queue'', ''q1'', ''title'', ''t'')) from generate_series(1, 100)))');
select test.notify_hook('a', '{q1}'), test.notify_hook('a', '{q2}') \g /dev/null
call test.measure('create, called for', 'create_todo(%1$L, ''q1'', ''t'', p_idempotency_key => gen_random_uuid()::text)');
select test.within(name, l, what) from (values ('list failed', 150, 'list_todos of 3 failed ones among 60,000'), ('list queue', 300, 'list_todos of one queue'), ('counts', 300, 'queue_counts'), ('get', 12, 'get_todo'), ('create', 20, 'create_todo with a key, one buffer more than without hooks'), ('create 100', 1200, 'create_todos of 100'), ('create, called for', 50, 'create_todo with a hook')) v(name, l, what);

-- budgets: a queue without one pays a probe, one with one counts what it holds, by the index of that
create function test.buffers(p_sql text) returns int language sql as $$ select (test.plan_of(p_sql) ->> 'buffers')::int $$;
select test.vend('b', test.human('a'), (select array_agg('q' || n) from generate_series(1, 32) n)) \g /dev/null
select count(switchboard.set_admission_policy(test.b(), 'q' || n, '{"max_in_flight": 5}')) from generate_series(1, 32) n \g /dev/null
vacuum analyze switchboard.admission_policies;
select cmp_ok(test.buffers(format('select array(select p.queue from switchboard.admission_policies p where p.endpoint_id = %L)', test.a())), '<=', 4, 'the probe of a claim reads at most 4 buffers');
select cmp_ok(test.buffers(format('select exists (select from switchboard.admission_owed o where o.endpoint_id = %L and o.queue = ''q1'')', test.a())), '<=', 4, 'and that of an end');
select cmp_ok(test.buffers(format('select exists (select from switchboard.admission_policies p where p.endpoint_id = %L and p.queue = ''q1'')', test.a())), '<=', 4, 'and that of a create');
truncate switchboard.todos cascade;
select test.bulk('pending', 20000, 20) \g /dev/null
vacuum analyze switchboard.todos; -- statistics of an idle queue
select switchboard.set_admission_policy(test.a(), 'q1', '{"max_in_flight": 5000, "max_claims_per_window": 1000000, "window": {"period": "day", "tz": "Europe/Berlin"}}') \g /dev/null
select test.bulk('claimed', 10000, 20) \g /dev/null
select pg_stat_force_next_flush() \g /dev/null
select test.scans() as scans, test.scans('idx_todos_claimed_endpoint_queue') as counted \gset
call test.measure('budget', 'claim_next(%1$L, ''w'', ''{q1}'')');
select test.within('budget', 900, 'claim_next with 500 held, which it counts before and under the lock');
select pg_stat_force_next_flush() \g /dev/null
select cmp_ok(test.scans('idx_todos_claimed_endpoint_queue') - :counted, '>=', 30::bigint, 'by the index of what is held');
select is(test.scans() - :scans, 0::bigint, 'and by no scan of the table');
insert into test.held (id) select id::text from switchboard.todos where state = 'claimed' and owner = 'w1' limit 100;
select pg_stat_force_next_flush() \g /dev/null
select test.scans('idx_todos_claimed_endpoint_queue') as counted \gset
call test.measure('end', 'complete(%1$L, %2$L, ''w1'')');
select test.within('end', 60, 'fault 64: an end goes by the primary key, not by that index');
select pg_stat_force_next_flush() \g /dev/null
select is(test.scans('idx_todos_claimed_endpoint_queue') - :counted, 0::bigint, 'fault 64: which it never scans');

-- budgets: 10,000 that were held are dead entries, and windows are found by their key among those of 35 days
alter table switchboard.admission_windows set (autovacuum_enabled = false);
create function test.finish_all() returns void language sql as $$
    update switchboard.todos set state = 'done', due_at = null, lease_token = null, completed_at = now() where state = 'claimed'
$$;
insert into switchboard.admission_windows (endpoint_id, policy_id, window_start, used)
    select p.endpoint_id, p.id, date_trunc('hour', now()) - n * interval '1 hour', 1 from switchboard.admission_policies p, generate_series(1, 35 * 24) n on conflict do nothing;
vacuum analyze switchboard.admission_windows;
update switchboard.todos set queue = 'q1' where state = 'claimed';
select test.finish_all(), test.bulk('pending', 40000, 20) \g /dev/null
select pg_stat_force_next_flush() \g /dev/null
select pg_stat_get_numscans('switchboard.admission_windows'::regclass) as windows, test.scans('admission_windows_pkey') as window_keys, test.scans('idx_todos_claimed_endpoint_queue') as counted \gset
call test.measure('budget, dead entries', 'claim_next(%1$L, ''w'', ''{q1}'')');
call test.measure('budget, all queues', 'claim_next(%1$L, ''w'')');
call test.measure('budget, batch', 'claim_batch(%1$L, ''w'', 100, ''{q1}'')');
select test.within(name, l, what) from (values ('budget, dead entries', 220, 'claim_next in a queue with both limits, 10,000 ended there'), ('budget, all queues', 260, 'claim_next over 20 queues, one with a budget'), ('budget, batch', 8000, 'claim_batch of 100 in a queue with both limits')) v(name, l, what);
select pg_stat_force_next_flush() \g /dev/null
select is(pg_stat_get_numscans('switchboard.admission_windows'::regclass) - :windows, 0::bigint, 'a window is found without a scan of them');
select cmp_ok(test.scans('admission_windows_pkey') - :window_keys, '>=', 15 * 2 * 2::bigint, 'but by its key');
select cmp_ok(test.scans('idx_todos_claimed_endpoint_queue') - :counted, '>=', 15 * 2 * 2::bigint, 'and what is held by its index');

-- the board: a page reads the heads of indexes and folded totals, however many have ended
truncate switchboard.todos cascade;
select test.bulk('done', 200000, 20, p_age => '2 days'), test.bulk('failed', 20000, 20, p_age => '1 day'), test.bulk('pending', 2000, 20) \g /dev/null
vacuum analyze switchboard.todos;
select pg_stat_force_next_flush() \g /dev/null
select test.scans() as scans \gset
create temp table pages as
select p.name, test.buffers(format('select switchboard.board_page(%L, %L, %L)', (select e.human_id from switchboard.endpoints e where e.id = test.a()::uuid), p.page, p.args)) as cost from generate_series(1, 3) n, (values
    ('exchange', 'exchange', '{}'), ('done', 'exchange', '{"state": "done"}'), ('dead', 'exchange', '{"state": "dead"}'), ('search', 'exchange', '{"q": "bulk"}'),
    ('endpoints', 'endpoints', '{}'), ('endpoint', 'endpoint', '{"slug": "test-a"}'), ('deliveries', 'deliveries', '{}'), ('health', 'health', '{}')) p (name, page, args);
select cmp_ok(min(p.cost), '<=', l, format('fault 60: the page %s, over 222,000 todos: at most %s buffers', p.name, l)) from pages p join (values
    ('exchange', 2500), ('done', 3000), ('dead', 3000), ('search', 6000), ('endpoints', 1200), ('endpoint', 1700), ('deliveries', 300), ('health', 800)) v (name, l) using (name) group by p.name, l;
select pg_stat_force_next_flush() \g /dev/null
select is(test.scans() - :scans, 0::bigint, 'fault 60: and none scans the table');

select * from finish();
