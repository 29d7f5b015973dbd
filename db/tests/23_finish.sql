-- functions/23_finish: heartbeat, complete, fail, release, retry, complete_batch.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready') \g /dev/null

-- the backoff
select is(switchboard.backoff(n), e, 'the backoff after attempt ' || n) from (values (1, interval '30 s'), (2, '1 min'), (3, '2 min'), (4, '4 min'), (5, '8 min'), (6, '15 min'), (7, '15 min'), (100, '15 min'), (2147483647, '15 min'), (0, '30 s'), (-5, '30 s')) v(n, e);

-- heartbeat
select test.make('claimed') as id \gset
select test.pass('10 s') \g /dev/null
select is((switchboard.heartbeat(test.a(), :'id', 'w1')).lease_expires_at, switchboard.now() + interval '60 s', 'a heartbeat without a value renews for what the claim asked');
select is((switchboard.heartbeat(test.a(), :'id', 'w1', s)).lease_expires_at, switchboard.now() + make_interval(secs => e), 'a heartbeat for ' || s) from (values (1, 1), (600, 600), (86400, 86400), (86401, 86400), (2147483647, 86400)) v(s, e);
select is((switchboard.heartbeat(test.a(), :'id', 'w1', 5)).lease_expires_at, switchboard.now() + interval '5 s', 'it may also shorten the lease');
select ok(test.stored(:'id') @> '{"attempt": 1, "state": "claimed", "owner": "w1"}', 'and counts no attempt');
select test.invalid(format('select switchboard.heartbeat(test.a(), %L, ''w1'', %s)', :'id', s), 'lease_ttl_seconds', 'no heartbeat for ' || s) from unnest('{0,-1}'::int[]) s;
select test.pass('1 h') \g /dev/null
select is(test.situation(:'id'), 'lapsed', 'the lease is over');
select is((switchboard.heartbeat(test.a(), :'id', 'w1')).lease_expires_at, switchboard.now() + interval '60 s', 'a holder whose lapsed lease nobody took may heartbeat');

-- complete
select test.make('claimed') as id \gset
select test.pass('10 s') \g /dev/null
select ok(to_jsonb(t) @> '{"state": "done", "owner": "w1", "result": {"r": 1}, "lease_expires_at": null, "next_retry_at": null, "attempt": 1}' and t.completed_at = switchboard.now() and t.updated_at = switchboard.now(), 'complete: done, with its result')
    from switchboard.complete(test.a(), :'id', 'w1', '{"r": 1}') t;
select is(test.stored(:'id') ->> 'lease_token', null, 'the token is gone');
select is((switchboard.complete(test.a(), test.make('claimed'), 'w1', r)).result, r, 'a result: ' || coalesce(r::text, 'none')) from unnest(array[null, '"x"', '0', 'false', '[]']::jsonb[]) r;

-- fail, and the backoff of each attempt
select test.create('a', 'q', p_max_attempts => 7) as id \gset
create table test.fails as select n, t.state, t.next_retry_at - switchboard.now() as wait, t.dead_letter, t.completed_at, test.pass('1 h') from generate_series(1, 7) n,
    lateral switchboard.claim(test.a(), :'id', 'w' || n) c, lateral switchboard.fail(test.a(), c.id::text, 'w' || n, to_jsonb('try ' || n)) t;
select results_eq('select wait, dead_letter, completed_at is not null from test.fails order by n', $$ values (interval '30 s', false, false), ('1 min', false, false), ('2 min', false, false), ('4 min', false, false), ('8 min', false, false),
    ('15 min', false, false), (null, true, true) $$, 'fail parks with a growing backoff, and dead-letters at the cap');
select ok(test.stored(:'id') @> '{"owner": "w7", "result": "try 7", "lease_expires_at": null}', 'fail keeps the owner and the result given');

-- release
select test.make('claimed') as id \gset
select test.heard('todo_ready') \g /dev/null
select ok(to_jsonb(t) @> '{"state": "pending", "owner": null, "lease_expires_at": null, "attempt": 1, "completed_at": null}', 'release: pending below the cap, the attempt is spent') from switchboard.release(test.a(), :'id', 'w1') t;
select is(test.heard('todo_ready'), array[test.a() || ':q'], 'and it rings');
select test.create(p_max_attempts => 1) as id \gset
select switchboard.claim(test.a(), :'id', 'w1'), test.heard('todo_ready') \g /dev/null
select ok(t.state = 'failed' and t.dead_letter and t.completed_at is not null, 'release: a dead letter at the cap') from switchboard.release(test.a(), :'id', 'w1') t;
select is(test.heard('todo_ready'), '{}', 'which rings nobody');

-- retry
select test.make('dead') as dead, test.make('parked') as parked, test.make('due') as due \gset
update switchboard.todos set result = '"r"', ring_attempts = 3, last_ringed_at = switchboard.now() where id::text = :'dead';
select test.heard('todo_ready') \g /dev/null
select ok(to_jsonb(t) @> '{"state": "pending", "attempt": 0, "owner": null, "result": null, "next_retry_at": null, "completed_at": null, "claimed_at": null, "lease_expires_at": null, "ring_attempts": 0, "last_ringed_at": null}',
    'retry: pending with a fresh budget; result, owner and times are cleared') from switchboard.retry(test.a(), :'dead') t;
select is(test.heard('todo_ready'), array[test.a() || ':q'], 'and it rings');
select is((switchboard.retry(test.a(), id)).state, 'pending', 'retry of a ' || n || ' todo') from (values (:'parked', 'parked'), (:'due', 'due')) v(id, n);
select test.conflict(format('select switchboard.retry(test.a(), %L)', test.make(s)), 'no retry of a ' || s || ' todo') from unnest('{pending,claimed,lapsed,spent,done}'::text[]) s;
select test.make('dead', p_endpoint => 'a2') as id \gset
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('a2');
select test.conflict(format('select switchboard.retry(test.endpoint(''a2''), %L)', :'id'), 'no retry on an expired endpoint');
-- fault 21
select test.make('dead', p_key => 'k') as a \gset
select test.create(p_key => 'k') as b \gset
select test.refused(format('select switchboard.retry(test.a(), %L)', :'a'), 'SB409', 'fault 21: A(k) dead, B(k) created, retry(A): conflict', '{"field": "idempotency_key"}');
select is(test.situation(id), s, 'fault 21: ' || n || ' is left as it was') from (values (:'a', 'dead', 'A'), (:'b', 'pending', 'B')) v(id, s, n);
select switchboard.claim(test.a(), :'b', 'w'), switchboard.complete(test.a(), :'b', 'w') \g /dev/null
select is((switchboard.retry(test.a(), :'a')).state, 'pending', 'fault 21: when B has ended, A can be retried');

-- faults 8 and 9: who held a lease that lapsed ends nothing of who holds it now
select test.make('lapsed') as id \gset
select lease_token as token from switchboard.claim(test.a(), :'id', 'w2') \gset
select test.stored(:'id') as before \gset
select test.conflict(format('select switchboard.%s(test.a(), %L, ''w1'')', f, :'id'), format('fault %s: %s by the former holder', case f when 'complete' then '8' else '9' end, f)) from unnest('{complete,fail,release,heartbeat}'::text[]) f;
select is(test.stored(:'id'), :'before'::jsonb, 'fault 8: the present holder''s lease is untouched');

-- lease tokens: two sessions of one owner
select test.conflict(format('select switchboard.%s(test.a(), %L, ''w2'', p_lease_token => %L)', f, :'id', t), format('%s with the token %L', f, left(t, 3)))
    from unnest('{heartbeat,complete,fail,release}'::text[]) f, unnest(array['', 'x', repeat('A', 12), repeat('A', 1000), ' ' || :'token']) t;
select is((switchboard.heartbeat(test.a(), :'id', 'w2', p_lease_token => :'token')).state, 'claimed', 'with its own token');
select test.conflict(format('select switchboard.complete(test.a(), %L, ''w1'', p_lease_token => %L)', :'id', :'token'), 'the token alone is not enough: the owner counts, too');
select is((switchboard.heartbeat(test.a(), :'id', 'w2', p_lease_token => null)).state, 'claimed', 'a NULL token is not tested');
select is((switchboard.complete(test.a(), :'id', 'w2', p_lease_token => :'token')).state, 'done', 'and completes');

-- who may: the holder of a claimed todo, lapsed or not, and nobody else, never
select test.conflict(format('select switchboard.%s(test.a(), %L, ''w1'')', f, test.make(s)), format('no %s of a %s todo', f, s)) from unnest('{heartbeat,complete,fail,release}'::text[]) f, unnest('{pending,parked,due,dead,done}'::text[]) s;
select is(test.outcome(format('select state from switchboard.%s(test.a(), %L, ''w1'')', f, test.make(s))), case f when 'complete' then 'done' when 'heartbeat' then 'claimed' when 'release' then case s when 'spent' then 'failed' else 'pending' end else 'failed' end,
    format('%s by the holder of a %s todo', f, s)) from unnest('{heartbeat,complete,fail,release}'::text[]) f, unnest('{claimed,lapsed,spent}'::text[]) s;
select test.invalid(format('select switchboard.%s(test.a(), test.unknown(), %L)', f, o), 'owner', format('%s by the owner %s', f, coalesce(quote_literal(left(o, 3)), 'NULL'))) from unnest('{heartbeat,complete,fail,release}'::text[]) f, unnest(array[null, '', repeat('x', 129)]) o;
select test.not_found(format('select switchboard.%s(%L, %L%s)', f, e, i, case f when 'retry' then '' else ', ''w1''' end), format('%s of %s on %s', f, m, n)) from unnest('{heartbeat,complete,fail,release,retry}'::text[]) f, test.make('claimed') id,
    lateral (values (test.a(), null, 'A', 'NULL'), (test.a(), 'x', 'A', 'a malformed id'), (test.a(), test.unknown(), 'A', 'an unknown id'), (test.b(), id, 'B', 'A''s'), (null, id, 'NULL', 'A''s'), ('x', id, 'a malformed endpoint', 'A''s'), (test.unknown(), id, 'an unknown endpoint', 'A''s')) v(e, i, n, m);
select test.make('claimed') as id \gset
select test.invalid(format('select switchboard.%s(test.a(), %L, ''w1'', %s)', f, :'id', r), 'result', format('%s with a result %s', f, n)) from unnest('{complete,fail}'::text[]) f,
    (values ('''null''', 'of JSON null'), ('to_jsonb(repeat(''x'', 262143))', 'over 256 KiB'), ('(repeat(''['', 65) || repeat('']'', 65))::jsonb', 'too deep'), ('''1e131000''', 'that renders long')) v(r, n);
select is(test.situation(:'id'), 'claimed', 'a refused result changes nothing');

-- history
create table test.ends as select f, e, test.make('claimed') as id, c from (values
    ('complete', 'done done it went well', 'complete(test.a(), %L, ''w1'', ''{"summary": "it went well"}'')'), ('fail', 'failed failed no', 'fail(test.a(), %L, ''w1'', ''"no"'')'),
    ('release', 'released pending ', 'release(test.a(), %L, ''w1'')'), ('fail', 'failed failed ' || repeat('x', 200), 'fail(test.a(), %L, ''w1'', to_jsonb(repeat(''x'', 5000)))')) v(f, e, c);
select test.outcome(format('select switchboard.' || c, id)) from test.ends \g /dev/null
select is((select outcome || ' ' || state || ' ' || coalesce(summary, '') from switchboard.todo_history(test.a(), id)), e, format('the history of a %s: %s', f, left(e, 30))) from test.ends;
select ok(bool_and(owner = 'w1'), 'the owner of an attempt is who held it') from switchboard.todo_attempts a where a.outcome = 'released';

-- batches
create table test.mine as select n, t.id::text as id, t.lease_token from generate_series(1, 5) n, lateral test.create('a', 'r', 'mine ' || n) i, lateral switchboard.claim(test.a(), i, 'w1') t;
select test.make('claimed', 'b') as foreign_id, test.make('pending') as pending, test.make('done') as done \gset
select switchboard.claim(test.a(), test.create('a', 'r'), 'w2') is not null \g /dev/null
create table test.batch as select ordinality as n, id, outcome from switchboard.complete_batch(test.a(), 'w1',
    (select array[m5.id, null, 'x', test.unknown(), :'foreign_id', :'pending', :'done', m1.id, m1.id] from test.mine m5, test.mine m1 where m5.n = 5 and m1.n = 1)) with ordinality;
select is((select array_agg(outcome order by n) from test.batch), '{done,not_found,not_found,not_found,not_found,conflict,conflict,done,conflict}'::text[], 'complete_batch: an outcome each, in order; an id named twice is done once');
select is((select array_agg(id order by n) from test.batch where n in (2, 3)), array[null, 'x'], 'with the ids as they were given');
select is((select state || outcome from switchboard.todo_history(test.a(), (select id from test.mine where n = 5))), 'donedone', 'and a history row');
select is((select array_agg(outcome order by ordinality) from switchboard.complete_batch(test.a(), 'w1', (select array_agg(id order by n) from test.mine where n in (2, 3)), (select array['x', lease_token] from test.mine where n = 3)) with ordinality), '{conflict,done}'::text[], 'tokens are tested one by one');
select is((select array_agg(outcome) from switchboard.complete_batch(test.a(), 'w1', (select array_agg(id) from test.mine where n = 2), '{NULL}')), '{conflict}'::text[], 'a NULL token in an array of tokens is a wrong one');
select test.invalid($$ select * from switchboard.complete_batch(test.a(), 'w1', '{x,y}', '{x}') $$, 'lease_tokens', 'fewer tokens than ids');
select test.invalid($$ select * from switchboard.complete_batch(test.a(), '', '{x}') $$, 'owner', 'an empty owner');
select is_empty($$ select * from switchboard.complete_batch(test.a(), 'w1', '{}') $$, 'no ids, no rows');
select is_empty($$ select * from switchboard.complete_batch(test.a(), 'w1', null) $$, 'NULL, no rows');
select is((select array_agg(outcome) from switchboard.complete_batch(e, 'w1', (select array_agg(id) from test.mine where n in (2, 4)))), '{not_found,not_found}'::text[], 'all not_found on ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, 'x', test.unknown(), test.b()]) e;

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
