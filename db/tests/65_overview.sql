-- functions/65_overview: how every queue stands.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
create view test.q as select * from switchboard.queue_overview(test.human('a')) where endpoint = (select slug from switchboard.endpoints where id::text = test.a());
create function test.of(p_queue text) returns text language sql as $$
    select concat_ws(' ', waiting, held, parked, dead, created, done) from test.q where queue = p_queue
$$;

-- counts
select is(test.of('q'), '0 0 0 0 0 0', 'an empty queue is there');
select is((select oldest_waiting_at from test.q where queue = 'q'), null, 'and nothing is its oldest');
select test.make('claimed'), test.make('parked'), test.make('dead'), test.make('done'), test.create('a') \g /dev/null
select test.pass('10 s') \g /dev/null
select test.create('a', p_assignee => 'ann') \g /dev/null
select is(test.of('q'), '2 1 1 1 6 1', 'waiting, assigned ones too; held, parked, dead, created, done');
select is(clock_age, interval '10 s', 'the age of the oldest') from (select seen_at - oldest_waiting_at as clock_age from test.q where queue = 'q') a;
select is((select array_agg(queue order by queue) from test.q), '{inbox,q,r}', 'every queue it ever had');
select switchboard.set_grant(test.a(), '{q,inbox}') \g /dev/null
select is((select array_agg(queue) from test.q where not granted), '{r}', 'one that was taken away is said to be');

-- counters stay what they are over folds and prune
select test.pass('1 min'), switchboard.fold_attempts(), switchboard.fold_created(), switchboard.fold_created() \g /dev/null
select is(test.of('q'), '2 1 1 1 6 1', 'folded: the same');
select test.create('a') \g /dev/null
select is(test.of('q'), '3 1 1 1 7 1', 'and what came since is added');

-- quarantine is no queue to work on
select test.grant_all('a') \g /dev/null
select switchboard.create_todo(test.a(), 'inbox', 'x') \g /dev/null
insert into switchboard.queue_marks (endpoint_id, queue) values (test.a()::uuid, 'quarantine') on conflict do nothing;
select is((select count(*) from test.q where queue = 'quarantine'), 0::bigint, 'quarantine is left out');

-- budgets
select is((select status from test.q where queue = 'q'), null, 'no budget: no status');
select test.set_budget('q', 0, 3) \g /dev/null
select is((select concat_ws(' ', status, used, max_claims_per_window, in_flight, max_in_flight) from test.q where queue = 'q'), 'paused 0 0 1 3', 'its budget, and how it stands');

-- stalled
select is_empty($$ select * from switchboard.stalled_queues() $$, 'nothing is stalled');
insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges, last_nudged_at) values (test.a()::uuid, 'q', 2, switchboard.now());
select is((select nudges from test.q where queue = 'q'), 2, 'nudged in vain');
select is((select concat_ws(' ', queue, waiting, nudges, next_nudge_at - last_nudged_at, progressed) from switchboard.stalled_queues(test.human('a'))), 'q 3 2 01:00:00 f', 'and when the next nudge comes');
update switchboard.queue_stall_nudges set nudges = 5;
select is((select next_nudge_at from switchboard.stalled_queues()), null, 'after five none');
update switchboard.queue_stall_nudges set progressed_at = switchboard.now();
select is((select nudges from test.q where queue = 'q'), null, 'progress: not stalled any more');
select is((select progressed from switchboard.stalled_queues()), true, 'still in the list, as progressed');

-- found by what one knows of them
select switchboard.create_todo(test.a(), 'q', 'Replace the lamp', p_idempotency_key => 'lamp-1') \g /dev/null
select is((select title from switchboard.find_todos_any_endpoint('lamp-1')), 'Replace the lamp', 'by key, among all humans');
select is((select count(*) from switchboard.find_todos_any_endpoint('replace', test.b())), 0::bigint, 'not on another endpoint');
select is((select count(*) from switchboard.find_todos_any_endpoint('REPLACE', p_actor_human_id => test.human('a'))), 1::bigint, 'by the beginning of its title');
select is((select array_agg(distinct state) from switchboard.find_todos_any_endpoint(p_state => 'parked')), '{failed}', 'or by a state of the board');
select is((select count(*) from switchboard.find_todos_any_endpoint('lamp-1', p_actor_human_id => test.human('b'))), 0::bigint, 'a human finds own ones only');
select is(n, m, 'a cursor goes on') from (select (array_agg(id order by id desc))[3] as n from switchboard.find_todos_any_endpoint()) a,
    (select max(f.id::text)::uuid as m from (select id from switchboard.find_todos_any_endpoint(p_limit => 2)) g, lateral switchboard.find_todos_any_endpoint(p_before => g.id::text, p_limit => 1) f where g.id = (select min(id::text)::uuid from switchboard.find_todos_any_endpoint(p_limit => 2))) b;
select test.invalid($$ select * from switchboard.find_todos_any_endpoint(p_limit => 0) $$, 'limit', 'a limit of 0');

-- whose
select isnt_empty($$ select * from switchboard.queue_overview() where endpoint = (select slug from switchboard.endpoints where id::text = test.b()) $$, 'an operator sees all');
select is_empty($$ select * from switchboard.queue_overview(test.human('b')) where endpoint = (select slug from switchboard.endpoints where id::text = test.a()) $$, 'a human own endpoints only');
select is_empty($$ select * from switchboard.stalled_queues(test.human('b')) $$, 'stalled ones, too');
select test.not_found($$ select * from switchboard.queue_overview(gen_random_uuid()) $$, 'nobody');
select test.login('app', 'switchboard_app') \g /dev/null
select is(test.as_login(test.login_name('app'), 'select * from switchboard.queue_overview()') ->> 'error', 'SB403', 'the gateway has to name a human');
select is(test.as_login(test.login_name('app'), 'select * from switchboard.stalled_queues()') ->> 'error', 'SB403', 'here, too');
select switchboard.revoke_endpoint(test.a()) \g /dev/null
select is_empty($$ select * from test.q $$, 'a revoked endpoint has no queues');

select * from finish();
