-- functions/62_stall beyond the scenarios of SPEC-0038 (spec_0038.sql): boundaries, what is progress and what is not, fairness, and what
-- a transaction that somebody leaves open may not hold up. Races are in isolation/specs, costs in plans.sql.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
create function test.fresh_start() returns void language sql as $$ select test.clear(); delete from switchboard.notify_hooks $$;
-- Moves the clock on, then sweeps.
create function test.nudge_after(p_span interval) returns text[] language plpgsql as $$ begin perform test.pass(p_span); return test.nudge(); end $$;

-- to the second: the first nudge when the oldest is 5 minutes old; after progress when it is older than 2
select test.notify_hook(), test.create() as id \gset
select is(test.nudge_after(s), e::text[], format('%s later: %s', s, e)) from (values ('4 min 59.999999 s'::interval, '{}'), ('1 us', '{"a q 1"}'), ('0 s', '{}')) v(s, e);
select test.clear(), test.create(), test.pass('5 min') \g /dev/null
select is(test.nudge(), '{"a q 1"}', '(nudged)');
select switchboard.claim_next(test.a(), 'w'), test.create() \g /dev/null
select is(test.nudge_after(s), e::text[], format('after progress, with a todo that is %s older: %s', s, e)) from (values ('2 min'::interval, '{}'), ('1 us', '{"a q 1"}'), ('0 s', '{}')) v(s, e);

-- limits
select test.invalid(format('select * from switchboard.sweep_stalled(%s)', l), 'limit', 'no limit: ' || l) from unnest('{0,-1}'::int[]) l;
select test.vend('wide', test.human('a'), (select array_agg('w' || n) from generate_series(1, 9) n)) \g /dev/null
create function test.line_up() returns void language plpgsql as $$
begin
    perform test.fresh_start();
    perform test.notify_hook('wide'), test.notify_hook('b');
    for v_n in 1..9 loop
        perform test.create('wide', 'w' || v_n), test.pass('1 s');
    end loop;
    perform test.create('b', 'q'), test.pass('5 min');
    truncate switchboard.notify_deliveries;
end
$$;
select test.line_up() \g /dev/null
select is(test.nudge(1000), '{"wide w1 1","wide w2 1","wide w3 1","wide w4 1"}', 'four a call at most, the oldest first');
select is(test.posted(), '{stalled,stalled,stalled,stalled}', 'four calls');
select is(test.nudge(null), '{"wide w5 1","wide w6 1","wide w7 1","wide w8 1"}', 'NULL is four; the next call takes the next');
select is(test.nudge(1), '{"wide w9 1"}', 'fewer on request');
select is(test.nudge(), '{"b q 1"}', 'the rest');
select is(test.nudge(), '{}', 'no one twice');
-- least-nudged first
select test.line_up(), test.nudge(2), test.pass('20 min'), test.nudge(2) \g /dev/null
select is((select array_agg(l order by l) from unnest(test.ledger()) l where l ~ '[12]$'), '{"wide w1 1","wide w2 1","wide w3 1","wide w4 1"}', 'one that was never nudged goes before one that was');
select test.nudge() \g /dev/null
select set_eq('select unnest(test.nudge())', array['wide w9 1', 'b q 1', 'wide w1 2', 'wide w2 2'], 'which then has its turn');
select test.create('a2', 'q'), test.notify_hook('a2') \g /dev/null
select test.pass('1 h'), switchboard.claim_next(test.endpoint('wide'), 'w', '{w2}'), test.create('wide', 'w2') \g /dev/null
select test.pass('2 min 1 s') \g /dev/null
select set_eq('select unnest(test.nudge(2))', array['a2 q 1', 'wide w2 1'], 'nor does what made progress wait for those that were nudged: both count from 1');

-- what is progress: every way to claim, however the claim ends before the next sweep
create table test.claims (way text, call text);
insert into test.claims values ('claim', 'claim(test.a(), %L, ''w'')'), ('claim_next', 'claim_next(test.a(), ''w'')'), ('claim_next in one queue', 'claim_next(test.a(), ''w'', ''{q}'')'), ('claim_next in several', 'claim_next(test.a(), ''w'', ''{q,r}'')'),
    ('claim_batch', 'claim_batch(test.a(), ''w'', 1)'), ('claim_batch of many', 'claim_batch(test.a(), ''w'', 10, ''{q}'')'), ('claim_any_endpoint', 'claim_any_endpoint(%L)'), ('MCP', null);
create function test.progress(p_way text, p_end text) returns text[] language plpgsql as $$
declare
    v_id text;
    v_call text := (select call from test.claims where way = p_way);
    v_before text[];
begin
    perform test.fresh_start();
    perform test.notify_hook();
    v_id := test.create();
    perform test.pass('1 s'), test.create(), test.pass('5 min'), test.nudge();
    perform test.pass('1 min');
    v_before := test.nudge();  -- not due
    if v_call is null then
        perform test.call('claim_next');
    else
        execute 'select * from switchboard.' || format(v_call, v_id);
    end if;
    perform test.pass('1 s');
    case p_end
        when 'held' then null;
        when 'complete' then perform switchboard.complete_any_endpoint(v_id, p_force => true);
        when 'fail' then perform switchboard.fail_any_endpoint(v_id, p_force => true);
        when 'fail for good' then
            update switchboard.todos set max_attempts = 1 where id::text = v_id;
            perform switchboard.fail_any_endpoint(v_id, p_force => true);
        when 'release' then perform switchboard.release_any_endpoint(v_id, p_force => true);
        when 'lapse' then
            update switchboard.todos set due_at = switchboard.now() where id::text = v_id;
            perform switchboard.reap_expired();
        when 'retry' then perform switchboard.fail_any_endpoint(v_id, p_force => true), switchboard.retry_any_endpoint(v_id);
        when 'delete' then delete from switchboard.todos where id::text = v_id;
    end case;
    if p_way = 'claim_batch of many' then  -- it took all there is
        perform test.create(), test.pass('2 min 1 s');
    end if;
    perform test.pass('1 s');
    return v_before || test.nudge();
end
$$;
select test.grant_all('a') \g /dev/null
select is(test.progress(c.way, e), '{"a q 1"}', format('progress: %s, then %s', c.way, e)) from test.claims c, unnest('{held,complete,fail,"fail for good",release,lapse,retry,delete}'::text[]) e;
-- of what lapsed or was parked, and not yet swept
create function test.progress_of(p_situation text) returns text[] language plpgsql as $$
declare
    v_id text;
begin
    perform test.fresh_start();
    perform test.notify_hook(), test.create();
    v_id := test.make(p_situation);
    perform test.pass('5 min'), test.nudge(), test.pass('1 s');
    perform switchboard.claim(test.a(), v_id, 'w2');
    perform switchboard.complete(test.a(), v_id, 'w2'), test.pass('1 s');
    return test.nudge();
end
$$;
select is(test.progress_of(s), '{"a q 1"}', 'progress: taking over what is ' || s) from unnest('{lapsed,due}'::text[]) s;
-- of what is assigned
select test.fresh_start(), test.notify_hook(), test.create(p_assignee => 'ann') as of_ann, test.pass('1 s') \gset
select test.create(), test.pass('5 min'), test.nudge() \g /dev/null
select switchboard.claim_next(test.a(), 'ann') \g /dev/null
select switchboard.complete(test.a(), :'of_ann', 'ann') \g /dev/null
select is(test.nudge(), '{"a q 1"}', 'progress: a claim of what is assigned, at the very time of the nudge');

-- what is not: everything else
create function test.no_progress(p_what text) returns text[] language plpgsql as $$
declare
    v_id text;
    v_held text;
begin
    perform test.fresh_start();
    perform test.notify_hook(), test.notify_hook('b');
    v_id := test.create();
    v_held := test.create();
    perform switchboard.claim(test.a(), v_held, 'w', 7200);
    perform test.create('a', 'r'), test.create('b', 'q'), test.pass('5 min'), test.nudge();
    perform test.pass('1 s');
    case p_what
        when 'nothing' then null;
        when 'a heartbeat' then perform switchboard.heartbeat(test.a(), v_held, 'w');
        when 'a completion of what was claimed before' then perform switchboard.complete(test.a(), v_held, 'w');
        when 'a failure of what was claimed before' then perform switchboard.fail(test.a(), v_held, 'w');
        when 'a release of what was claimed before' then perform switchboard.release(test.a(), v_held, 'w');
        when 'a create' then perform test.create();
        when 'a claim in another queue' then perform switchboard.claim_next(test.a(), 'w', '{r}');
        when 'a claim on another endpoint' then perform switchboard.claim_next(test.b(), 'w', '{q}');
        when 'a claim that is refused' then perform test.error_of(format('select switchboard.claim(test.a(), %L, ''w2'')', v_held));
        when 'a claim that is rolled back' then
            begin
                perform switchboard.claim(test.a(), v_id, 'w');
                raise exception 'undo';
            exception when raise_exception then null;
            end;
        when 'a look' then perform switchboard.list_todos(test.a()), switchboard.pending_doorbell_todos(test.a());
        when 'a bell' then perform test.ring();
        when 'a call that was delivered' then perform test.settle(c, '2xx') from jsonb_array_elements(switchboard.take_deliveries()) c;
        when 'a sweep' then perform switchboard.settle_marks(), switchboard.reap_expired();
    end case;
    perform test.pass('10 min');
    return array(select n from unnest(test.nudge()) n where n ~ '^a q');
end
$$;
select is(test.no_progress(w), '{}', 'no progress: ' || w) from unnest(array['nothing', 'a heartbeat', 'a completion of what was claimed before', 'a failure of what was claimed before', 'a release of what was claimed before', 'a create',
    'a claim in another queue', 'a claim on another endpoint', 'a claim that is refused', 'a claim that is rolled back', 'a look', 'a bell', 'a call that was delivered', 'a sweep']) w;
select ok('a q 2' = any (test.nudge_after('10 min')), '(and 20 min after the last nudge it is the second)') from test.no_progress('nothing');
-- claims in a silent queue, too
select test.fresh_start(), test.notify_hook(), test.create(), test.create() \g /dev/null
select test.nudge() from unnest('{5 min,20 min,1 h,6 h,6 h}'::interval[]) w, lateral test.pass(w) \g /dev/null
select is(test.nudge_after('30 d') || test.ledger(), '{"a q 5"}', '(a queue that was nudged five times is silent)');
select switchboard.release(test.a(), c.id::text, 'w') from switchboard.claim_next(test.a(), 'w') c \g /dev/null
select is(test.nudge(), '{"a q 1"}', 'a claim brings it back, even one that was released');
select switchboard.claim(test.a(), id::text, 'w') from switchboard.todos order by id limit 1 \g /dev/null
select is(test.nudge() || test.nudge_after('20 min'), '{"a q 1","a q 2"}', 'each nudge asks for progress of its own');

-- a claim whose snapshot is older than the nudge
select test.fresh_start(), test.notify_hook(), test.create() as first, test.pass('1 s') \gset
select test.create() as second, test.pass('5 min') \gset
select test.connect('other') \g /dev/null
create function test.elsewhere(p_sql text) returns void language plpgsql as $$
begin
    perform test.there('other', format('set switchboard.test_now = %L', switchboard.now()));
    perform test.there('other', p_sql);
end
$$;
select test.elsewhere('begin isolation level repeatable read'), test.elsewhere('do $b$ begin perform from switchboard.endpoints; end $b$'), test.nudge() \g /dev/null
select test.pass('1 s'), test.elsewhere(format('do $b$ begin perform switchboard.claim(test.a(), %L, ''w''); end $b$', :'first')), test.elsewhere('commit') \g /dev/null
select is(test.nudge(), '{"a q 1"}', 'a claim at REPEATABLE READ whose snapshot is older than the nudge is seen by what it holds');
select test.elsewhere('begin isolation level repeatable read'), test.elsewhere('do $b$ begin perform from switchboard.endpoints; end $b$') \g /dev/null
select test.elsewhere(format('do $b$ begin perform switchboard.claim(test.a(), %L, ''w''); perform switchboard.release(test.a(), %1$L, ''w''); end $b$', :'second')), test.elsewhere('commit') \g /dev/null
select is(test.nudge(), '{"a q 1"}', 'one whose snapshot knows the nudge is noted, though it was released');

-- which queues: of active endpoints, granted, covered
select test.fresh_start(), test.create('b') as id, test.notify_hook('b', '{q}'), test.notify_hook('b', '{q,r}') \gset
update switchboard.endpoints set expires_at = switchboard.now() + interval '5 min' where id::text = test.b();
select is(test.nudge_after('5 min') || test.ledger(), '{}', 'an endpoint that has expired is not nudged');
update switchboard.endpoints set expires_at = null;
select switchboard.set_grant(test.b(), '{r,inbox}') \g /dev/null
select is(test.nudge() || test.ledger(), '{}', 'nor is a queue that is not granted any more');
select switchboard.set_grant(test.b(), '{q,r,inbox}') \g /dev/null
select is(test.nudge(), '{"b q 1"}', 'but when it is granted again');
select is((select count(*) || ' ' || count(distinct hook_id) || ' ' || count(distinct todo_id) from switchboard.notify_deliveries where reason = 'stalled'), '2 2 1', 'each hook that covers it is called once; it counts once');
select test.fresh_start(), test.notify_hook() as hook, test.create() as id \gset
update switchboard.notify_hooks set queues = '{q,q}';
truncate switchboard.notify_deliveries;
select is(test.nudge_after('5 min') || test.posted(), '{"a q 1",stalled}', 'a hook that names it twice is called once');
update switchboard.notify_hooks set queues = null;
select test.clear(), test.create('a', 'r') as in_r, test.create('a', 'q') as in_q \gset
select is((select array_agg(n order by n) from unnest(test.nudge_after('5 min')) n), '{"a q 1","a r 1"}', 'a hook of all queues: each queue by itself');

-- what it names: the oldest past the gate, in the pool or assigned
select test.fresh_start(), test.notify_hook(), test.trusted('open'), test.pass('1 s') \g /dev/null
select test.create(p_assignee => 'ann') as of_ann, test.pass('1 s') \gset
select test.create() as free, test.pass('5 min') \gset
select is((select todo_id::text from switchboard.sweep_stalled()), :'of_ann', 'an assigned todo is the oldest');
select switchboard.claim(test.a(), :'of_ann', 'ann') \g /dev/null
select is((select todo_id::text || nudges from switchboard.sweep_stalled()), :'free' || '1', 'then one in the pool');
select switchboard.claim(test.a(), :'free', 'w'), test.pass('1 s') \g /dev/null
select is(test.nudge() || test.ledger(), '{"a q 1"}', 'while unverified todos are pending the ledger row stays');
select switchboard.claim_next(test.a(), 'w') \g /dev/null
select is(test.nudge() || test.ledger(), '{}', 'and goes when they are gone');
select switchboard.release(test.a(), :'free', 'w') \g /dev/null
select is(test.nudge_after('0 s'), '{"a q 1"}', 'a todo that comes back is as old as its creation');
-- ten thousand unverified ones at the head
select test.fresh_start(), test.notify_hook(), test.many(10000, 'open'), test.many(1000, p_assignee => 'ann', p_trust_mode => 'open'), test.pass('1 s') \g /dev/null
select test.create() as id, test.pass('5 min') \gset
select is((select todo_id::text from switchboard.sweep_stalled()), :'id', '10,000 unverified ones at the head hide nothing');

-- a nudge changes no todo and rings nobody
select test.fresh_start(), test.notify_hook(), test.listen('todo_ready'), test.listen('switchboard_outbox') \g /dev/null
select test.make(s) from unnest('{claimed,lapsed,parked,due,dead,done,pending,pending}'::text[]) s \g /dev/null
select test.create('a', 'r'), test.pass('10 min') \g /dev/null
select test.heard('todo_ready'), test.heard('switchboard_outbox') \g /dev/null
create table test.before as select (select jsonb_agg(to_jsonb(t) order by t.id) from switchboard.todos t) as todos, (select jsonb_agg(to_jsonb(m) order by m.queue, m.endpoint_id) from switchboard.queue_marks m) as marks, (select count(*) from switchboard.todo_attempts) as attempts;
select is((select array_agg(n order by n) from unnest(test.nudge()) n), '{"a q 1","a r 1"}', '(two queues are nudged)');
select is((select jsonb_agg(to_jsonb(t) order by t.id) from switchboard.todos t), (select todos from test.before), 'no column of any todo is changed');
select is((select jsonb_agg(to_jsonb(m) order by m.queue, m.endpoint_id) || to_jsonb((select count(*) from switchboard.todo_attempts)) from switchboard.queue_marks m), (select marks || to_jsonb(attempts) from test.before), 'nor a mark, nor the history');
select is(test.heard('todo_ready'), '{}', 'no todo_ready is sent');
select is(test.heard('switchboard_outbox'), '{""}', 'switchboard_outbox is, once');
select test.nudge() \g /dev/null
select is(test.heard('switchboard_outbox'), '{}', 'and not when nothing was nudged');

-- what a claim reads: the queues that wait for progress, in the endpoint's row, and only there
create function test.waiting() returns text[] language sql as $$ select coalesce(array_agg(x.name || ' ' || e.stalled_queues::text order by x.name), '{}') from switchboard.endpoints e join test.endpoints x on x.id = e.id::text where e.stalled_queues is not null $$;
select is(test.waiting(), '{"a {q,r}"}', 'the endpoint''s row names them');
select switchboard.claim_next(test.a(), 'w', '{r}'), test.create('a', 'r') \g /dev/null
select test.nudge() \g /dev/null
select is(test.waiting(), '{"a {q}"}', 'until there was progress, and the next sweep has seen it');
select is((select array_agg(progressed_at is not null order by queue) from switchboard.queue_stall_nudges), '{f,t}', 'which the ledger keeps while nothing is due');
create table test.notes as select progressed_at, xmin::text as version from switchboard.queue_stall_nudges where queue = 'r';
select test.pass('1 s'), switchboard.claim_next(test.a(), 'w', '{r}'), test.create('a', 'r') \g /dev/null
select is((select array[progressed_at::text, xmin::text] from switchboard.queue_stall_nudges where queue = 'r'), (select array[progressed_at::text, version] from test.notes), 'it is noted once, not at every claim');

-- nobody's open transaction holds up another's nudge: a claimer on the ledger row, and whoever has the endpoint's row
select test.line_up(), test.notify_hook(), test.create('a', 'q'), test.create('a', 'q') \g /dev/null
select test.nudge(), test.nudge(), test.nudge(), test.nudge(), test.pass('5 min'), test.nudge() \g /dev/null
select test.pass('1 min') \g /dev/null
select test.elsewhere('begin'), test.elsewhere('do $b$ begin perform switchboard.claim_next(test.a(), ''rude''), switchboard.claim_next(test.b(), ''rude''); end $b$') \g /dev/null
set lock_timeout = '2s';
select test.pass('20 min') \g /dev/null
create table test.got as select n from unnest(test.nudge() || test.nudge() || test.nudge()) n;
select set_eq('select n from test.got', $$ select 'wide w' || n || ' 2' from generate_series(1, 9) n $$, 'fault 67: a claim in an open transaction, which has the ledger row, holds up no other queue');
select test.elsewhere('rollback') \g /dev/null
select set_eq('select unnest(test.nudge())', array['a q 2', 'b q 2'], 'fault 67: rolled back, it was no progress: its own follows');
select test.line_up() \g /dev/null
select test.elsewhere('begin'), test.elsewhere('do $b$ begin perform switchboard.own_endpoint(e) from unnest(array[test.b(), test.endpoint(''wide'')]) e; end $b$') \g /dev/null
truncate test.got;
insert into test.got select n from unnest(test.nudge() || test.nudge() || test.nudge()) n;
select is((select count(*) from test.got where n ~ ' 1$'), 10::bigint, 'fault 67: nor does one that has the row of an endpoint: all are nudged');
select test.pass('1 s') \g /dev/null
select switchboard.claim_next(test.b(), 'w'), test.create('b'), test.pass('5 min') \g /dev/null
select is(test.nudge(), '{"b q 1"}', 'fault 67: and progress is seen by what is held');
select test.elsewhere('rollback') \g /dev/null
select test.nudge() \g /dev/null
select is((select cardinality(stalled_queues) from switchboard.endpoints where id::text = test.endpoint('wide')), 9, 'fault 67: the row gets its note by the next sweep');
reset lock_timeout;

-- it is a sweep of the tick: at most once in 30 s, and its failure is its own
select test.fresh_start(), test.notify_hook(), test.create(), test.pass('5 min') \g /dev/null
update switchboard.sweeps set last_run_at = 'epoch';
select is(switchboard.tick() -> 'sweep_stalled', '1', 'tick nudges');
select test.pass('29 s') \g /dev/null
select is(switchboard.tick(), '{}', 'within 30 s no sweep runs again');
alter table switchboard.queue_stall_nudges rename to hidden;
update switchboard.endpoints set stalled_queues = null;
select test.make('lapsed') as lapsed, test.pass('1 min') \gset
select is(switchboard.tick() - '{settle_marks,fold_attempts,prune,retire_endpoints,reopen_admission}'::text[], '{"reap_expired": 1, "requeue_due_retries": 0, "sweep_stalled": "error 42P01"}', 'a ledger that is missing is an error of this sweep, and of no other');
select is((switchboard.claim_next(test.a(), 'w')).state, 'claimed', 'and of no claim');
alter table switchboard.hidden rename to queue_stall_nudges;

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
