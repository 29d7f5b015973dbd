-- functions/26_admission: budgets and claims. Races are in isolation/specs and test_admission_storm.py, windows in 25_windows, who may set one in 27_policies.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
-- The clock stands at Monday 2026-03-02, 12:00 UTC. A budget of a queue of `a`, by the table: limits, and a day in UTC.
create function test.budget(p_claims int, p_flight int default null, p_queue text default 'q', p_tz text default 'UTC', p_endpoint text default 'a') returns void language sql as $$
    insert into switchboard.admission_policies as p (endpoint_id, queue, max_in_flight, max_claims_per_window, window_period, window_tz, window_start, created_by_human_id, updated_by_human_id)
    values (test.endpoint(p_endpoint)::uuid, p_queue, p_flight, p_claims, case when p_claims is not null then 'day' end, case when p_claims is not null then p_tz end,
            case when p_claims is not null then '00:00' end, test.human(p_endpoint), test.human(p_endpoint))
    on conflict (endpoint_id, queue) do update set max_in_flight = excluded.max_in_flight, max_claims_per_window = excluded.max_claims_per_window,
        window_period = excluded.window_period, window_tz = excluded.window_tz, window_start = excluded.window_start
$$;
create function test.no_budget() returns void language sql as $$
    truncate switchboard.admission_policies, switchboard.admission_windows, switchboard.admission_owed, switchboard.admission_refusals, switchboard.admission_totals
$$;
create function test.make(p_n int, p_queue text default 'q', p_attempts int default 5) returns text[] language sql as $$
    select array_agg(test.create('a', p_queue, null, p_attempts)) from generate_series(1, p_n)
$$;
create function test.next(p_queues text default null, p_owner text default 'w') returns text language sql as $$
    select coalesce((select queue from switchboard.claim_next(test.a(), p_owner, p_queues::text[])), 'none')
$$;
create function test.used(p_queue text default 'q') returns text language sql as $$
    select coalesce((select string_agg(w.used::text, '+' order by w.window_start) from switchboard.admission_windows w join switchboard.admission_policies p on p.id = w.policy_id where p.queue = p_queue), 'nothing')
$$;
create function test.deferral(p_queue text default 'q') returns text language sql as $$
    select coalesce((select concat_ws(' ', d.reason, d.pending, to_char(d.next_eligible_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI'), d.exact) from switchboard.deferred_queues(test.a()) d where d.queue = p_queue), 'open')
$$;

-- a window: one unit a claim, and not one more
select test.budget(3), test.make(5) \g /dev/null
select is((select admission from switchboard.claim_next(test.a(), 'w')), '{"max_claims_per_window": 3, "used": 1, "remaining": 2, "window_resets_at": "2026-03-03T00:00:00+00:00"}', 'a claim says what is left');
select is(test.next() || test.next() || test.next(), 'qqnone', 'three claims, then nothing');
select is(test.used(), '3', 'three are charged');
select is((select charged from switchboard.admission_policies), 3::bigint, 'the policy counts them, too');
select is(test.deferral(), 'window_exhausted 2 2026-03-03 00:00 t', 'what waits, and until when exactly');
select test.refused(format('select switchboard.claim(test.a(), %L, ''w'')', (select id from switchboard.todos where state = 'pending' limit 1)), 'SB429', 'a claim by id is deferred',
    '{"queue": "q", "reason": "window_exhausted", "next_eligible_at": "2026-03-03T00:00:00+00:00", "exact": true}');
select is((select switchboard.error_value('SB429', 'm', '{"queue": "q"}') -> 'error' ->> 'code'), 'deferred', 'its code');
select is(array(select (admission ->> 'status') || ' ' || (admission ->> 'next_eligible_at') from switchboard.list_todos(test.a(), 'q', 'pending')),
    array_fill('window_exhausted 2026-03-03T00:00:00+00:00'::text, array[2]), 'pending todos say why they wait');
select is((select admission ->> 'status' from switchboard.get_todo(test.a(), (select id::text from switchboard.todos where state = 'pending' limit 1))), 'window_exhausted', 'get_todo says so, too');
select is((select admission ->> 'status' from switchboard.get_todo_any_endpoint((select id::text from switchboard.todos where state = 'pending' limit 1))), 'window_exhausted', 'and the operator''s');
select is((select count(admission) from switchboard.list_todos_any_endpoint('q')), 2::bigint, 'the operator''s list: the pending ones');
select is((select count(admission) from switchboard.list_todos(test.a(), 'q', 'claimed')), 0::bigint, 'claimed ones say nothing');

-- fault 28: a window across midnight
select test.at('2026-03-02T23:59:30Z') \g /dev/null
select is(test.next(), 'none', 'fault 28: 23:59:30 is the old window');
select test.at('2026-03-03T00:01:00Z') \g /dev/null
select is(test.next(), 'q', 'fault 28: 00:01 is the new one');
select is(test.used(), '3+1', 'a row a window');

-- nothing gives a unit back: not the end of a claim, whichever; retries and takeovers cost as much as first attempts
select test.clear(), test.no_budget(), test.budget(4), test.make(1) \g /dev/null
select * from switchboard.claim_next(test.a(), 'w') \gset t_
select switchboard.release(test.a(), :'t_id', 'w') \g /dev/null
select is(test.used(), '1', 'a release gives nothing back');
select * from switchboard.claim_next(test.a(), 'w') \gset t_
select switchboard.fail(test.a(), :'t_id', 'w') \g /dev/null
select test.pass('1 h') \g /dev/null
select is(test.next() || test.used(), 'q3', 'a retry is charged, a failure gives nothing back');
select test.pass('1 h') \g /dev/null
select is(test.next() || test.used(), 'q4', 'a takeover is charged');
select test.pass('1 h') \g /dev/null
select is(test.next() || test.used(), 'none4', 'and the window is spent, though a lease has lapsed');
select is(test.deferral(), 'window_exhausted 0 2026-03-04 00:00 t', 'a lapsed one waits, too');
select is((select attempt from switchboard.todos), 4, 'a refused takeover leaves no trace on the todo');
select is((select count(*) from switchboard.todo_attempts where outcome = 'lapsed'), 1::bigint, 'nor in its history');

-- in flight
select test.clear(), test.no_budget(), test.budget(null, 2), test.make(4) \g /dev/null
select is((select admission from switchboard.claim_next(test.a(), 'w', null, 60)), '{"max_in_flight": 2, "in_flight": 1}', 'a cap alone has no window');
select is((select (admission ->> 'in_flight') from switchboard.claim_next(test.a(), 'w', null, 600)), '2', 'the second fills it');
select is(test.next(), 'none', 'the cap is full');
select is(test.deferral(), 'in_flight_full 2 ' || to_char((switchboard.now() + interval '60 s') at time zone 'UTC', 'YYYY-MM-DD HH24:MI') || ' f', 'the earliest lease that ends, not exactly');
select is(test.used(), 'nothing', 'no window is charged');
select is((select charged from switchboard.admission_policies), 2::bigint, 'claims are counted');
select switchboard.complete(test.a(), (select id::text from switchboard.todos where state = 'claimed' order by created_at limit 1), 'w') \g /dev/null
select is(test.next(), 'q', 'fault 31: a slot that is free again is found by the next poll');
-- fault 25: leaked slots
select test.clear(), test.make(4), test.next(), test.next(), test.pass('1 h') \g /dev/null
select is((select array_agg(t.attempt::text) from switchboard.claim_next(test.a(), 'x') t), '{2}', 'fault 25: a lapsed one is taken over though the cap is full');
select is(test.next() || test.next(), 'qnone', 'fault 25: so is the other, and no further one is admitted');
select is((select count(*) from switchboard.todos where state = 'claimed'), 2::bigint, 'two are held');
select is((select count(*) from switchboard.todos where attempt = 2), 2::bigint, 'fault 25: both were taken over');
-- a live lease is not a slot for anybody
select test.clear(), test.make(3), test.next(), test.pass('1 h'), test.next() \g /dev/null
select is(array(select attempt from switchboard.todos where state = 'claimed'), '{2}', 'the oldest, which has lapsed, comes first');

-- fault 26: what is shut does not hide what is open, and claim_next goes on
select test.clear(), test.no_budget(), test.budget(1), test.budget(0, null, 'r') \g /dev/null
select test.make(3), test.make(2, 'r'), test.pass('1 s'), test.make(2, 'inbox') \g /dev/null
select is(test.next() || test.next() || test.next() || test.next(), 'qinboxinboxnone', 'fault 26: on to the open queue');
select is(test.deferral('r'), 'paused 2 f', 'a limit of 0 is paused');
select is(test.deferral(), 'window_exhausted 2 2026-03-03 00:00 t', 'and q is spent') where switchboard.now() < '2026-03-03';
select is((select array_agg(d.queue order by d.queue) from switchboard.deferred_queues(test.a(), '{r,inbox}') d), '{r}', 'only the queues that are named');
select test.forbidden($$ select * from switchboard.deferred_queues(test.a(), '{other}') $$, 'and granted');
select is((select count(*) from switchboard.deferred_queues(test.b()) d), 0::bigint, 'another endpoint has none');
select is((select count(*) from switchboard.deferred_queues(e) d), 0::bigint, 'none for ' || coalesce(e, 'NULL')) from unnest(array[test.unknown(), 'x', null]) e;
select is(jsonb_array_length(switchboard.deferred_json(test.a(), null, 'w')), 2, 'the list of claim_next');

-- what is assigned to others is not held back from this owner
select test.clear(), test.no_budget(), test.budget(0) \g /dev/null
select test.create('a', 'q', null, 5, 'x') \g /dev/null
select is((select count(*) from switchboard.deferred_queues(test.a(), null, 'y')), 0::bigint, 'nothing for y');
select is((select count(*) from switchboard.deferred_queues(test.a(), null, o)), 1::bigint, 'something for ' || coalesce(o, 'anybody')) from unnest(array['x', null]) o;
select is(test.next(null, 'x'), 'none', 'an assigned todo is deferred, too');

-- parked: a backoff that is over is held back, one that is not, is not
select test.clear(), test.no_budget(), test.make(1) \g /dev/null
select switchboard.fail(test.a(), t.id::text, 'w') from switchboard.claim_next(test.a(), 'w') t \g /dev/null
select test.budget(0) \g /dev/null
select is(test.deferral(), 'open', 'nothing is claimable: nothing is held back');
select test.pass('1 h') \g /dev/null
select is(test.deferral(), 'paused 0 f', 'the retry is due');

-- both limits; lowered below what is in use; removed in flight (fault 32)
select test.clear(), test.no_budget(), test.budget(2, 2), test.make(9) \g /dev/null
select is(test.next() || test.next() || test.next(), 'qqnone', 'both are hit');
select is(split_part(test.deferral(), ' ', 1), 'window_exhausted', 'both limits hit: window_exhausted');
select test.budget(9, 1) \g /dev/null
select is(test.next(), 'none', 'fault 32: lowered below what is held');
select is(split_part(test.deferral(), ' ', 1), 'in_flight_full', 'fault 32: in_flight_full');
select test.pass('1 h') \g /dev/null
select is(test.next(), 'none', 'fault 32: a takeover would still be one too many');
select switchboard.complete(test.a(), (select id::text from switchboard.todos where state = 'claimed' limit 1), 'w') \g /dev/null
select is(test.next(), 'q', 'with one held, lapsed, the cap of 1 admits its takeover');
select is((select count(*) from switchboard.todos where state = 'claimed'), 1::bigint, 'and nothing else');
select test.budget(1, 0) \g /dev/null
select is(split_part(test.deferral(), ' ', 1), 'paused', 'fault 32: 0 is paused, whatever else is hit');
select test.no_budget() \g /dev/null
select is(test.next(), 'q', 'fault 32: removed in flight, claims go on');
-- a zone that is gone: nothing is admitted
select test.budget(9), test.budget(9, null, 'q', 'Mars/Olympus') \g /dev/null
select is(test.next(), 'none', 'fault 32: a zone that is gone admits nothing');
select is(test.deferral(), 'admission_unavailable 6 f', 'fault 32: admission_unavailable');
select test.refused(format('select switchboard.claim(test.a(), %L, ''w'')', (select id from switchboard.todos where state = 'pending' limit 1)), 'SB429', 'fault 32: by id, too', '{"reason": "admission_unavailable"}');

-- batches: no more than what is left, charged once a queue
select test.clear(), test.no_budget(), test.budget(3), test.budget(null, 2, 'r') \g /dev/null
select test.make(5), test.make(5, 'r'), test.make(2, 'inbox') \g /dev/null
create table test.batch as select queue, admission from switchboard.claim_batch(test.a(), 'w', 100);
select is((select string_agg(queue || n, ' ' order by queue) from (select queue, count(*) as n from test.batch group by 1) s), 'inbox2 q3 r2', 'a batch takes what the budgets leave');
select is(test.used() || ' ' || (select string_agg(charged::text, ',' order by queue) from switchboard.admission_policies), '3 3,2', 'and they are charged for it');
select is((select string_agg(admission ->> 'remaining', ',' order by (admission ->> 'used')::int) from test.batch where queue = 'q'), '2,1,0', 'each of its rows says what is left');
select is((select max(admission ->> 'in_flight') from test.batch where queue = 'r'), '2', 'or held');
select is((select count(*) from test.batch where queue = 'inbox' and admission is not null), 0::bigint, 'an open queue says nothing');
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 100)), 0::bigint, 'a second batch takes nothing');
select is((select count(*) from switchboard.admission_windows), 1::bigint, 'one row for the window');
select test.pass('1 h') \g /dev/null
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 100, '{r}')), 2::bigint, 'a batch takes over what lapsed, though the cap is full');
select is((select count(*) from switchboard.todos where state = 'claimed' and queue = 'r'), 2::bigint, 'and adds nothing');
select test.clear(), test.no_budget(), test.budget(5, 3), test.make(2), test.next(), test.next(), test.pass('1 h'), test.make(4) \g /dev/null
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 100)), 3::bigint, 'two takeovers and one new one fill a cap of 3');
select is(test.used(), '5', 'five are charged');

-- counting: the charges are the claims of the window, whoever claimed how
select test.clear(), test.no_budget(), test.budget(1000), test.make(30) \g /dev/null
select test.next(), test.next() \g /dev/null
select count(*) from switchboard.claim_batch(test.a(), 'w', 5) \g /dev/null
select switchboard.claim(test.a(), (select id::text from switchboard.todos where state = 'pending' limit 1), 'w') \g /dev/null
select switchboard.claim_any_endpoint((select id::text from switchboard.todos where state = 'pending' limit 1), null, test.human('a')) \g /dev/null
select is(test.used(), (select sum(claims)::text from switchboard.todos where queue = 'q'), 'charged is claimed');
select switchboard.complete_any_endpoint(id::text, null, test.human('a'), true) from switchboard.todos where state = 'claimed' limit 1 \g /dev/null
select is(test.used(), '9', 'an override costs nothing');

-- fault 27: nothing is charged when no claim commits
begin; select test.next() \g /dev/null
rollback;
select is(test.used(), '9', 'fault 27: a claim that rolled back');
select test.conflict(format('select switchboard.claim(test.a(), %L, ''w'')', (select id from switchboard.todos where state = 'claimed' limit 1)), 'a held one is a conflict, not a deferral');
select is(test.used(), '9', 'fault 27: a conflict');
select test.budget(1000, 1) \g /dev/null
select is(test.next() || test.used(), 'none9', 'fault 27: in-flight full');

-- refusals are counted, once a claim that comes back empty and queue
select test.no_budget(), test.budget(0), test.budget(0, null, 'r') \g /dev/null
select test.clear(), test.make(1), test.make(1, 'r'), test.make(1, 'inbox') \g /dev/null
select is(test.next(), 'inbox', 'a claim that gets something');
select is((select count(*) from switchboard.admission_refusals), 0::bigint, 'is no refusal');
select is(test.next() || test.next('{r}'), 'nonenone', 'two that get nothing');
select is((select string_agg(queue || reason, ',' order by queue, reason) from switchboard.admission_refusals), 'qpaused,rpaused,rpaused', 'are counted by queue');
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 5, '{q}')), 0::bigint, 'a batch, too');
select is(switchboard.fold_refusals(), 4::bigint, 'four are folded');
select is((select string_agg(queue || total, ',' order by queue) from switchboard.admission_totals where kind = 'paused'), 'q2,r2', 'into the totals');
select is(switchboard.fold_refusals(), 0::bigint, 'once');
select test.clear() \g /dev/null
select is(test.next() || (select count(*) from switchboard.admission_refusals), 'none0', 'an empty queue refuses nobody');

-- a claim that shuts a queue owes a wake
select test.no_budget(), test.budget(2), test.make(3), test.next() \g /dev/null
select is((select count(*) from switchboard.admission_owed), 0::bigint, 'nothing is owed while it is open');
select test.next() \g /dev/null
select is((select array_agg(queue) from switchboard.admission_owed), '{q}', 'the last unit owes a wake');

-- the operator is no exception
select test.refused(format('select switchboard.claim_any_endpoint(%L, null, test.human(''a''))', (select id from switchboard.todos where state = 'pending' limit 1)), 'SB429', 'the operator''s claim is deferred', '{"queue": "q"}');

select * from finish();
