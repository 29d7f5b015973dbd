-- functions/22_claim: claim, claim_next, claim_batch. Races are in isolation/specs, costs in plans.sql.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
create function test.taken(p_owner text, p_queues text[] default null, p_endpoint text default 'a') returns text language sql as $$
    select id::text from switchboard.claim_next(test.endpoint(p_endpoint), p_owner, p_queues)
$$;
-- Todos a second apart: test.line('q', 'r') makes one in each, oldest first.
create function test.line(variadic p_queues text[]) returns text[] language plpgsql as $$
declare
    v_ids text[] := '{}';
begin
    for n in 1..cardinality(p_queues) loop
        perform test.pass('1 s');
        v_ids := v_ids || test.create('a', p_queues[n]);
    end loop;
    return v_ids;
end
$$;

-- what a claim sets
select test.create() as id \gset
select ok(to_jsonb(t) @> '{"state": "claimed", "owner": "w1", "attempt": 1}' and t.claimed_at = switchboard.now() and t.updated_at = switchboard.now()
        and t.lease_expires_at = switchboard.now() + interval '300 s', 'a claim sets owner, lease, claimed_at and attempt')
    from switchboard.claim(test.a(), :'id', 'w1') t;
select matches((select lease_token from switchboard.claim_next(test.a(), 'w1', '{r}') union all select lease_token from test.make('pending', 'a', 'r') i, switchboard.claim(test.a(), i, 'w1') limit 1), '^[A-Za-z0-9_-]{12}$',
    'a lease token is 12 characters');
select is((select count(distinct lease_token) from generate_series(1, 20) n, lateral test.create('a', 'inbox', 'n' || n) i, lateral switchboard.claim(test.a(), i, 'w1') t), 20::bigint, 'each claim makes a new token');

-- whose lease
select test.clear() \g /dev/null
create function test.lease(p_seconds int default null) returns int language sql as $$
    select extract(epoch from t.lease_expires_at - switchboard.now())::int from test.create() i, switchboard.claim(test.a(), i, 'w1', p_seconds) t
$$;
select is(test.lease(), 300, 'the server''s default lease');
select is(test.lease(s), e, 'a lease of ' || s) from (values (1, 1), (86400, 86400), (86401, 86400), (2147483647, 86400)) v(s, e);
update switchboard.settings set default_lease_seconds = 7;
select is(test.lease(), 7, 'the server''s setting');
select switchboard.set_default_lease(test.a(), 600) \g /dev/null
select is(test.lease(), 600, 'the endpoint''s default goes before the server''s');
select is(test.lease(5), 5, 'the call''s goes before the endpoint''s');
select switchboard.set_default_lease(test.a(), null) \g /dev/null
update switchboard.settings set default_lease_seconds = 300;
select test.invalid(format('select * from switchboard.claim_next(test.a(), ''w'', null, %s)', s), 'lease_ttl_seconds', 'no lease: ' || s) from unnest('{0,-1,-2147483648}'::int[]) s;

-- fault 15: a lease from a long transaction counts from the claim, not from the transaction's start
select test.clear(), test.real_time(), test.create() \g /dev/null
begin;
select count(*) from generate_series(1, 100000) \g /dev/null
select cmp_ok((select lease_expires_at from switchboard.claim_next(test.a(), 'w', '{q}', 2)), '>', pg_catalog.now() + interval '2 s', 'fault 15: the lease is 2 s from the claim');
commit;
select test.clear(), test.stop_clock() \g /dev/null

-- arguments
select test.invalid(format('select * from switchboard.%s', replace(c, 'OWNER', coalesce(quote_literal(o), 'null'))), 'owner', format('no owner for %s: %s', split_part(c, '(', 1), coalesce(quote_literal(left(o, 5)), 'NULL')))
    from unnest(array['claim(test.a(), test.unknown(), OWNER)', 'claim_next(test.a(), OWNER)', 'claim_batch(test.a(), OWNER, 1)']) c, unnest(array[null, '', repeat('x', 129)]) o;
select lives_ok($$ select * from switchboard.claim_next(test.a(), repeat('ä', 128)) $$, 'an owner of 128 characters');
select test.invalid($$ select * from switchboard.claim_next(test.a(), 'w', '{q,Q}') $$, 'queue', 'a malformed queue');
select test.invalid($$ select * from switchboard.claim_next(test.a(), 'w', '{q,NULL}') $$, 'queue', 'a NULL queue');
select test.forbidden(format('select * from switchboard.claim_next(test.a(), ''w'', %L)', q), 'forbidden: ' || q) from unnest(array['{other}', '{q,other}', '{quarantine}', '{q,quarantine}']) q;
select test.forbidden($$ select * from switchboard.claim_batch(test.a(), 'w', 1, '{q,other}') $$, 'forbidden for a batch');
select test.invalid($$ select * from switchboard.claim_next(test.a(), 'w', array_fill('q'::text, '{33}')) $$, 'queues', 'more than 32 queues');

-- which one
select (test.line('r', 'q', 'inbox', 'q'))[1:4] as ids \gset
select is(test.taken('w', '{}'), null, 'an empty array of queues takes nothing');
select is(test.taken('w', '{q,inbox}'), (:'ids'::text[])[2], 'the oldest of the named queues');
select is(test.taken('w', '{inbox,q}'), (:'ids'::text[])[3], 'whatever their order');
select is(test.taken('w'), (:'ids'::text[])[1], 'without queues: the oldest of all granted');
select is(test.taken('w'), (:'ids'::text[])[4], 'and so on');
select is(test.taken('w'), null, 'no row when nothing is claimable');

-- lapsed leases and elapsed backoffs take their place by age, as if pending
select test.clear() \g /dev/null
select test.create('a', 'q') as lapsed \gset
select test.pass('1 s'), switchboard.claim(test.a(), :'lapsed', 'w1', 60) \g /dev/null
select test.create('a', 'r') as due \gset
select switchboard.claim(test.a(), :'due', 'w1'), switchboard.fail(test.a(), :'due', 'w1'), test.pass('1 s') \g /dev/null
select test.create('a', 'q') as fresh \gset
select is(test.taken('w2'), :'fresh', 'while the lease runs and the backoff waits: the pending one');
select test.pass('1 s') \g /dev/null
select test.create('a', 'q') as fresher \gset
select test.pass('60 s') \g /dev/null
select is(test.taken('w2'), :'lapsed', 'the lapsed one is older');
select is(test.taken('w2'), :'due', 'the due one is older');
select is(test.taken('w2'), :'fresher', 'then the pending one');
select ok(test.stored(:'lapsed') @> '{"owner": "w2", "attempt": 2}', 'a takeover counts an attempt');
select results_eq(format('select owner, outcome, state from switchboard.todo_history(test.a(), %L)', :'lapsed'), $$ values ('w1', 'lapsed', 'claimed') $$, 'the attempt that lapsed ends in the history');
-- Of up to 16 that are due the oldest todo is taken, whenever its lease ended; of more, the oldest of the 16 that have been due longest
-- (claim_head looks at no more, so that a burst of lapses does not make claims dear).
select test.clear() \g /dev/null
create table test.lapsing (n int, id text);
do $$
begin
    for v_n in 1..40 loop
        insert into test.lapsing values (v_n, test.create());
        perform switchboard.claim(test.a(), (select id from test.lapsing where n = v_n), 'w1', 100 - v_n), test.pass('1 ms');
    end loop;
    perform test.pass('100 s');
end
$$;
create table test.order_taken as select k, test.taken('w' || k) as id from generate_series(1, 40) k;
select is((select array_agg(l.n order by o.k) from test.order_taken o join test.lapsing l using (id) where o.k > 24), (select array_agg(l.n order by l.n) from test.order_taken o join test.lapsing l using (id) where o.k > 24), 'the last 16 lapsed ones: oldest todo first, whenever its lease ended');
select is((select count(distinct id) from test.order_taken), 40::bigint, 'and before those every one once');

-- assignment
select test.clear() \g /dev/null
select test.create('a', 'q', p_assignee => 'ann') as anns \gset
select test.pass('1 s') \g /dev/null
select test.create('a', 'q') as pool \gset
select is(test.taken('w'), :'pool', 'a todo of somebody else is passed by');
select is(test.taken('w'), null, 'and not taken later');
select is(test.taken('ann', '{r}'), null, 'nor by its assignee from another queue');
select is(test.taken('ann'), :'anns', 'its assignee takes it');
select test.pass('300 s') \g /dev/null
select is(test.taken('w', '{q}'), :'pool', 'lapsed: another worker gets its own back');
select is(test.taken('w', '{q}'), null, 'but not what is assigned to somebody else');
select test.conflict(format('select switchboard.claim(test.a(), %L, ''w'')', :'anns'), 'not by id, either');
select is(test.taken('ann', '{q}'), :'anns', 'lapsed: its assignee takes it');
select switchboard.fail(test.a(), :'anns', 'ann'), test.pass('120 s') \g /dev/null
select is(test.taken('w', '{q}'), null, 'due: not for others');
select is(test.taken('ann', '{q}'), :'anns', 'due: its assignee takes it');
select test.clear() \g /dev/null
select test.create('a', 'q') as pool \gset
select test.pass('1 s') \g /dev/null
select test.create('a', 'q', p_assignee => 'ann') as anns \gset
select is(test.taken('ann'), :'pool', 'the assignee takes the older one of the pool first');

-- by id
select test.clear() \g /dev/null
select is((switchboard.claim(test.a(), test.make(s), 'w2')).state, 'claimed', 'claim by id: a ' || s || ' todo') from unnest('{pending,lapsed,due}'::text[]) s;
select test.conflict(format('select switchboard.claim(test.a(), %L, ''w2'')', test.make(s)), 'no claim by id of a ' || s || ' todo') from unnest('{claimed,spent,parked,dead,done}'::text[]) s;
select test.conflict(format('select switchboard.claim(test.a(), %L, ''w1'')', test.make('claimed')), 'nor by its holder');
select test.not_found(format('select switchboard.claim(%L, %L, ''w'')', e, i), format('claim(%s, %s)', n, m)) from test.make('pending') id, lateral (values (test.a(), null, 'A', 'NULL'), (test.a(), '', 'A', 'empty'), (test.a(), 'x', 'A', 'malformed'),
    (test.a(), test.unknown(), 'A', 'unknown'), (test.b(), id, 'B', 'A''s'), (null, id, 'NULL', 'A''s'), ('x', id, 'malformed', 'A''s'), (test.unknown(), id, 'unknown', 'A''s')) v(e, i, n, m);
select is_empty(format('select * from switchboard.%s', c), 'nothing for: ' || c) from unnest(array['claim_next(null, ''w'')', 'claim_next('''', ''w'')', 'claim_next(''x'', ''w'')', 'claim_next(test.unknown(), ''w'')',
    'claim_batch(null, ''w'', 1)', 'claim_batch(''x'', ''w'', 1)', 'claim_batch(test.unknown(), ''w'', 1)']) c;

-- an endpoint that is not active
select test.clear() \g /dev/null
select test.create('a2') as id \gset
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('a2');
select is(test.taken('w', null, 'a2'), null, 'nothing is claimed from an expired endpoint');
select test.conflict(format('select switchboard.claim(test.endpoint(''a2''), %L, ''w'')', :'id'), 'by id: conflict');
select test.not_found($$ select switchboard.claim(test.endpoint('a2'), test.unknown(), 'w') $$, 'an unknown id is not_found all the same');

-- batches
select test.clear() \g /dev/null
select test.line('r', 'q', 'r', 'q', 'inbox') as ids \gset
select is((select array_agg(id::text order by ordinality) from switchboard.claim_batch(test.a(), 'w', 3) with ordinality), (:'ids'::text[])[1:3], 'a batch takes the oldest over all queues, oldest first');
select is((select array_agg(id::text order by ordinality) from switchboard.claim_batch(test.a(), 'w', 10, '{q,r}') with ordinality), (:'ids'::text[])[4:4], 'then what is left of the named queues');
select is((select array_agg(lease_token is not null and owner = 'w') from switchboard.claim_batch(test.a(), 'w', 10)), '{t}'::boolean[], 'with owner and token');
select is_empty($$ select * from switchboard.claim_batch(test.a(), 'w', 10) $$, 'and none from an empty queue');
select test.invalid(format('select * from switchboard.claim_batch(test.a(), ''w'', %s)', l), 'limit', 'fault 7: a limit of ' || l) from unnest('{0,-1,-2147483648}'::int[]) l;
select switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 2500))) \g /dev/null
select is((select count(distinct id) from switchboard.claim_batch(test.a(), 'w', 1000000000)), 1000::bigint, 'fault 7: a limit of 10^9 is clamped to 1000');
select lives_ok($$ select * from switchboard.claim_batch(test.a(), 'w', null) $$, 'fault 7: a limit of NULL is the default');

-- fault 4: no plan makes a batch take more than it was asked for
select test.clear() \g /dev/null
select switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 50))) \g /dev/null
set enable_hashjoin = off; set enable_mergejoin = off;
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 1)), 1::bigint, 'fault 4: a batch of 1 under nested loops');
select is((select count(*) from switchboard.todos where state = 'claimed'), 1::bigint, 'fault 4: exactly one is claimed');
set enable_hashjoin = on; set enable_mergejoin = on; set enable_nestloop = off;
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 7)), 7::bigint, 'fault 4: a batch of 7 without nested loops');
select is((select count(*) from switchboard.todos where state = 'claimed'), 8::bigint, 'fault 4: exactly seven more');
reset enable_nestloop;

-- fault 6: a claim that is cancelled leaves nothing claimed
select test.clear() \g /dev/null
select switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 5000))) \g /dev/null
select test.connect('hasty') \g /dev/null
create table test.hasty as select n, test.dblink_exec('hasty', 'set statement_timeout = ' || n), test.dblink_exec('hasty', format('do $b$ begin perform switchboard.claim_batch(%L, ''hasty'', 200); end $b$', test.a()), false) as status
    from unnest('{1,2,3,4,6,8,12,16,24,32,48,64,96,128,10000}'::int[]) n;
select is((select count(*) from switchboard.todos where state = 'claimed'), (select 200 * count(*) from test.hasty where status = 'DO'), 'fault 6: what a statement_timeout cuts off has claimed nothing');
select ok(bool_or(status = 'DO') and bool_or(status = 'ERROR'), 'fault 6: (some were cut off, some were not)') from test.hasty;

-- fault 3, deferred queues before ready ones: needs admission policies, which are not here yet; the cost of many queues is in plans.sql.
-- fault 14, a slot released twice: there are no slots to count, a claimed row is the lease; the count of claimed rows is read, not kept.

-- attempts end
select test.clear() \g /dev/null
select test.create('a', 'q', p_max_attempts => 3) as id \gset
create table test.lapses as select n, test.taken('w' || n) is not null as claimed, test.pass('301 s') from generate_series(1, 5) n;
select is((select array_agg(claimed order by n) from test.lapses), '{t,t,t,f,f}'::boolean[], 'fault 11: a todo of 3 attempts is claimed 3 times by lapses, then no more');
select ok(test.stored(:'id') @> '{"attempt": 3, "state": "claimed"}', 'fault 11: attempt is 3');
select results_eq($$ select state from switchboard.reap_expired() $$, array['failed'], 'fault 11: the sweep makes it a dead letter');
select test.clear() \g /dev/null
select test.create('a', 'q', p_max_attempts => 3) as id \gset
create table test.releases as select n, test.outcome(format('select state, attempt from switchboard.claim(test.a(), %L, ''w'')', :'id')) as claim, test.outcome(format('select state, attempt from switchboard.release(test.a(), %L, ''w'')', :'id')) as release
    from generate_series(1, 5) n;
select is((select array_agg(claim order by n) from test.releases), '{claimed 1,claimed 2,claimed 3,SB409,SB409}'::text[], 'fault 13: claim and release 5 times with max_attempts 3: three claims');
select is((select array_agg(release order by n) from test.releases), '{pending 1,pending 2,failed 3,SB409,SB409}'::text[], 'fault 13: the third release is a dead letter');

-- fault 65: a todo that surfaces below the low-water mark of a queue that never runs empty
select test.clear(), test.real_time() \g /dev/null
select test.connect('slow') \g /dev/null
select test.there('slow', 'begin') \g /dev/null
select test.there('slow', format($$ do $b$ begin perform switchboard.create_todo(%L, 'q', 'slow'); end $b$ $$, test.a())) \g /dev/null
select switchboard.create_todos(test.a(), (select jsonb_agg('{"queue": "q", "title": "t"}'::jsonb) from generate_series(1, 10))) \g /dev/null
update switchboard.queue_marks set pending_from = (select min(created_at) from switchboard.todos) where endpoint_id::text = test.a() and queue = 'q';
select test.there('slow', 'commit') \g /dev/null
select isnt((select title from switchboard.claim_next(test.a(), 'w', '{q}')), 'slow', 'fault 65: below the mark (else this test shows nothing)');
select switchboard.tick() \g /dev/null
select is((select title from switchboard.claim_next(test.a(), 'w', '{q}')), 'slow', 'fault 65: a create that commits late is claimed after the next sweep');
-- and a claim that is rolled back after the mark has moved over it
select test.there('slow', 'begin') \g /dev/null
select test.there('slow', format($$ do $b$ begin perform switchboard.claim_next(%L, 'slow', array['q']); end $b$ $$, test.a())) \g /dev/null
select id::text as held from switchboard.todos where state = 'pending' order by created_at, id limit 1 \gset
update switchboard.todos set created_at = created_at + interval '1 s' where state = 'pending' and id::text <> :'held';
update switchboard.queue_marks set pending_from = (select created_at + interval '1 us' from switchboard.todos where id::text = :'held') where endpoint_id::text = test.a() and queue = 'q';
select test.there('slow', 'rollback') \g /dev/null
update switchboard.sweeps set last_run_at = 'epoch';
select isnt((select id::text from switchboard.claim_next(test.a(), 'w', '{q}')), :'held', 'fault 65: below the mark (else this test shows nothing)');
select switchboard.tick() \g /dev/null
select is((select id::text from switchboard.claim_next(test.a(), 'w', '{q}')), :'held', 'fault 65: a claim that is rolled back late is claimed after the next sweep');
-- what comes back to pending lowers the mark at once; an empty queue is searched from the start
select test.clear(), test.stop_clock() \g /dev/null
select test.create() as old \gset
select switchboard.claim(test.a(), :'old', 'w'), test.pass('1 s'), test.create() \g /dev/null
update switchboard.queue_marks set pending_from = switchboard.now() where queue = 'q';
select switchboard.release(test.a(), :'old', 'w') \g /dev/null
select is(test.taken('w'), :'old', 'a release below the mark is found at once');
update switchboard.queue_marks set pending_from = 'infinity' where queue = 'q';
select isnt(test.taken('w'), null, 'before a claim says that there is nothing it looks from the start');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
