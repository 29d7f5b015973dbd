-- SPEC-0038: every scenario of the document, by its name, with the test clock. The two end-to-end ones run over HTTP in py/tests, too; two
-- instances at once are isolation specs. Beyond the scenarios: 62_stall.sql.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready') \g /dev/null
-- Nudges of the outbox: the todos that calls with reason stalled name, in order.
create function test.stalled() returns text[] language sql as $$ select coalesce(array_agg(todo_id::text order by id), '{}') from switchboard.notify_deliveries where reason = 'stalled' $$;
-- Moves the clock on and ticks, as every server does each half minute.
create function test.tick(p_span interval, p_step interval default '30 s') returns text[] language plpgsql as $$
declare
    v_end timestamptz := switchboard.now() + p_span;
    v_seen bigint := (select count(*) from switchboard.notify_deliveries where reason = 'stalled');
begin
    while switchboard.now() < v_end loop
        perform test.pass(least(p_step, v_end - switchboard.now()));
        perform switchboard.tick();
    end loop;
    return (test.stalled())[v_seen + 1 :];
end
$$;
create function test.fresh_start() returns void language sql as $$ select test.clear(); delete from switchboard.notify_hooks; update switchboard.sweeps set last_run_at = 'epoch'; $$;
create function test.row_of(p_id text) returns jsonb language sql as $$ select to_jsonb(t) from switchboard.todos t where t.id::text = p_id $$;

-- Pending work with no new inbound webhook ------------------------------------------------------------------------------------
select test.fresh_start(), test.grant_all('a') \g /dev/null
select test.receiver('token'), test.notify_hook() as hook \gset
select test.made(test.deliver('token', '{}', 'd')) as id \gset
select test.settle(switchboard.take_deliveries() -> 0, '2xx') \g /dev/null
select is(test.tick('10 min'), array[:'id'], 'Pending work with no new inbound webhook: the sweep names that todo');
select switchboard.take_deliveries() as calls \gset
select ok(jsonb_array_length(:'calls') = 1 and :'calls'::jsonb #>> '{0,body,reason}' = 'stalled' and :'calls'::jsonb #>> '{0,body,type}' = 'todo.ready' and :'calls'::jsonb #>> '{0,body,todo_id}' = :'id' and :'calls'::jsonb #>> '{0,hook_id}' = :'hook',
    'Pending work with no new inbound webhook: the hook receives one todo.ready with reason stalled');

-- Fresh work is not a stalled queue -------------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook(), test.create() \g /dev/null
select test.pass('5 s') \g /dev/null
select is_empty('select * from switchboard.sweep_stalled()', 'Fresh work is not a stalled queue: the sweep selects nothing');
select is(test.ledger(), '{}', 'Fresh work is not a stalled queue: there is no count');
select test.fresh_start(), test.notify_hook(), test.create() \g /dev/null
select test.tick('5 min') \g /dev/null
select switchboard.claim_next(test.a(), 'w'), test.pass('1 s') \g /dev/null
select test.create(), test.create(p_assignee => 'ann'), test.trusted('open') \g /dev/null
select is(test.tick('1 min 30 s'), '{}', 'Fresh work is not a stalled queue: not after progress, either');
select is(test.ledger(), '{"a q 1"}', 'Fresh work is not a stalled queue: the count does not advance');

-- Unverified deliveries age quietly -------------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook() \g /dev/null
select test.receiver('open', 'a', 'open') \g /dev/null
select test.made(test.deliver('open', '{}', 'd' || n)) as id from generate_series(1, 3) n \g /dev/null
select is(test.tick('1 d', '10 min') || test.ledger(), '{}', 'Unverified deliveries age quietly: no nudge fires, nothing is charged');
select is((select array_agg(distinct state::text) from switchboard.todos), '{pending}', 'Unverified deliveries age quietly: the todos remain pending');
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 10)), 3::bigint, 'Unverified deliveries age quietly: and claimable by pull');
select test.clear(), test.made(test.deliver('open', '{}', 'e')) as unverified, test.pass('1 min') \gset
select test.create() as verified \gset
select is(test.tick('10 min'), array[:'verified'], 'Unverified deliveries age quietly: a verified todo behind one is named, not the older one');

-- A queue with no receiver is not charged -------------------------------------------------------------------------------------
select test.fresh_start(), test.create() as id, test.notify_hook('b') \gset
select is(test.tick('10 min') || test.ledger(), '{}', 'A queue with no receiver is not charged: no hook');
select test.notify_hook('a', '{r}') as of_r, test.notify_hook('a', null, null) as silent, test.notify_hook('a') as disabled \gset
update switchboard.notify_hooks set disabled_at = switchboard.now() where id::text = :'disabled';
select is(test.tick('10 h', '10 min') || test.ledger(), '{}', 'A queue with no receiver is not charged: hooks of another queue, without a secret, and disabled');
select switchboard.rotate_notify_hook(test.a(), :'disabled', '\xbb') \g /dev/null
select is(test.tick('30 s'), array[:'id'], 'A queue with no receiver is not charged: the consumer''s return finds the whole budget');
select is(test.ledger(), '{"a q 1"}', 'A queue with no receiver is not charged: from its first nudge on');
update switchboard.notify_hooks set disabled_at = switchboard.now() where id::text = :'disabled';
select is(test.tick('10 h', '10 min') || test.ledger(), '{"a q 1"}', 'A queue with no receiver is not charged: an existing row is not advanced');

-- A deep backlog costs one wake -----------------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook() \g /dev/null
create table test.deep (n int, id text);
do $$ begin for v_n in 1..5 loop insert into test.deep values (v_n, test.create()); perform test.pass('1 s'); end loop; end $$;
truncate switchboard.notify_deliveries;
select test.pass('10 min') \g /dev/null
select results_eq('select todo_id::text, nudges from switchboard.sweep_stalled()', $$ select id, 1 from test.deep where n = 1 $$, 'A deep backlog costs one wake: the sweep returns one todo, the oldest');
select is((select array_agg(c #>> '{body,todo_id}') from jsonb_array_elements(switchboard.take_deliveries()) c), (select array_agg(id) from test.deep where n = 1), 'A deep backlog costs one wake: the hook receives one notification');

-- An older consumer is woken correctly ----------------------------------------------------------------------------------------
-- A consumer built before this capability knows the body's fields as they were: it reads todo_id and claims it.
select test.fresh_start(), test.notify_hook(), (switchboard.create_todo(test.a(), 'q', 'title', p_kind => 'k', p_source => 's')).id as id \gset
select test.tick('6 min'), switchboard.take_deliveries() as calls \gset
select is((select array_agg(c -> 'body' ->> 'reason' order by c -> 'body' ->> 'reason') from jsonb_array_elements(:'calls') c), '{created,stalled}', 'An older consumer is woken correctly: (one call of each kind)');
select is((select count(distinct (c -> 'body') - 'reason'::text) from jsonb_array_elements(:'calls') c), 1::bigint, 'An older consumer is woken correctly: but for the reason the body is the ordinary one');
select is((select count(distinct c - '{id,message_id,body}'::text[]) from jsonb_array_elements(:'calls') c), 1::bigint, 'An older consumer is woken correctly: and so is where it goes and what signs it');
select is((select (switchboard.claim(test.a(), c #>> '{body,todo_id}', 'older')).owner from jsonb_array_elements(:'calls') c where c #>> '{body,reason}' = 'stalled'), 'older', 'An older consumer is woken correctly: it claims, ignoring the reason');

-- Mixed versions during a deploy ----------------------------------------------------------------------------------------------
-- An older instance LISTENs to todo_ready, and writes rows without the new columns.
select test.fresh_start(), test.notify_hook(), test.heard('todo_ready') \g /dev/null
insert into switchboard.todos (endpoint_id, id, created_at, queue, trust_mode, title) select test.a()::uuid, switchboard.new_id(switchboard.now()), switchboard.now(), 'q', 'sql', 'of an older build' returning id::text as id \gset
insert into switchboard.queue_marks (endpoint_id, queue, pending_from) values (test.a()::uuid, 'older', 'epoch');
insert into switchboard.endpoints (human_id, slug, queues, verbs, webhook_max, webhook_source_types, expires_at, created_at, updated_at)
    select test.human('a'), 'older', '{older}', '{claim_next}', 1, '{}', null, switchboard.now(), switchboard.now();
select is((select array_agg(coalesce(e.stalled_queues::text, 'none')) from switchboard.endpoints e where slug = 'older'), '{none}', 'Mixed versions during a deploy: rows without the new columns are whole');
select is(test.ring('q'), array[:'id'], 'Mixed versions during a deploy: a todo of an older build rings');
select test.pass('1 min'), switchboard.claim(test.a(), test.create('a', 'r'), 'w'), switchboard.release(test.a(), t.id::text, 'w') from switchboard.todos t where t.queue = 'r' \g /dev/null
select is(test.tick('10 min'), array[:'id'], 'Mixed versions during a deploy: (the newer one nudges)');
select is_empty($$ select p from unnest(test.heard('todo_ready')) p where p !~ ('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[a-z0-9][a-z0-9._-]{0,62}$') $$, 'Mixed versions during a deploy: every todo_ready payload is <endpoint_id>:<queue>');
select is((select array_agg(d.reason order by d.id) from switchboard.notify_deliveries d where d.todo_id::text = :'id'), '{stalled}', 'Mixed versions during a deploy: the nudge is one call');
select switchboard.sweep_stalled() \g /dev/null
select is(test.stalled(), array[:'id'], 'Mixed versions during a deploy: it is not delivered twice when another instance sweeps');
delete from switchboard.queue_marks where queue = 'older';

-- A stalled queue backs off and stops -----------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook(), test.create() as id \gset
create table test.nudges (n serial, after interval, got text[]);
do $$
declare
    v_wait interval;
begin
    foreach v_wait in array '{5 min,20 min,1 h,6 h,6 h,6 h,30 d}'::interval[] loop
        perform test.pass(v_wait - interval '1 s');
        insert into test.nudges (after, got) select v_wait - interval '1 s', test.nudge();
        perform test.pass('1 s');
        insert into test.nudges (after, got) select v_wait, test.nudge();
        insert into test.nudges (after, got) select '0 s', test.nudge();
    end loop;
end
$$;
select results_eq('select after, array_to_string(got, '','') from test.nudges order by n', $$ values
    (interval '5 min' - interval '1 s', ''), ('5 min', 'a q 1'), ('0 s', ''), (interval '20 min' - interval '1 s', ''), ('20 min', 'a q 2'), ('0 s', ''), (interval '1 h' - interval '1 s', ''), ('1 h', 'a q 3'), ('0 s', ''),
    (interval '6 h' - interval '1 s', ''), ('6 h', 'a q 4'), ('0 s', ''), (interval '6 h' - interval '1 s', ''), ('6 h', 'a q 5'), ('0 s', ''), (interval '6 h' - interval '1 s', ''), ('6 h', ''), ('0 s', ''),
    (interval '30 d' - interval '1 s', ''), ('30 d', ''), ('0 s', '') $$,
    'A stalled queue backs off and stops: nudged after 5 min, 20 min, 1 h, 6 h and 6 h, to the second, then never again');
select is((select array_agg(id::text) from switchboard.list_todos(test.a(), 'q', 'pending')), array[:'id'], 'A stalled queue backs off and stops: its todos stay visible');
select is((switchboard.claim(test.a(), :'id', 'w')).state, 'claimed', 'A stalled queue backs off and stops: and claimable');

-- Progress keeps the short cadence --------------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook(), test.create(), test.create(), test.create() \g /dev/null
select test.nudge() from unnest('{5 min,20 min,1 h,6 h}'::interval[]) w, lateral test.pass(w) \g /dev/null
select is(test.ledger(), '{"a q 4"}', 'Progress keeps the short cadence: (its count is 4)');
select test.pass('1 min') \g /dev/null
select is(test.nudge(), '{}', 'Progress keeps the short cadence: (it is not due)');
select switchboard.complete(test.a(), c.id::text, 'w') from switchboard.claim_next(test.a(), 'w') c \g /dev/null
select is(test.nudge(), '{"a q 1"}', 'Progress keeps the short cadence: after a claim and its completion it is due at once, and counts 1');
select test.pass('19 min 59 s') \g /dev/null
select is(test.nudge(), '{}', 'Progress keeps the short cadence: from there on it widens again');
select test.pass('1 s') \g /dev/null
select is(test.nudge(), '{"a q 2"}', 'Progress keeps the short cadence: 20 min later it counts 2');

-- A drained queue does not ring -----------------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook(), test.create(), test.create() \g /dev/null
select test.tick('5 min') \g /dev/null
select switchboard.complete(test.a(), c.id::text, 'w') from switchboard.claim_batch(test.a(), 'w', 10) c \g /dev/null
select test.pass('1 min') \g /dev/null
select is(test.nudge(), '{}', 'A drained queue does not ring: the sweep wakes nothing');
select is(test.ledger(), '{}', 'A drained queue does not ring: the ledger row is gone');
select is((select array_agg(stalled_queues) from switchboard.endpoints where stalled_queues is not null), null, 'A drained queue does not ring: and nothing else remembers it');
select test.create() as id \gset
select is(test.tick('4 min 59 s'), '{}', 'A drained queue does not ring: the next todo is not nudged before the first backoff');
select is(test.tick('30 s'), array[:'id'], 'A drained queue does not ring: but then');

-- Two instances, one wake -----------------------------------------------------------------------------------------------------
-- At the same moment: isolation/specs/sweep_sweep_stalled.
select test.fresh_start(), test.notify_hook(), test.create() as id, test.pass('10 min') \gset
select test.connect('other') \g /dev/null
select test.there('other', format('set switchboard.test_now = %L', switchboard.now())) \g /dev/null
select test.there('other', 'do $b$ begin perform switchboard.sweep_stalled(); end $b$') \g /dev/null
select is(test.nudge(), '{}', 'Two instances, one wake: the second one fires none within the cooldown');
select is(test.stalled(), array[:'id'], 'Two instances, one wake: the first one did');
select is(test.ledger(), '{"a q 1"}', 'Two instances, one wake: which is counted once');

-- A nudge spends no ring budget -----------------------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook(), test.create() as id \gset
select test.ring('q'), test.heard('todo_ready') \g /dev/null
create table test.before as select test.row_of(:'id') as todo;
select is(test.nudge(), '{"a q 1"}', 'A nudge spends no ring budget: (it is nudged)') from test.pass('5 min 1 ms') where test.ring('r') = '{}';
select is(test.row_of(:'id'), (select todo from test.before), 'A nudge spends no ring budget: no column of the todo is changed');
select is(test.heard('todo_ready'), '{}', 'A nudge spends no ring budget: it sends no todo_ready, so that no session is rung by it');
select is(test.ring(), array[:'id'], 'A nudge spends no ring budget: nor is the ring suppressed that is due');
select is((test.row_of(:'id') ->> 'ring_attempts')::int, 2, 'A nudge spends no ring budget: and counts as the second');

-- Nudging does not wake a quarantined queue -----------------------------------------------------------------------------------
select test.fresh_start(), test.notify_hook() \g /dev/null
select switchboard.hold_webhook(id::text, true) from switchboard.endpoint_webhooks \g /dev/null
select test.deliver('token', '{}', 'held') \g /dev/null
select is((select array_agg(queue) from switchboard.todos), '{quarantine}', 'Nudging does not wake a quarantined queue: (a delivery is held)');
select is(test.tick('1 d', '10 min') || test.ledger(), '{}', 'Nudging does not wake a quarantined queue: no nudge, whatever its age');
update switchboard.notify_hooks set queues = '{quarantine}';
update switchboard.endpoints set queues = queues || '{quarantine}' where id::text = test.a();
select is(test.tick('10 min') || test.ledger(), '{}', 'Nudging does not wake a quarantined queue: not even where a hook and a grant name it');
update switchboard.endpoints set queues = array_remove(queues, 'quarantine') where id::text = test.a();
select switchboard.hold_webhook(id::text, false) from switchboard.endpoint_webhooks \g /dev/null

-- The reported case -----------------------------------------------------------------------------------------------------------
-- A one-shot consumer: each call starts one, which claims one todo, completes it and exits.
select test.fresh_start(), switchboard.set_grant(test.a(), '{q,r,inbox,lane-l}') \g /dev/null
select test.notify_hook('a', '{lane-l}') \g /dev/null
create table test.runs (n serial, at timestamptz, reason text, todo uuid);
create function test.run_consumers() returns void language plpgsql as $$
declare
    v_call jsonb;
    v_todo uuid;
begin
    for v_call in select * from jsonb_array_elements(switchboard.take_deliveries()) loop
        perform test.settle(v_call, '2xx');
        select c.id into v_todo from switchboard.claim_next(test.a(), 'one-shot', '{lane-l}') c;
        insert into test.runs (at, reason, todo) values (switchboard.now(), v_call #>> '{body,reason}', v_todo);
        if v_todo is not null then
            perform test.pass('20 s');
            perform switchboard.complete(test.a(), v_todo::text, 'one-shot');
        end if;
    end loop;
end
$$;
do $$
begin
    perform test.create('a', 'lane-l'), test.create('a', 'lane-l'), test.create('a', 'lane-l');
    delete from switchboard.notify_deliveries where id not in (select id from switchboard.notify_deliveries order by id limit 1);  -- its one notification
    for v_n in 1..120 loop
        perform test.run_consumers(), test.pass('30 s');
        perform switchboard.tick();
    end loop;
end
$$;
select is((select array_agg(reason order by n) from test.runs), '{created,stalled,stalled}', 'The reported case: with no further inbound webhook the consumer is woken again, and once more, until the queue is empty');
select ok((select bool_and(todo is not null) and count(distinct todo) = 3 from test.runs), 'The reported case: each time it claims the next todo');
select ok(r2.at - r1.at <= interval '5 min 30 s', 'The reported case: the second wake comes within the first backoff') from test.runs r1, test.runs r2 where r1.n = 1 and r2.n = 2;
select ok(r3.at - r2.at <= interval '1 min 30 s', 'The reported case: the third one at the next sweep, for there was progress') from test.runs r3, test.runs r2 where r3.n = 3 and r2.n = 2;
select is((select count(*) from switchboard.todos where state = 'done') || ' ' || cardinality(test.ledger()), '3 0', 'The reported case: the queue is empty, and the wake has stopped');

-- The wake is lost ------------------------------------------------------------------------------------------------------------
-- The call that the create wrote was never made: its row is gone, as if the dispatcher had dropped it.
select test.fresh_start(), test.notify_hook(), test.create() as id \gset
truncate switchboard.notify_deliveries;
select is(test.tick('5 min'), array[:'id'], 'The wake is lost: the work is surfaced by the sweep after the threshold');
select is((select array_agg(c #>> '{body,todo_id}') from jsonb_array_elements(switchboard.take_deliveries()) c), array[:'id'], 'The wake is lost: by an ordinary call, with no change of the consumer');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
