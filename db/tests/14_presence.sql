-- functions/14_presence: which endpoints have sessions where, and when an agent was last seen.
select no_plan();
select test.stop_clock(), test.set_up() \g /dev/null
select '0190a000-0000-7000-8000-000000000001' as one, '0190a000-0000-7000-8000-000000000002' as two \gset
create function test.say(p_gateway text, p_sessions jsonb, p_endpoint text default 'a', p_seen boolean default false) returns boolean language sql as $$
    select switchboard.note_presence(p_gateway::uuid, jsonb_build_object(test.endpoint(p_endpoint), p_sessions), case when p_seen then array[test.endpoint(p_endpoint)] else '{}' end)
$$;
-- The sessions of an endpoint: '<client> <seconds since> <stream>', in order.
create function test.present(p_endpoint text default 'a') returns text[] language sql as $$
    select coalesce(array_agg(concat_ws(' ', coalesce(s.client, '-'), extract(epoch from switchboard.now() - s.since)::int, s.stream) order by s.n), '{}')
    from switchboard.sessions_of(test.endpoint(p_endpoint)::uuid, switchboard.now()) with ordinality s (client, since, stream, n)
$$;
create function test.streams(p_endpoint text default 'a') returns integer language sql as $$ select switchboard.streams_of(test.endpoint(p_endpoint)::uuid, switchboard.now()) $$;
create function test.seen(p_endpoint text default 'a') returns interval language sql as $$ select switchboard.now() - switchboard.last_seen(test.endpoint(p_endpoint)::uuid) $$;

-- what a process says
select is(test.present(), '{}', 'nobody is there');
select is(test.streams(), null, 'nobody listens');
select is(test.say(:'one', '[{"client": "claude 2", "age": 5, "stream": true}, {"client": null, "age": 2.4, "stream": false}]'), false, 'a process that is new is not known');
select is(test.present(), '{claude 2 5 t,- 2 f}', 'its sessions, the oldest first');
select is(test.say(:'one', '[{"client": "claude 2", "age": 6, "stream": true}]', 'a2'), true, 'the next time it is known');
select is(test.present() || test.present('a2'), '{claude 2 5 t,- 2 f,claude 2 6 t}', 'of which it says nothing stays');
select is(test.say(:'two', '[{"client": "other", "age": 60, "stream": true}]'), false, 'a second process');
select is(test.present(), '{other 60 t,claude 2 5 t,- 2 f}', 'sessions of both');
select is(test.streams(), 2, 'those that listen, of both');
select is(test.present('b'), '{}', 'and of no other endpoint');
select is(test.say(:'one', '[{"client": null, "age": 0}]'), true, 'what it says replaces what it said');
select is(test.present(), '{other 60 t,- 0 f}', 'a session without a word on its stream has none');
select is(test.say(:'one', '[]'), true, 'no session is left');
select is(test.present(), '{other 60 t}', 'then nothing is kept');
select is(test.say(:'one', jsonb_build_array(jsonb_build_object('client', E'a\nb' || chr(8238) || repeat('x', 100), 'age', 1, 'stream', false))), true, 'a client names itself');
select is((select client from switchboard.sessions_of(test.a()::uuid, switchboard.now()) order by since desc limit 1), 'a b ' || repeat('x', 76), 'text of others: one line, cut, no marks of direction');
select is(switchboard.note_presence(:'one', jsonb_build_object(test.unknown(), '[{"age": 1}]'::jsonb, 'x', '[]'::jsonb), array[test.unknown(), 'x', null]), true, 'what is no endpoint is passed over');
select is((select count(*) from switchboard.endpoint_presence), 3::bigint, 'and stored nowhere');

-- a process that died
select test.pass('44 s') \g /dev/null
select is(cardinality(test.present()), 2, 'for 45 seconds silence means nothing');
select is(test.say(:'two', '[]', 'b'), true, 'one says that it runs');
select test.pass('2 s') \g /dev/null
select is(test.present(), '{other 106 t}', 'the sessions of the other do not count any more');
select is(test.present('a2'), '{}', 'anywhere');
select is(switchboard.settle_presence(), 0::bigint, 'they are kept, in case it comes back');
select test.pass('5 min') \g /dev/null
select is(test.say(:'two', '[]', 'b'), true, 'one runs on');
select is(switchboard.settle_presence(), 1::bigint, 'the other is forgotten');
select is((select array_agg(gateway_id::text) from switchboard.endpoint_presence), array[:'two'], 'with its sessions');
select is(test.say(:'one', '[]'), false, 'and is told so when it comes back: it has to say everything again');
select isnt(switchboard.tick() -> 'settle_marks', null, 'a tick sweeps them');
select switchboard.end_presence(:'two') \g /dev/null
select is(test.present(), '{}', 'a process that ends takes its sessions along');
select lives_ok(format('select switchboard.end_presence(%L)', :'two'), 'also twice');

-- when an agent was last seen
select test.at('2026-03-02 12:00:40Z') \g /dev/null
select is(test.seen(), null, 'never');
select test.say(:'one', '[]', 'a', true) \g /dev/null
select is(test.seen(), '40 s', 'in a session: to the minute');
select is(test.seen('a2'), null, 'that one alone');
select xmin as written from switchboard.endpoint_seen where endpoint_id::text = test.a() \gset
select test.pass('19 s'), test.say(:'one', '[]', 'a', true) \g /dev/null
select is(xmin::text, :'written', 'within a minute it is written once') from switchboard.endpoint_seen where endpoint_id::text = test.a();
select test.pass('41 s'), test.create('a'), test.pass('7 s') \g /dev/null
select id from switchboard.claim_next(test.a(), 'agent:test-a') \gset
select is(test.seen(), '0 s', 'who comes by SQL: by a claim');
select test.pass('60 s') \g /dev/null
select is(test.seen(), '60 s', 'as long as nothing else is seen of it');
select switchboard.heartbeat(test.a(), :'id', 'agent:test-a') \g /dev/null
select is(test.seen(), '0 s', 'by a heartbeat');
select test.pass('5 s'), switchboard.complete(test.a(), :'id', 'agent:test-a') \g /dev/null
select test.settle(), switchboard.fold_attempts() \g /dev/null
select test.pass('10 s') \g /dev/null
select is(test.seen(), '10 s', 'by the end of an attempt, once it is folded');
select test.create('a2') as other \gset
select switchboard.claim_any_endpoint(:'other', 60, test.human('a')), test.pass('1 s') \g /dev/null
select is(test.seen('a2'), null, 'what an operator holds is no sign of the agent');
select switchboard.complete_any_endpoint(:'other', null, test.human('a')) \g /dev/null
select test.settle(), switchboard.fold_attempts() \g /dev/null
select is(test.seen('a2'), null, 'nor what an operator ends');
select test.make('claimed', 'b'), test.pass('61 s') \g /dev/null
select is(test.seen('b'), '61 s', 'a lease that lapses');
select switchboard.reap_expired() \g /dev/null
select test.settle(), switchboard.fold_attempts() \g /dev/null
select is(test.seen('b'), null, 'is none either');

-- a gateway never waits for a sweep
select test.make('done', 'b') \g /dev/null
select test.settle(), test.connect('sweep'), test.there('sweep', 'begin') \g /dev/null
select is(test.there('sweep', 'do $d$ begin perform switchboard.fold_attempts(), switchboard.settle_presence(); end $d$'), 'DO', 'a tick that is under way');
set lock_timeout = '2s';
select lives_ok($$ select test.say('0190a000-0000-7000-8000-000000000003', '[{"age": 1, "stream": true}]', 'b', true) $$, 'a process says what it has meanwhile');
select test.there('sweep', 'commit') \g /dev/null
select is((select array_agg(via order by via) from switchboard.endpoint_seen where endpoint_id::text = test.b()), '{attempt,session}', 'both have noted what they saw');

select * from finish();
