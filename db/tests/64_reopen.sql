-- functions/64_reopen: nobody is woken for what cannot be claimed, and whoever waits is told once when it can. Races are in isolation/specs.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
-- What one statement notifies, as this session hears it: 'a:q' for todo_ready of a's queue q.
create function test.budget(p_claims int, p_flight int default null, p_queue text default 'q') returns text language sql as $$
    select switchboard.set_admission_policy(test.a(), p_queue, jsonb_strip_nulls(jsonb_build_object('max_in_flight', p_flight, 'max_claims_per_window', p_claims,
        'window', case when p_claims is not null then '{"period": "day", "tz": "UTC"}'::jsonb end)), test.human('a')) ->> 'status'
$$;
select test.listen('todo_ready') \g /dev/null
create function test.heard() returns text language sql as $$
    select coalesce(nullif(replace(array_to_string(test.heard('todo_ready'), ' '), test.a(), 'a'), ''), 'nothing')
$$;
create function test.owed() returns text language sql as $$ select coalesce(string_agg(queue, ' ' order by queue), 'nothing') from switchboard.admission_owed $$;
create function test.reasons() returns text language sql as $$
    select coalesce(string_agg(reason, ' ' order by id), 'none') from switchboard.notify_deliveries
$$;
create function test.bells(p_queue text default null) returns bigint language sql as $$ select count(*) from switchboard.take_doorbells(test.a(), 10, p_queue) $$;
create function test.fresh() returns void language sql as $$
    select test.clear(), test.pass('1 day');
    delete from switchboard.admission_policies;
    truncate switchboard.notify_deliveries;
$$;
select test.notify_hook('a') \g /dev/null

-- without a budget nothing is different
select test.heard() \g /dev/null
select test.create() \g /dev/null
select is(test.heard() || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, created', 'a create without a budget');
select test.budget(9), test.create() \g /dev/null
select is(test.heard() || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, created created', 'a create within the budget');

-- a queue that is shut wakes nobody: creates of every kind, requeues, bells, hooks, nudges
select test.fresh(), test.budget(0), test.heard() \g /dev/null
select is(test.owed(), 'q', 'a budget that shuts a queue owes a wake');
select test.create(), test.create('a', 'r') \g /dev/null
select switchboard.create_todos(test.a(), '[{"queue": "q", "title": "t"}, {"queue": "q", "title": "u"}, {"queue": "r", "title": "v"}]') \g /dev/null
select is(test.heard(), 'a:r a:r', 'creates ring for the open queue only');
select is((select count(*) from switchboard.notify_deliveries where queue = 'q'), 0::bigint, 'no call for the other');
select is(test.owed(), 'q', 'one wake is owed, whatever comes');
select is((select count(*) from switchboard.pending_doorbell_todos(test.a()) where queue = 'q'), 0::bigint, 'nothing of it may ring');
select is(test.bells('q') || ' ' || (select count(*) from switchboard.take_doorbells(test.a(), 10) where queue = 'q') || ' ' || (select count(*) from switchboard.take_doorbells(test.a(), 10, null, true) where queue = 'q'),
    '0 0 0', 'no bell: on ready, by the schedule, on attach');
select test.pass('10 minutes') \g /dev/null
select is((select count(*) from switchboard.sweep_stalled() where queue = 'q'), 0::bigint, 'no nudge');
select is((select count(*) from switchboard.reopen_admission()), 0::bigint, 'the sweep leaves it shut');
-- and when it opens, one is told: by the policy, at once
select test.heard() \g /dev/null
truncate switchboard.notify_deliveries;
select test.budget(5) \g /dev/null
select is(test.heard() || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'raised: one todo_ready, one call, nothing owed any more');
select is((select count(*) from switchboard.reopen_admission()), 0::bigint, 'and not by the sweep again');
select is(test.bells('q'), 3::bigint, 'bells ring again');
-- or when it is cleared
select test.fresh(), test.budget(0), test.create(), test.heard() \g /dev/null
truncate switchboard.notify_deliveries;
select switchboard.clear_admission_policy(test.a(), 'q', test.human('a')) \g /dev/null
select is(test.heard() || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'cleared: told once');

-- a window that turns: by the sweep, once, though everything had rung before
select test.fresh(), test.budget(1), test.create(), test.create() \g /dev/null
select is(test.bells(), 2::bigint, 'both ring while it is open');
select id as first from switchboard.claim_next(test.a(), 'w') \gset
select is(test.owed(), 'q', 'the claim that spends the window owes a wake');
select switchboard.complete(test.a(), :'first', 'w'), test.heard() \g /dev/null
select is(test.heard() || ', ' || test.owed(), 'nothing, q', 'its end opens nothing');
select is((select count(*) from switchboard.reopen_admission()), 0::bigint, 'nor does the sweep, before midnight');
truncate switchboard.notify_deliveries;
select test.pass('1 day') \g /dev/null
select is(test.rows('select queue from switchboard.reopen_admission()'), '[{"queue": "q"}]', 'after midnight the sweep reopens it');
select is(test.heard() || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'one todo_ready, one call');
select is(test.bells('q'), 1::bigint, 'and the oldest rings anew');
select is((select count(*) from switchboard.reopen_admission()), 0::bigint, 'once');
select is(test.heard(), 'nothing', 'and not again');

-- a slot that frees: at once, by whatever frees it
select test.fresh(), test.budget(null, 1) \g /dev/null
create function test.frees(p_name text, p_sql text) returns void language plpgsql as $$
declare
    v_id text;
begin
    perform test.clear(), test.create('a', 'q', 'first', 2), test.pass('1 s'), test.create('a', 'q', 'second');
    v_id := (select c.id from switchboard.claim_next(test.a(), 'w') c);
    truncate switchboard.notify_deliveries;
    if test.owed() <> 'q' then
        raise exception '% finds nothing owed', p_name;
    end if;
    execute format('select %s', format(p_sql, quote_literal(v_id)));
end
$$;
select test.frees('complete', 'switchboard.complete(test.a(), %s, ''w'')') \g /dev/null
select is(right(test.heard(), 3) || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'complete frees a slot: told once');
select test.frees('fail', 'switchboard.fail(test.a(), %s, ''w'')') \g /dev/null
select is(right(test.heard(), 3) || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'fail, too');
select test.frees('release', 'switchboard.release(test.a(), %s, ''w'')') \g /dev/null
select is(right(test.heard(), 3) || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'release, too: once, not for the todo and for the slot');
select test.frees('force', 'switchboard.complete_any_endpoint(%s, null, test.human(''a''), true)') \g /dev/null
select is(right(test.heard(), 3) || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'an operator''s override, too');
select test.frees('batch', '(select outcome from switchboard.complete_batch(test.a(), ''w'', array[%s]))') \g /dev/null
select is(right(test.heard(), 3) || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'complete_batch, too');
select test.frees('lapse', 'test.pass(''1 h''), %s') \g /dev/null
select count(*) from switchboard.reap_expired() \g /dev/null
select is(right(test.heard(), 3) || ', ' || test.owed() || ', ' || test.reasons(), 'a:q, nothing, reopened', 'a lapse, by the sweep');
-- a last attempt that lapses frees a slot, too, and comes back to nobody: the sweep that follows tells
select test.clear(), test.create('a', 'q', 'first', 1), test.pass('1 s'), test.create('a', 'q', 'second') \g /dev/null
select id from switchboard.claim_next(test.a(), 'w') \g /dev/null
update switchboard.sweeps set last_run_at = 'epoch';
select test.pass('1 h'), test.heard() \g /dev/null
select is(switchboard.tick() - '{retire_endpoints,sweep_stalled,settle_marks,fold_attempts,prune}'::text[], '{"reap_expired": 1, "requeue_due_retries": 0, "reopen_admission": 1}', 'a dead letter frees a slot');
select is(test.heard() || ', ' || test.owed(), 'a:q, nothing', 'told once');
-- what comes back to a queue that is shut wakes nobody, and is told of when it opens: by a release, a retry, a lapse, a backoff
create function test.comes_back(p_name text, p_sql text) returns text language plpgsql as $$
declare
    v_id   text;
    v_told text;
begin
    perform test.fresh();
    v_id := test.create();
    update switchboard.queue_marks set pending_from = 'epoch', rung_from = 'epoch';
    perform test.bells(), switchboard.claim(test.a(), v_id, 'w');
    -- the marks went on, the zone goes, and nobody has noticed
    update switchboard.queue_marks set pending_from = switchboard.now() + interval '1 s', rung_from = switchboard.now() + interval '1 s';
    perform test.budget(5);
    update switchboard.admission_policies set window_tz = 'Mars/Olympus';
    truncate switchboard.notify_deliveries, switchboard.admission_owed;
    execute p_sql using v_id;
    return format('%s, %s, %s, %s', (select t.state from switchboard.todos t), test.owed(), test.reasons(),
        (select case when greatest(m.pending_from, m.rung_from) <= switchboard.now() then 'lowered' else 'as they were' end
         from switchboard.queue_marks m where m.endpoint_id = test.a()::uuid and m.queue = 'q'));
end
$$;
select is(test.comes_back(n, s), 'pending, q, none, lowered', n || ' to a queue that is shut: a wake is owed, and the marks are lowered') from (values
    ('a release', 'select switchboard.release(test.a(), $1, ''w'')'),
    ('a retry', 'select switchboard.fail(test.a(), $1, ''w''), switchboard.retry(test.a(), $1)'),
    ('a lapse', 'select test.pass(''1 h''), (select count(*) from switchboard.reap_expired())'),
    ('a backoff', 'select switchboard.fail(test.a(), $1, ''w''), test.pass(''1 h''), (select count(*) from switchboard.requeue_due_retries())')) v (n, s);
select test.heard() \g /dev/null
-- a mark that had gone past the oldest is set back to it
update switchboard.admission_policies set window_tz = 'UTC';
update switchboard.queue_marks set pending_from = switchboard.now() + interval '1 s', rung_from = switchboard.now() + interval '1 s';
update switchboard.todos set ring_attempts = 1, last_ringed_at = created_at;
select count(*) from switchboard.reopen_admission() \g /dev/null
select is(test.heard(), 'a:q', 'and told when it opens');
select is(test.bells('q'), 1::bigint, 'with a bell, wherever the mark had gone');
-- with a cap of two, every free slot of a shut queue tells, one of an open one does not
select test.fresh(), test.budget(null, 2), test.create(), test.create(), test.create(), test.create() \g /dev/null
select array_agg(id::text) as held from switchboard.claim_batch(test.a(), 'w', 2) \gset
select test.heard() \g /dev/null
select switchboard.complete(test.a(), (:'held'::text[])[1], 'w') \g /dev/null
select is(test.heard(), 'a:q', 'the first end of a full queue tells');
select switchboard.complete(test.a(), (:'held'::text[])[2], 'w') \g /dev/null
select is(test.heard(), 'nothing', 'the second finds it open');
-- nothing to tell of: open by trust, or empty
select test.fresh(), test.budget(null, 1), test.create(), (select id from switchboard.claim_next(test.a(), 'w')) as held \gset
select test.heard() \g /dev/null
select switchboard.complete(test.a(), :'held', 'w') \g /dev/null
select is(test.heard() || ', ' || test.owed(), 'nothing, nothing', 'an empty queue reopens in silence');
select test.fresh(), test.budget(0), test.create() \g /dev/null
update switchboard.todos set trust_mode = 'open';
select test.heard(), test.budget(5) \g /dev/null
select is(test.heard() || ', ' || test.owed(), 'nothing, nothing', 'what may wake nobody does not');
-- a queue that is shut by nobody's doing, its zone being gone: what is kept back is owed
select test.fresh(), test.budget(5) \g /dev/null
update switchboard.admission_policies set window_tz = 'Mars/Olympus';
select test.heard(), test.create() \g /dev/null
select is(test.heard() || ', ' || test.owed(), 'nothing, q', 'a create that is kept back owes a wake');
select test.fresh(), test.budget(5) \g /dev/null
update switchboard.admission_policies set window_tz = 'Mars/Olympus';
select switchboard.create_todos(test.a(), '[{"queue": "q", "title": "t"}]') \g /dev/null
select is(test.owed(), 'q', 'a batch, too');
-- a call that waits when its queue is shut is moot: another follows
select test.fresh(), test.budget(5), test.create(), test.budget(0) \g /dev/null
select is(switchboard.take_deliveries(), '[]', 'a call for a queue that is shut by now is not made');
select is((select outcome from switchboard.notify_deliveries), 'moot', 'it is moot');
select test.budget(5) \g /dev/null
select is(jsonb_array_length(switchboard.take_deliveries()), 1, 'the one of its reopening is');
-- also when nobody noticed that it was shut
select test.fresh(), test.budget(5), test.create() \g /dev/null
select test.heard() \g /dev/null
update switchboard.admission_policies set window_tz = 'Mars/Olympus';
select is(test.owed(), 'nothing', '(a zone goes, and nobody owes a wake for it)');
select switchboard.take_deliveries() \g /dev/null
select is((select outcome from switchboard.notify_deliveries) || ', ' || test.owed(), 'moot, q', 'a call that is moot for that owes one');
update switchboard.admission_policies set window_tz = 'UTC';
select test.pass('30 s') \g /dev/null
select count(*) from switchboard.reopen_admission() \g /dev/null
select is(test.heard() || ' ' || test.reasons(), 'a:q created reopened', 'so that the call is made after all');
select test.fresh(), test.budget(5), test.create() \g /dev/null
select switchboard.claim_next(test.a(), 'w') \g /dev/null
update switchboard.admission_policies set window_tz = 'Mars/Olympus';
select switchboard.take_deliveries() \g /dev/null
select is((select outcome from switchboard.notify_deliveries) || ', ' || test.owed(), 'moot, nothing', 'one whose todo is taken owes nothing');

-- nudges: what is shut spends none and loses none; a hook that was called when it opened has five minutes to come
select test.fresh(), test.budget(5), test.create() \g /dev/null
select test.pass('5 minutes 1 s') \g /dev/null
select is((select nudges from switchboard.sweep_stalled()), 1, '(a nudge)');
select test.budget(0), test.pass('1 day') \g /dev/null
select is((select count(*) from switchboard.sweep_stalled()) || ' ' || (select nudges from switchboard.queue_stall_nudges), '0 1', 'a queue that is shut is not nudged, and keeps its place in the ledger');
truncate switchboard.notify_deliveries;
select test.budget(5) \g /dev/null
select is((select count(*) from switchboard.sweep_stalled()), 0::bigint, 'when it opens the hook is called once');
select is(test.reasons(), 'reopened', 'as reopened');
select test.pass('4 minutes 50 s') \g /dev/null
select is((select count(*) from switchboard.sweep_stalled()), 0::bigint, 'and not soon after that');
select test.pass('11 s') \g /dev/null
select is((select nudges from switchboard.sweep_stalled()), 2, 'five minutes later it is nudged on');
select test.fresh(), test.budget(0), test.create(), test.create(), test.pass('1 h'), test.budget(5) \g /dev/null
select is((select count(*) from switchboard.sweep_stalled()), 0::bigint, 'nor is one nudged that was never before');
select id as came from switchboard.claim_next(test.a(), 'w') \gset
select switchboard.complete(test.a(), :'came', 'w'), test.pass('30 s') \g /dev/null
select is((select nudges from switchboard.sweep_stalled()), 1, 'but one that came and left work behind');
-- revoked: nothing is told, nothing stays
select test.fresh(), test.budget(0), test.create(), test.heard(), switchboard.clear_admission_policy(test.a(), 'q', test.human('a')) \g /dev/null
select test.budget(0), switchboard.revoke_endpoint(test.a()), test.heard() \g /dev/null
select is(test.owed(), 'q', '(a wake is owed)');
select is((select count(*) from switchboard.reopen_admission()) || ' ' || test.heard() || ' ' || test.owed(), '0 nothing nothing', 'a revoked endpoint is told nothing');

-- the look of an end for what is owed goes by the index, also by a plan that is made when a vacuum has just emptied the table
select test.fresh() \g /dev/null
insert into switchboard.admission_owed (endpoint_id, queue) select test.b()::uuid, 'q' from generate_series(1, 2000);
delete from switchboard.admission_owed;
vacuum analyze switchboard.admission_owed;
select unalike(test.plan_of(format('select exists (select from switchboard.admission_owed o where o.endpoint_id = %L and o.queue = ''q'')', test.a()))::text, '%Seq Scan%', 'by the index');

select * from finish();
