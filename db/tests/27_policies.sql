-- functions/27_policies: who sets, clears and reads a budget. What it does to claims is in 26_admission.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
create function test.set(p_policy jsonb, p_queue text default 'q', p_endpoint text default test.a(), p_human text default 'a') returns jsonb language sql as $$
    select switchboard.set_admission_policy(p_endpoint, p_queue, p_policy, test.human(p_human))
$$;
create function test.set_sql(p_policy text) returns text language sql as $$ select format('select test.set(%L::jsonb)', p_policy) $$;

-- what is set is what is stored, in the zone's own spelling
select is(test.set('{"max_in_flight": 3, "max_claims_per_window": 100, "window": {"period": "day", "tz": "america/LOS_angeles", "start": "06:30"}}')
    - '{created_at,updated_at,window_resets_at,window_started_at}'::text[],
    '{"scope": "endpoint:test-a", "queue": "q", "status": "open", "used": 0, "remaining": 100, "max_claims_per_window": 100, "in_flight": 0, "max_in_flight": 3, "pending": 0, "charged": 0, "updated_by": "Ada",
      "window_resets_local": "Mon 2026-03-02 06:30",
      "policy": {"max_in_flight": 3, "max_claims_per_window": 100, "window": {"period": "day", "tz": "America/Los_Angeles", "start": "06:30"}}}', 'a budget, and how it stands');
select is((select window_tz from switchboard.admission_policies), 'America/Los_Angeles', 'the canonical spelling is stored');
select is(test.set('{"max_claims_per_window": 5, "window": {"period": "week", "tz": "UTC"}}') -> 'policy' -> 'window', '{"period": "week", "tz": "UTC", "start": "00:00", "weekday": "Mon"}', 'left out: from midnight, on Monday');
select is((select max_in_flight from switchboard.admission_policies), null, 'a full replace: what is left out is no limit');
select is(test.set('{"max_in_flight": 10000, "window": null, "max_claims_per_window": null}') -> 'policy', '{"max_in_flight": 10000}', 'null is left out');
select is((select count(*) from switchboard.admission_policies), 1::bigint, 'one policy a queue');
-- zones whose name is an abbreviation, too: in summer they are an hour ahead of that
select is(array(select test.set(jsonb_build_object('max_claims_per_window', 5, 'window', jsonb_build_object('period', 'week', 'tz', z, 'start', '06:30', 'weekday', 'Wed'))) ->> 'window_resets_local'
    from unnest('{CET,EET,WET,MET,EST5EDT,Europe/London,Australia/Lord_Howe,Pacific/Kiritimati}'::text[]) z, test.at('2026-07-01 12:00+00')), array_fill('Wed 2026-07-08 06:30'::text, array[8]), 'when it resets, on the clock of its zone');
select test.at('2026-03-02 12:00+00'), test.set('{"max_in_flight": 10000}') \g /dev/null

-- fields
select test.invalid(test.set_sql(p), f, 'invalid: ' || p) from (values
    ('[]', 'policy'), ('null', 'policy'), ('{}', 'policy'), ('{"max_in_flight": null}', 'policy'), ('{"limit": 1}', 'policy.limit'), ('{"max_in_flight": 1, "tz": "UTC"}', 'policy.tz'),
    ('{"max_in_flight": -1}', 'policy.max_in_flight'), ('{"max_in_flight": 10001}', 'policy.max_in_flight'), ('{"max_in_flight": 1.5}', 'policy.max_in_flight'), ('{"max_in_flight": "3"}', 'policy.max_in_flight'),
    ('{"max_in_flight": true}', 'policy.max_in_flight'), ('{"max_in_flight": 99999999999999999999}', 'policy.max_in_flight'), ('{"max_in_flight": 1e131000}', 'policy.max_in_flight'), ('{"max_in_flight": 1e-16000}', 'policy.max_in_flight'),
    ('{"max_in_flight": [3]}', 'policy.max_in_flight'), ('{"max_in_flight": 1, "": null}', 'policy.'), ('{"max_claims_per_window": 1, "window": [1]}', 'policy.window'), ('{"max_claims_per_window": 1, "window": {}}', 'policy.window.period'),
    ('{"max_claims_per_window": 1000001, "window": {"period": "day", "tz": "UTC"}}', 'policy.max_claims_per_window'),
    ('{"max_claims_per_window": 1}', 'policy.window'), ('{"max_in_flight": 1, "window": {"period": "day", "tz": "UTC"}}', 'policy.window'),
    ('{"max_claims_per_window": 1, "window": "day"}', 'policy.window'), ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC", "zone": 1}}', 'policy.window.zone'),
    ('{"max_claims_per_window": 1, "window": {"tz": "UTC"}}', 'policy.window.period'), ('{"max_claims_per_window": 1, "window": {"period": "month", "tz": "UTC"}}', 'policy.window.period'),
    ('{"max_claims_per_window": 1, "window": {"period": "day"}}', 'policy.window.tz'), ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "Mars/Olympus"}}', 'policy.window.tz'),
    ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "PDT"}}', 'policy.window.tz'), ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "EST5EDT4,M3.2.0"}}', 'policy.window.tz'),
    ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": ""}}', 'policy.window.tz'), ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": 5}}', 'policy.window.tz'),
    ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC", "start": "24:00"}}', 'policy.window.start'), ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC", "start": "6:00"}}', 'policy.window.start'),
    ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC", "start": "06:00\n"}}', 'policy.window.start'),
    ('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC", "weekday": "Mon"}}', 'policy.window.weekday'), ('{"max_claims_per_window": 1, "window": {"period": "week", "tz": "UTC", "weekday": "Monday"}}', 'policy.window.weekday')) v (p, f);
select is(test.set(p::jsonb) -> 'max_in_flight', r::jsonb, 'a number is a number, however it is written: ' || p) from (values ('{"max_in_flight": 3.0}', '3'), ('{"max_in_flight": -0.0}', '0'), ('{"max_in_flight": 1e3}', '1000')) v (p, r);
select test.refused(test.set_sql(jsonb_build_object('max_in_flight', 1, 'x', repeat('x', 17000))::text), 'SB413', 'over 16 KiB is too large');
select test.invalid(test.set_sql('{"max_in_flight": 1, "x": [' || repeat('1e131000,', 1000) || '1]}'), 'policy.x', 'and nothing is rendered to find out: this one would be 131 MB');
select test.invalid($$ select test.set('{"max_in_flight": 1}', null) $$, 'queue', 'no queue');
select test.forbidden($$ select test.set('{"max_in_flight": 1}', 'other') $$, 'a queue outside the grant');
select test.forbidden($$ select test.set('{"max_in_flight": 1}', 'quarantine') $$, 'quarantine');
select test.invalid($$ select test.set('{"max_in_flight": 1}', 'Q') $$, 'queue', 'a malformed queue');

-- whose
select is(array(select test.outcome(format('select test.set(''{"max_in_flight": 1}'', ''q'', %L, %L)', e, h)) from (values (test.unknown(), 'a'), ('x', 'a'), (null, 'a'), (test.b(), 'a'), (test.a(), 'b')) v (e, h)),
    array_fill('SB404'::text, array[5]), 'unknown, malformed, none, foreign endpoint, foreign human: not_found');
select is(test.error_of(format('select test.set(''{"max_in_flight": 1}'', ''q'', %L)', test.b())), test.error_of(format('select test.set(''{"max_in_flight": 1}'', ''q'', %L)', test.unknown())), 'foreign and unknown are the same to the letter');
select test.not_found(format('select switchboard.clear_admission_policy(%L, ''r'', %L)', test.a(), test.human('a')), 'clearing what is not there');
select test.not_found(format('select switchboard.clear_admission_policy(%L, ''q'', %L)', test.a(), test.human('b')), 'clearing what is somebody else''s');
select is(array(select test.outcome(format('select switchboard.%s(%L, ''q'', %L)', f, s, test.human('a'))) from unnest('{get_admission,delete_admission}'::text[]) f, unnest(array['endpoint:test-b', 'endpoint:nobody', 'endpoint:' || test.b(), 'team:1', 'test-a', '', null]) s),
    array_fill('SB404'::text, array[14]), 'foreign and unknown scopes are one 404');
select is(switchboard.get_admission('endpoint:test-a', 'r', test.human('a')), '{"scope": "endpoint:test-a", "queue": "r", "policy": null, "windows": [], "audit": []}', 'an own scope without a budget');
select is(switchboard.get_admission('endpoint:' || test.a(), 'q', test.human('a')) ->> 'status', 'open', 'a scope by id');
select switchboard.vend_endpoint(test.human('b'), test.a(), '{q}') \g /dev/null
select is(switchboard.get_admission('endpoint:' || test.a(), 'q', test.human('a')) ->> 'scope', 'endpoint:test-a', 'a foreign slug that is its id hides nothing');
select is(switchboard.get_admission('endpoint:' || test.a(), 'q') ->> 'scope', 'endpoint:' || test.a(), 'an operator at a prompt, who sees both, gets the slug');
select test.not_found(format('select switchboard.get_admission(''endpoint:test-a'', %L, %L)', q, test.human('a')), 'no queue at all: ' || coalesce(q, 'NULL')) from unnest('{Q,"",NULL}'::text[]) q;
select is(jsonb_array_length(switchboard.list_admission(test.human(h))), n, h || ' sees ' || n) from (values ('a', 1), ('b', 0)) v (h, n);

-- the audit: who, what before, what after; it outlives the budget
truncate switchboard.admission_policy_audit;
select test.pass('1 h'), test.set('{"max_in_flight": 2}'), test.pass('1 s'), test.set('{"max_in_flight": 2}'), test.pass('1 s') \g /dev/null
select is((select count(*) from switchboard.admission_policy_audit), 1::bigint, 'setting what is set is no change');
select is((select updated_at from switchboard.admission_policies), switchboard.now() - interval '2 s', 'nor does it touch the policy; a change does');
select switchboard.clear_admission_policy(test.a(), 'q', test.human('a')), test.pass('1 s'), test.set('{"max_in_flight": 4}') \g /dev/null
select is((select jsonb_agg(jsonb_build_array(action, before, after) order by id) from switchboard.admission_policy_audit),
    '[["update", {"max_in_flight": 1000}, {"max_in_flight": 2}], ["delete", {"max_in_flight": 2}, null], ["create", null, {"max_in_flight": 4}]]', 'each change, before and after');
select is((select count(distinct policy_id) from switchboard.admission_policy_audit), 2::bigint, 'a budget that is set again is another one');
select is((select count(*) from switchboard.admission_policy_audit where actor_human_id = test.human('a') and actor_endpoint_id is null), 3::bigint, 'the accountable human');
select is(switchboard.get_admission('endpoint:test-a', 'q', test.human('a')) -> 'audit' -> 0 ->> 'human', 'Ada', 'the newest entry first, with a name');

select test.set(jsonb_build_object('max_in_flight', n)) from generate_series(100, 124) n \g /dev/null
select is(switchboard.get_admission('endpoint:test-a', 'q', test.human('a')) -> 'audit' -> 0 #>> '{after,max_in_flight}', '124', 'also of many at one instant');
select is(jsonb_array_length(switchboard.get_admission('endpoint:test-a', 'q', test.human('a')) -> 'audit'), 20, 'the tail of it');
select switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 4}') \g /dev/null
select is((select jsonb_build_array(actor_human_id = test.human('a'), actor_endpoint_id) from switchboard.admission_policy_audit order by id desc limit 1), '[true, null]', 'an operator at a prompt acts for the owner');

-- agents: only by name, and the endpoint is noted
select test.vend('agent', test.human('a'), '{q,r}', '{claim_next,set_admission_policy,clear_admission_policy}') \g /dev/null
select is(test.call('set_admission_policy', '{"queue": "q", "policy": {"max_in_flight": 1}}', 'agent') ->> 'status', 'open', 'an agent that may');
select is((select jsonb_build_array(actor_human_id = test.human('a'), actor_endpoint_id::text = test.endpoint('agent')) from switchboard.admission_policy_audit order by id desc limit 1), '[true, true]', 'its endpoint, and its human');
select is(test.call('set_admission_policy', '{"queue": "q", "policy": {"max_in_flight": 1}}', 'b') -> 'error' ->> 'code', 'unknown_tool', 'one that may not');
select is(test.call('admission_status', '{}', 'agent') -> 'queues' -> 0 ->> 'max_in_flight', '1', 'admission_status comes with claim_next');
select is(test.call('admission_status', '{"queue": "zz"}', 'agent') -> 'error' ->> 'code', 'forbidden', 'of granted queues');
select is(test.call('set_admission_policy', '{"queue": "q", "policy": {"x": 1}}', 'agent') -> 'error' ->> 'field', 'policy.x', 'the field is named');
select is(test.call('set_admission_policy', '{"queue": "q", "policy": 5}', 'agent') -> 'error' ->> 'field', 'policy', 'no object');
-- claims over MCP: what is left, and what waits
select test.create('agent', 'q'), test.create('agent', 'q') \g /dev/null
select is(test.call('claim_next', '{"queues": ["r"]}', 'agent') ? 'admission', false, 'a claim where there is no budget says nothing of it') from test.create('agent', 'r');
select is(jsonb_build_array(c -> 'admission', c #> '{todo,admission}', c -> 'empty'), '[{"in_flight": 1, "max_in_flight": 1}, null, false]', 'a claim says what is left, beside the todo') from test.call('claim_next', '{}', 'agent') c;
select is(test.call('claim_next', '{}', 'agent') #- '{deferred,0,next_eligible_at}', '{"empty": true, "deferred": [{"queue": "q", "reason": "in_flight_full", "pending": 1, "exact": false}]}', 'an empty answer says what waits');
select is(test.call('clear_admission_policy', '{"queue": "q"}', 'agent'), '{"queue": "q", "cleared": true}', 'an agent clears');
select is(test.call('clear_admission_policy', '{"queue": "q"}', 'agent') -> 'error' ->> 'code', 'not_found', 'once');
select is(test.call('claim_next', '{}', 'agent') ->> 'empty', 'false', 'and claims on');
select is((select actor_endpoint_id::text from switchboard.admission_policy_audit where action = 'delete' order by id desc limit 1), test.endpoint('agent'), 'its endpoint is noted there, too');
select test.set('{"max_in_flight": 0}', 'r', test.endpoint('agent')), test.set('{"max_in_flight": 0}', 'q', test.endpoint('agent')), test.create('agent', 'q'), test.create('agent', 'r') \g /dev/null
select is(array(select d ->> 'queue' from jsonb_array_elements(test.call('claim_next', a, 'agent') -> 'deferred') d), w::text[], 'of the queues it asked for: ' || a::text) from (values ('{"queues": ["r"]}'::jsonb, '{r}'), ('{"queues": []}', '{}'), ('{}', '{q,r}')) v (a, w);
select is(array(select s ->> 'queue' from jsonb_array_elements(test.call('admission_status', '{"queue": "r"}', 'agent') -> 'queues') s), '{r}', 'one status');
select switchboard.clear_admission_policy(test.endpoint('agent'), q) from unnest('{q,r}'::text[]) q \g /dev/null
-- a refused claim by id over MCP is counted
select test.vend('agent2', test.human('a'), '{q}', '{claim,list_todos,get_todo}') \g /dev/null
select test.set('{"max_in_flight": 0}', 'q', test.endpoint('agent2')), test.create('agent2', 'q') \g /dev/null
truncate switchboard.admission_refusals;
select is((test.call('claim', jsonb_build_object('id', (select id from switchboard.todos where endpoint_id::text = test.endpoint('agent2'))), 'agent2') -> 'error') - 'message'::text, '{"code": "deferred", "queue": "q", "reason": "paused", "exact": false}', 'deferred, with its reason');
select is((select count(*) from switchboard.admission_refusals where reason = 'paused'), 1::bigint, 'is counted');
select is(test.call('list_todos', '{"state": "pending"}', 'agent2') -> 'todos' -> 0 -> 'admission', '{"status": "paused", "exact": false}', 'a list says why it waits');
-- bound logins are their endpoint
select test.login('worker', 'switchboard_worker') as worker \gset
select switchboard.bind_login(test.endpoint('agent'), :'worker') \g /dev/null
select is(test.as_login(:'worker', 'select switchboard.set_admission_policy(null, ''r'', ''{"max_in_flight": 2}'') ->> ''status'' as s') -> 0 ->> 's', 'open', 'a bound login that may');
select is((select actor_endpoint_id::text from switchboard.admission_policy_audit order by id desc limit 1), test.endpoint('agent'), 'its endpoint is noted');
select is(test.as_login(:'worker', 'select queue, status from switchboard.admission_status(null)'), '[{"queue": "r", "status": "open"}]', 'reads its status');
select is(test.as_login(:'worker', 'select switchboard.list_admission()') ->> 'error', '42501', 'and nobody else''s');
select is(test.as_login(:'worker', format('select switchboard.%s', c)) ->> 'error', 'SB404', 'not_found for it: ' || c) from unnest(array[
    format('set_admission_policy(%L, ''q'', ''{"max_in_flight": 2}'')', test.a()), format('clear_admission_policy(%L, ''q'')', test.a()), 'clear_admission_policy(null, ''q'')',
    format('set_admission_policy(null, ''r'', ''{"max_in_flight": 9}'', %L)', test.human('b')), format('clear_admission_policy(null, ''r'', %L)', test.human('b'))]) c;
select test.login('idler', 'switchboard_worker') as idler \gset
select switchboard.bind_login(test.endpoint('agent2'), :'idler') \g /dev/null
select is(test.as_login(:'idler', format('select switchboard.%s', c)) ->> 'error', 'SB403', 'a bound login that may not: ' || c) from unnest('{"set_admission_policy(null, ''q'', ''{\"max_in_flight\": 2}'')","clear_admission_policy(null, ''q'')"}'::text[]) c;
select test.vend('pusher', test.human('a'), '{q}', '{create_todo}') \g /dev/null
select test.login('pusher', 'switchboard_worker') as pusher \gset
select switchboard.bind_login(test.endpoint('pusher'), :'pusher') \g /dev/null
select is(test.as_login(:'pusher', 'select queue from switchboard.admission_status(null)') ->> 'error', 'SB403', 'one without claim or claim_next');
-- the gateway names the human; only an operator may leave it out
select test.login('gateway', 'switchboard_app') as gateway \gset
select is(test.as_login(:'gateway', format('select switchboard.' || c, test.a())) ->> 'error', 'SB403', 'the gateway has to say who it is: ' || c) from unnest(array['set_admission_policy(%L, ''q'', ''{"max_in_flight": 2}'')', 'clear_admission_policy(%L, ''q'')',
    'list_admission()', 'list_admission(null, ''endpoint:test-a'')', 'get_admission(''endpoint:test-a'', ''q'')', 'put_admission(''endpoint:test-a'', ''q'', ''{"max_in_flight": 2}'')', 'delete_admission(''endpoint:test-a'', ''q'')']) c;
select is(test.as_login(:'gateway', format('select switchboard.set_admission_policy(%L, ''q'', ''{"max_in_flight": 2}'', %L) ->> ''status'' as s', test.a(), test.human('a'))) -> 0 ->> 's', 'open', 'and then may');

-- charges outlive the budget
select test.clear() \g /dev/null
truncate switchboard.admission_totals;
select test.set('{"max_claims_per_window": 9, "window": {"period": "day", "tz": "UTC"}}'), test.create(), (select id from switchboard.claim_next(test.a(), 'w')) \g /dev/null
select is(switchboard.get_admission('endpoint:test-a', 'q', test.human('a')) -> 'windows', '[{"used": 1, "window_start": "2026-03-02T00:00:00+00:00"}]', 'its windows');
select switchboard.clear_admission_policy(test.a(), 'q', test.human('a')) \g /dev/null
select is((select total from switchboard.admission_totals where kind = 'charged'), 1::bigint, 'what it charged stays counted');
select is((select count(*) from switchboard.admission_windows), 0::bigint, 'its windows go with it');
select test.set('{"max_claims_per_window": 9, "window": {"period": "day", "tz": "UTC"}}'), test.create(), test.create(), (select count(*) from switchboard.claim_batch(test.a(), 'w', 2)), switchboard.clear_admission_policy(test.a(), 'q', test.human('a')) \g /dev/null
select is((select total from switchboard.admission_totals where kind = 'charged'), 3::bigint, 'of the next one, too');

-- how it stands: more used than there is now, what is pending, assigned to somebody or not
select test.clear(), test.set('{"max_claims_per_window": 9, "window": {"period": "day", "tz": "UTC"}}'), test.many(5), test.many(2, p_assignee => 'agent:test-a'), (select count(*) from switchboard.claim_batch(test.a(), 'w', 3)) \g /dev/null
select is(test.set('{"max_in_flight": 1, "max_claims_per_window": 2, "window": {"period": "day", "tz": "UTC"}}') - '{created_at,updated_at,window_resets_at,window_resets_local,window_started_at,policy,scope,updated_by}'::text[],
    '{"queue": "q", "status": "window_exhausted", "used": 3, "max_claims_per_window": 2, "remaining": 0, "in_flight": 3, "max_in_flight": 1, "pending": 4, "charged": 3, "exact": true, "next_eligible_at": "2026-03-03T00:00:00+00:00"}', 'limits below what is used');
select row_eq(format('select used, remaining, in_flight, pending, status from switchboard.admission_status(%L, ''q'')', test.a()), row(3, 0, 3::bigint, 4::bigint, 'window_exhausted'::text), 'and as a row');
select switchboard.set_grant(test.a(), '{r}') \g /dev/null
select is(switchboard.get_admission('endpoint:test-a', 'q', test.human('a')) ->> 'granted', 'false', 'the queue is not granted any more');
select test.forbidden($$ select test.set('{"max_in_flight": 1}') $$, 'so it gets no other budget');
select is(switchboard.clear_admission_policy(test.a(), 'q', test.human('a')) ->> 'cleared', 'true', 'but can be rid of it');
select switchboard.set_grant(test.a(), '{q,r}') \g /dev/null

-- redefining the window counts anew
select test.clear(), test.set('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC"}}'), test.create(), test.create() \g /dev/null
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 5)), 1::bigint, 'the window is spent');
select test.set('{"max_claims_per_window": 1, "window": {"period": "day", "tz": "UTC", "start": "01:00"}}') \g /dev/null
select is((select count(*) from switchboard.claim_batch(test.a(), 'w', 5)), 1::bigint, 'another window has nothing used');

-- a revoked endpoint: its budget can be cleared, not set
select test.set('{"max_in_flight": 2}', 'q', test.endpoint('a2')) \g /dev/null
select is((select array_agg(l ->> 'scope' order by l ->> 'scope') from jsonb_array_elements(switchboard.list_admission(test.human('a'), s)) l), w::text[], 'listed: ' || coalesce(s, 'all')) from (values (null, '{endpoint:test-a,endpoint:test-a2,endpoint:test-agent,endpoint:test-agent2}'), ('endpoint:test-a2', '{endpoint:test-a2}')) v (s, w);
select test.set('{"max_in_flight": 3}', 'q', test.endpoint('a2')), switchboard.revoke_endpoint(test.endpoint('a2')) \g /dev/null
select test.conflict(format('select test.set(''{"max_in_flight": 3}'', ''q'', %L)', test.endpoint('a2')), 'set on a revoked endpoint');
select test.not_found(format('select test.set(''{"max_in_flight": 3}'', ''q'', %L, ''b'')', test.endpoint('a2')), 'whose owner alone learns that it is revoked');
select is(switchboard.list_admission(test.human('a'), 'endpoint:test-a2'), '[]', 'nor is it listed any more');
select is(switchboard.clear_admission_policy(test.endpoint('a2'), 'q', test.human('a')) ->> 'cleared', 'true', 'cleared there');

-- the last 30 windows
insert into switchboard.admission_windows (endpoint_id, policy_id, window_start, used)
select p.endpoint_id, p.id, '2026-02-20 00:00+00'::timestamptz - d * interval '1 hour', d from switchboard.admission_policies p, generate_series(1, 40) d where p.endpoint_id::text = test.a() and p.queue = 'q';
select is((select jsonb_build_array(count(*), max(w ->> 'window_start'), max((w ->> 'used')::int)) from jsonb_array_elements(switchboard.get_admission('endpoint:test-a', 'q', test.human('a')) -> 'windows') w), '[30, "2026-03-02T01:00:00+00:00", 28]', 'the last 30 windows');
delete from switchboard.admission_windows where used > 1;

-- retention
insert into switchboard.admission_windows (endpoint_id, policy_id, window_start, used)
select p.endpoint_id, p.id, switchboard.now() - d * interval '1 day', 1 from switchboard.admission_policies p, unnest('{34,36,400}'::int[]) d where p.endpoint_id::text = test.a();
insert into switchboard.admission_policy_audit (endpoint_id, policy_id, queue, actor_human_id, action, at) select test.a()::uuid, gen_random_uuid(), 'old', test.human('a'), 'create', switchboard.now() - d * interval '1 day' from unnest('{29,31}'::int[]) d;
select switchboard.prune() \g /dev/null
select is((select count(*) from switchboard.admission_windows where window_start < switchboard.now() - interval '35 days'), 0::bigint, 'windows are kept for 35 days');
select is((select count(*) from switchboard.admission_windows where window_start < switchboard.now() - interval '33 days'), 1::bigint, 'and no less');
select is((select count(*) from switchboard.admission_policy_audit where queue = 'old'), 1::bigint, 'the audit by the retention of the endpoint');

select * from finish();
