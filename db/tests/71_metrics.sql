-- functions/71_metrics: numbers for Prometheus.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada \gset
-- One sample, NULL when it is not there.
create function test.sample(p_name text, p_labels jsonb default '{}') returns double precision language sql as $$
    select m.value from unnest(switchboard.metric_collectors()) c cross join lateral switchboard.metrics(c) m where m.name = 'switchboard_' || p_name and m.labels @> p_labels
$$;
create function test.total(p_name text, p_labels jsonb default '{}') returns double precision language sql as $$
    select sum(m.value) from unnest(switchboard.metric_collectors()) c cross join lateral switchboard.metrics(c) m where m.name = 'switchboard_' || p_name and m.labels @> p_labels
$$;
create function test.q(p_more jsonb default '{}') returns jsonb language sql as $$ select '{"queue": "q"}'::jsonb || p_more $$;
create view test.samples as select c as collector, m.* from unnest(switchboard.metric_collectors()) c cross join lateral switchboard.metrics(c) m;

-- nothing there yet
select is(test.sample('queue_todos', test.q('{"state": "pending"}')), 0::double precision, 'nothing is pending: 0, which was read');
select is(test.sample('queue_oldest_pending_seconds', test.q()), null, 'and nothing is the oldest: left out');
select test.invalid($$ select * from switchboard.metrics('x') $$, 'collector', 'no such collector');

-- live todos
select test.make('claimed'), test.make('lapsed'), test.make('parked'), test.make('due'), test.make('dead'), test.make('done'), test.create('b'), test.create('a', 'r', p_assignee => 'ann') \g /dev/null
select is(test.sample('queue_todos', test.q(jsonb_build_object('state', s))), n, s) from (values ('pending', 1::double precision), ('claimed', 2), ('parked', 2), ('dead', 1), ('done', null)) v(s, n);
select is(test.sample('queue_todos', '{"queue": "r", "state": "pending"}'), 1::double precision, 'assigned ones count');
select test.pass('10 s') \g /dev/null
select is(test.sample('queue_oldest_pending_seconds', test.q()), 10::double precision, 'the age of the oldest');

-- created, by source
select switchboard.create_todo(test.a(), 'q', 'x', p_source => 'https://x/secret') \g /dev/null
select is(test.sample('todos_created_total', test.q('{"source": "sql"}')), 8::double precision, 'created by SQL callers, whatever they call it');
select is(switchboard.source_label(t, s), l, format('%s of %s is %s', s, t, l)) from (values ('signed', 'github', 'github'), ('open', 'https://x', 'other'), ('token', null, 'other'), ('operator', 'github', 'operator'), ('agent', null, 'agent')) v(t, s, l);
select is((select array_agg(s.source_type order by 1) from switchboard.source_types() s where switchboard.source_label('signed', s.source_type) <> s.source_type), null, 'every source type is a label');
-- claims: what ended and what is held
select is(test.sample('todos_claimed_total', test.q()), 6::double precision, 'claims');
select is(test.total('todo_attempts_total', test.q()), 6::double precision, 'by attempt: as many');
select is(test.total('todos_completed_total', test.q()) + coalesce(test.total('todo_leases_expired_total', test.q()), 0) + test.sample('queue_todos', test.q('{"state": "claimed"}')), 6::double precision, 'ended, expired or held: all of them');
select switchboard.reap_expired() \g /dev/null
select is(test.sample('todo_leases_expired_total', test.q()), 2::double precision, 'leases that ran out');
select is(test.sample('todos_completed_total', test.q('{"outcome": "done"}')), 1::double precision, 'one that was done');

-- Folds until what is older than ten seconds is folded: transactions of other databases may be open.
create procedure test.fold_created() language plpgsql as $$
begin
    for i in 1 .. 1000 loop
        perform switchboard.fold_created();
        commit;
        exit when (select switchboard.id_time(folded_to) >= switchboard.now() - interval '10.1 s' from switchboard.created_fold);
        perform pg_sleep(0.01);
    end loop;
end
$$;
-- no fold and no prune moves a counter
create function test.counters() returns jsonb language sql as $$ select jsonb_agg(to_jsonb(s) - 'collector' order by s.name, s.labels) from test.samples s where s.kind = 'counter' $$;
select test.counters() as before \gset
select switchboard.fold_attempts(), switchboard.fold_created(), switchboard.fold_refusals() \g /dev/null
select is(test.counters(), :'before'::jsonb, 'folded: the same');
select test.pass('1 min') \g /dev/null
call test.fold_created();
select is((select sum(total) from switchboard.created_totals), 9::numeric, 'a minute later all creates are folded');
call test.fold_created();
select is((select sum(total) from switchboard.created_totals), 9::numeric, 'once');
select is(test.counters(), :'before'::jsonb, 'and the counters say the same');
select switchboard.set_retention(test.a(), p_rows => 0), test.make('done') \g /dev/null
select test.counters() as before \gset
select switchboard.prune() as pruned \gset
select cmp_ok(:'pruned'::bigint, '>=', 2::bigint, 'todos are pruned, one that was not folded among them');
select is(test.counters(), :'before'::jsonb, 'pruned: the same');
select test.pass('1 min') \g /dev/null
call test.fold_created();
select is(test.counters(), :'before'::jsonb, 'nor does a later fold count it twice');

-- budgets
select switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 2}', :'ada'), switchboard.set_admission_policy(test.a(), 'r', '{"max_in_flight": 0}', :'ada') \g /dev/null
select test.sample('todos_claimed_total', test.q()) as base \gset
select switchboard.complete(test.a(), id, 'w') from (select (switchboard.claim(test.a(), test.create(), 'w')).id::text) c (id) \g /dev/null
select switchboard.complete(test.a(), id, 'w') from (select (switchboard.claim(test.a(), test.create(), 'w')).id::text) c (id) \g /dev/null
select is(test.sample('admission_charged_total', test.q()), 2::double precision, 'charged');
select is(test.sample('todos_claimed_total', test.q()) - :'base', 2::double precision, 'as often as claimed');
select is(test.sample('admission_policies', test.q('{"status": "open"}')) + test.sample('admission_policies', '{"queue": "r", "status": "paused"}'), 2::double precision, 'budgets by status');
select is(test.sample('admission_deferred_todos', '{"queue": "r", "reason": "paused"}'), 1::double precision, 'what is deferred');
select switchboard.note_refusal(test.a()::uuid, 'q', 'paused'), switchboard.note_refusal(test.b()::uuid, 'q', 'paused'), switchboard.note_refusal(test.b()::uuid, 'q', 'window_exhausted') \g /dev/null
select is(test.sample('admission_refusals_total', test.q('{"reason": "paused"}')), 2::double precision, 'refusals of all endpoints');
select test.counters() as before \gset
select switchboard.fold_refusals(), switchboard.clear_admission_policy(test.a(), 'q', :'ada') \g /dev/null
select is(test.counters(), :'before'::jsonb, 'folded, and the policy cleared: the same');
select switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 2}', :'ada') \g /dev/null
select is(test.counters(), :'before'::jsonb, 'and set again');

-- an old transaction that creates late is counted all the same: see isolation; labels say nothing of anybody
select is_empty($$ select * from test.samples where labels::text ~ '[0-9a-f]{8}-' or labels::text like '%test-%' or labels::text like '%//%' $$, 'no id, endpoint or URL is a label');
select is_empty($$ select name, labels from test.samples group by 1, 2 having count(*) > 1 $$, 'every series is there once');
select is_empty($$ select name from test.samples group by name having count(distinct kind || help) > 1 $$, 'a metric has one kind and one help');
select is_empty($$ select * from test.samples where name !~ '^switchboard_[a-z_]+$' or kind not in ('gauge', 'counter') or (kind = 'counter') <> (name like '%\_total') or value is null or jsonb_typeof(labels) <> 'object' $$, 'names and kinds are as Prometheus wants them');

-- at most 50 labels of queues: the largest at the first look, and for good
truncate switchboard.metric_queues;
select test.vend('many' || g, :'ada', array(select format('m%s-%s', g, n) from generate_series(1, 20) n)) from generate_series(1, 4) g \g /dev/null
select test.create('many1', 'm1-7'), test.create('many1', 'm1-7'), test.create('many4', 'm4-20') \g /dev/null
create view test.labels as select distinct labels ->> 'queue' as queue from test.samples where labels ? 'queue';
select is((select count(*) from test.labels), 51::bigint, '50 queues and the rest');
select is((select count(*) from test.labels where queue in ('__other__', 'q', 'm1-7', 'm4-20')), 4::bigint, 'the largest are among them');
select test.sample('queue_todos', '{"queue": "__other__", "state": "pending"}') as other \gset
select test.create('many' || g, format('m%s-%s', g, n)) from generate_series(1, 4) g, generate_series(1, 20) n \g /dev/null
select is((select array_agg(queue order by queue) from test.labels), (select array_agg(queue order by queue) from (select queue from switchboard.metric_queues union select '__other__') l), 'they stay');
select is((select count(*) from switchboard.metric_queues), 50::bigint, 'and no more come');
select is(test.total('queue_todos', '{"state": "pending"}'), (select count(*) from switchboard.todos where state = 'pending')::double precision, 'nothing is lost by it');
select is(test.sample('todos_created_total', '{"queue": "__other__", "source": "sql"}'), (select sum(n) from (select count(*) as n from switchboard.todos t where not exists (select from switchboard.metric_queues q where q.queue = t.queue)) c)::double precision, 'the others are one series');

select * from finish();
