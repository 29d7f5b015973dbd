-- functions/82_board_records: the pages of deliveries, budgets and health. Their whole shape, field by field, is in py/tests/test_board_pages.py.
select no_plan();
select test.stop_clock(), test.set_up() \g /dev/null
select test.grant_all(e) from unnest('{a,a2,b}'::text[]) e \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset
create function test.page(p_page text, p_args jsonb default '{}', p_human text default 'a') returns jsonb language plpgsql as $$
begin
    return case p_page
        when 'deliveries' then switchboard.board_deliveries(test.human(p_human), p_args, switchboard.now())
        when 'delivery' then switchboard.board_delivery(test.human(p_human), p_args, switchboard.now()) -> 'delivery'
        when 'budget' then switchboard.board_budget(test.human(p_human), p_args, switchboard.now())
        when 'health' then switchboard.board_health(test.human(p_human), p_args, switchboard.now()) end;
end $$;
create function test.since(p_span interval) returns jsonb language sql as $$ select switchboard.board_time(switchboard.now() - p_span, switchboard.now()) $$;
create function test.slugs(p_page jsonb) returns text[] language sql immutable as $$
    select coalesce(array_agg(concat_ws(' ', r #>> '{endpoint,slug}', r ->> 'delivery_id', r #>> '{todo,state}') order by n), '{}') from jsonb_array_elements(p_page -> 'deliveries') with ordinality u (r, n)
$$;
select test.receiver('ta', 'a', 'github', 'inbox') as hook, test.receiver('t2', 'a2', 'open', 'q') as open, test.receiver('tb', 'b', 'github', 'q') as foreign \gset
select switchboard.add_webhook_route(test.a(), :'hook', 'test-a2') \g /dev/null

-- deliveries
select is(test.page('deliveries'), '{"deliveries": [], "next": null, "filter": {"endpoint": null, "receiver": null, "quarantine": false, "before": null}, "quarantined": 0, "choices": {"endpoints": ["test-a", "test-a2"]}}', 'none yet');
select test.deliver('ta', '{"x": 1}', 'd1') as one, test.pass('1 s'), test.deliver('tb', '{"x": 1}', 'dx') as theirs, test.deliver('t2', 'plain', 'd2') as two \gset
select test.event_of(test.made(:'one')) as event, test.event_of(test.made(:'theirs', 'b')) as their_event, test.event_of(test.made(:'two', 'a2')) as event2 \gset
select is(test.slugs(test.page('deliveries'))::text, array['test-a2 ' || (select delivery_id from switchboard.events where id::text = :'event2') || ' waiting', 'test-a d1 waiting', 'test-a2 d1 waiting']::text, 'newest first, a row a target');
select is(test.slugs(test.page('deliveries', p_human => 'b')), '{test-b dx waiting}', 'somebody else''s are theirs');
select is(test.page('deliveries') #> '{deliveries,1}', jsonb_build_object('id', :'event', 'endpoint', jsonb_build_object('id', test.a(), 'slug', 'test-a'), 'webhook_id', :'hook', 'source_type', 'github', 'event_type', 'push', 'delivery_id', 'd1',
    'trust_mode', 'signed', 'verified', true, 'queue', 'inbox', 'bytes', 8, 'received', test.since('1 s'), 'todo', jsonb_build_object('id', test.made(:'one'), 'state', 'waiting', 'title', 'push')), 'a delivery in the list');
select is(test.page('deliveries') #> '{deliveries,0,verified}', 'false', 'one that nobody verified');
select is(array_length(test.slugs(test.page('deliveries', a)), 1), n, format('filtered: %s', a)) from (values ('{"endpoint": "test-a"}'::jsonb, 1), ('{"endpoint": "test-a2"}', 2), ('{"endpoint": ""}', 3), ('{"receiver": ""}', 3), ('{"quarantine": "0"}', 3), ('{"quarantine": ""}', 3), ('{"before": "x"}', 3)) v(a, n);
select is(test.slugs(test.page('deliveries', jsonb_build_object('receiver', r))), e::text[], 'of a receiver: ' || n) from (values (:'hook', '{test-a d1 waiting,test-a2 d1 waiting}', 'on all its targets'), (:'foreign', '{}', 'of another human'), (test.unknown(), '{}', 'unknown'), ('x', '{}', 'what is no id')) v(r, e, n);
select is(test.page('deliveries', jsonb_build_object('receiver', :'hook', 'endpoint', 'test-a', 'before', :'their_event')) -> 'filter', jsonb_build_object('endpoint', 'test-a', 'receiver', :'hook', 'quarantine', false, 'before', :'their_event'), 'what was asked');
select test.not_found(format('select test.page(''deliveries'', %L)', a), 'refused: ' || n) from (values ('{"endpoint": "test-b"}', 'an endpoint of another human'), ('{"endpoint": "test-x"}', 'an unknown one')) v(a, n);
select is(test.slugs(test.page('deliveries', jsonb_build_object('before', :'event2'))), '{test-a d1 waiting,test-a2 d1 waiting}', 'the next page begins below an id');
select switchboard.set_admission_policy(test.endpoint('a2'), 'q', '{"max_in_flight": 0}', :'ada') \g /dev/null
select is(test.page('deliveries') #>> '{deliveries,0,todo,state}', 'deferred', 'a todo whose queue is shut');
select test.finish(test.made(:'one')) \g /dev/null
select is(test.page('deliveries') #>> '{deliveries,1,todo,state}', 'done', 'a todo that is done');
delete from switchboard.todos where id::text = test.made(:'one');
select is(test.page('deliveries') #> '{deliveries,1,todo}', 'null', 'and one that is pruned');

-- quarantine
select switchboard.hold_webhook(:'hook', true, :'ada'), test.pass('1 s') \g /dev/null
select test.deliver('ta', '{"x": 2}', 'q1') as held, test.pass('1 s'), test.deliver('ta', '{"x": 3}', 'q2') \gset
select is(test.slugs(test.page('deliveries', '{"quarantine": "1"}')), '{test-a q2 quarantined,test-a2 q2 quarantined,test-a q1 quarantined,test-a2 q1 quarantined}', 'what waits in quarantine, newest first');
select switchboard.hold_webhook(:'foreign', true, :'bob'), test.deliver('tb', '{}', 'theirs') \g /dev/null
select is(test.page('deliveries', p_human => h) -> 'quarantined', n::jsonb, 'how many wait of ' || h) from (values ('a', '4'), ('b', '1')) v(h, n);
select is(test.slugs(test.page('deliveries', jsonb_build_object('quarantine', '1') || a)), e::text[], 'in quarantine: ' || n) from (values
    ('{"endpoint": "test-a"}'::jsonb, '{test-a q2 quarantined,test-a q1 quarantined}', 'on one endpoint'), (jsonb_build_object('receiver', :'hook', 'endpoint', 'test-a2'), '{test-a2 q2 quarantined,test-a2 q1 quarantined}', 'of a receiver'),
    (jsonb_build_object('receiver', :'open'), '{}', 'of one that holds nothing'), (jsonb_build_object('before', (select max(id::text) from switchboard.events where endpoint_id::text = test.a())), '{test-a q1 quarantined,test-a2 q1 quarantined}', 'the next page')) v(a, e, n);
select is(test.slugs(test.page('deliveries', '{"quarantine": "1"}', 'b')), '{test-b theirs quarantined}', 'another human sees their own');
select switchboard.release_quarantined(test.made(:'held'), :'ada'), switchboard.discard_quarantined(test.made(:'held', 'a2'), :'ada') \g /dev/null
select is(test.slugs(test.page('deliveries', '{"quarantine": "1"}')), '{test-a q2 quarantined,test-a2 q2 quarantined}', 'what was released or discarded does not wait');
select is(test.slugs(test.page('deliveries', '{"endpoint": "test-a2"}'))::text[] @> '{test-a2 q1 dead}', true, 'a discarded one is a dead letter');

-- pages of them: no delivery is cut, none is missed
select test.deliver('ta', '{}', 'm' || n) from generate_series(1, 60) n, test.pass('1 s') \g /dev/null
select test.pass('1 s'), test.deliver('t2', 'odd', 'to one target') \g /dev/null
create function test.walk(p_args jsonb, out pages int, out ids text[], out cut bool) language plpgsql as $$
declare
    v_page jsonb;
begin
    pages := 0;
    ids := '{}';
    loop
        v_page := test.page('deliveries', p_args);
        pages := pages + 1;
        cut := cut is true or exists (select from unnest(ids) i where i = any (array(select jsonb_path_query(v_page, '$.deliveries[*].id') #>> '{}')));
        ids := ids || array(select jsonb_path_query(v_page, '$.deliveries[*].id') #>> '{}');
        exit when v_page -> 'next' = 'null' or pages > 9;
        p_args := p_args || jsonb_build_object('before', v_page -> 'next');
    end loop;
end $$;
select is(ids, (select array_agg(v.id::text order by v.id desc) from switchboard.events v where v.endpoint_id::text <> test.b() and (a = '{}' or v.webhook_id::text = :'hook' and v.delivery_id ~ '^[mq]' and v.delivery_id <> 'q1')), 'a walk over all pages: ' || a::text)
    from unnest(array['{}', jsonb_build_object('quarantine', '1')]) a, test.walk(a);
select is(pages || ' ' || cut, '3 false', 'in three pages, no delivery is on two of them: ' || a::text) from unnest(array['{}', jsonb_build_object('quarantine', '1')]) a, test.walk(a);
select is((select pages from test.walk(jsonb_build_object('receiver', :'hook', 'endpoint', 'test-a'))), 2, 'pages of one receiver');
delete from switchboard.events where delivery_id ~ '^m' and delivery_id not in (select 'm' || n from generate_series(1, 22) n);
select is(jsonb_array_length(p -> 'deliveries') || coalesce(' ' || (p ->> 'next'), ''), '50', 'exactly a page: there is no next one') from test.page('deliveries', jsonb_build_object('receiver', :'hook')) p;

-- a delivery
create function test.view(p_id text, p_human text default 'a') returns jsonb language sql as $$ select test.page('delivery', jsonb_build_object('id', p_id), p_human) $$;
select test.not_found(format('select test.view(%L)', i), 'no delivery: ' || n) from (values (:'their_event', 'of another human'), (test.unknown(), 'unknown'), ('x', 'malformed'), (null, 'NULL'), (test.made(:'two', 'a2'), 'a todo')) v(i, n);
select is(test.error_of(format('select test.view(%L)', :'their_event')), test.error_of(format('select test.view(%L)', test.unknown())), 'foreign and unknown, word for word');
select is(test.view(:'event2') - '{received,delivery_id,todos}'::text[], jsonb_build_object('id', :'event2', 'webhook_id', :'open', 'receiver_live', true, 'source_type', 'open', 'event_type', 'push', 'trust_mode', 'open', 'verified', false,
    'verification', '{"scheme": "github", "secret": "current"}'::jsonb, 'queue', 'q', 'content_type', 'application/json', 'bytes', 5, 'headers', '{"x": "y"}'::jsonb,
    'body', '{"text": "plain", "cut": false, "binary": false, "bytes": 5}'::jsonb, 'targets', '["test-a2"]'::jsonb, 'replays', '[]'::jsonb), 'a delivery, whole');
select is(test.view(:'event2') #> '{todos,0}', jsonb_build_object('id', test.made(:'two', 'a2'), 'endpoint', jsonb_build_object('id', test.endpoint('a2'), 'slug', 'test-a2'), 'queue', 'q', 'state', 'deferred', 'title', 'open push d2', 'created', switchboard.board_time((select received_at from switchboard.events where id::text = :'event2'), switchboard.now())), 'the todo made of it');
select is(test.view(:'event') -> 'targets', '["test-a", "test-a2"]', 'where a replay would go');
select is(jsonb_array_length(test.view(:'event') -> 'todos'), 1, 'a todo that is pruned is not there');
select switchboard.replay_event(:'event', 'test-a', :'ada') as again \gset
select is(test.view(:'event') -> 'replays', jsonb_build_array(jsonb_build_object('actor', 'op:Ada', 'at', test.since('0'), 'endpoint', jsonb_build_object('id', test.a(), 'slug', 'test-a'), 'todo_id', :'again'::jsonb #> '{todos,0,id}', 'created', true)), 'a replay');
select is(jsonb_array_length(test.view(:'event') -> 'todos'), 2, 'and the todo that it made');
select switchboard.delete_webhook(test.a(), :'hook') \g /dev/null
select is(test.view(:'event') -> 'receiver_live', 'false', 'its receiver is deleted');
-- bodies
create function test.body(p_body bytea) returns jsonb language sql as $$ update switchboard.events set body = p_body where delivery_id = 'd1' and endpoint_id::text = test.a() or delivery_id = 'd1' and endpoint_id::text = test.endpoint('a2'); select test.view(id::text) -> 'body' from switchboard.events where delivery_id = 'd1' limit 1 $$;
select is(test.body(b), e::jsonb, 'a body: ' || n) from (values
    (''::bytea, '{"text": "", "cut": false, "binary": false, "bytes": 0}', 'empty'),
    ('\x00ff', '{"text": "00ff", "cut": false, "binary": true, "bytes": 2}', 'binary'),
    (decode(repeat('ff', 33), 'hex'), jsonb_build_object('text', repeat('ff', 32) || E'\nff', 'cut', false, 'binary', true, 'bytes', 33)::text, 'binary, in lines'),
    (decode(repeat('ff', 32), 'hex'), jsonb_build_object('text', repeat('ff', 32), 'cut', false, 'binary', true, 'bytes', 32)::text, 'binary, a whole line'),
    (convert_to(repeat('x', 16384), 'UTF8'), jsonb_build_object('text', repeat('x', 16384), 'cut', false, 'binary', false, 'bytes', 16384)::text, 'as much as is shown'),
    (convert_to(repeat('x', 16383) || 'ü', 'UTF8'), jsonb_build_object('text', repeat('x', 16383), 'cut', true, 'binary', false, 'bytes', 16385)::text, 'cut between characters')) v(b, e, n);

-- a budget
create function test.budget(p_queue text default 'q', p_slug text default 'test-a') returns jsonb language sql as $$ select test.page('budget', jsonb_build_object('slug', p_slug, 'queue', p_queue)) $$;
select test.not_found(format('select test.budget(%L, %L)', q, s), 'no budget: ' || n) from (values ('q', 'test-b', 'an endpoint of another human'), ('q', 'test-x', 'an unknown one'), ('x', 'test-a', 'a queue that is not granted'), ('quarantine', 'test-a', 'quarantine'), (null, 'test-a', 'no queue')) v(q, s, n);
select is(test.budget('r') - '{endpoint,zones}'::text[], '{"queue": "r", "granted": true, "admission": null, "policy": null, "windows": [], "audit": [], "form": {"max_in_flight": "", "max_claims_per_window": "", "period": "day", "tz": "", "start": "00:00", "weekday": "Mon", "error": null, "field": null}}', 'a queue without a budget');
select is((select count(*) from jsonb_array_elements_text(test.budget('r') -> 'zones') z where switchboard.known_zone(z) is distinct from z), 0::bigint, 'every zone that is suggested is one');
select test.clear(), test.at('2026-03-02 12:00Z') \g /dev/null
select switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 2, "max_claims_per_window": 3, "window": {"period": "day", "tz": "America/Los_Angeles", "start": "06:30"}}', :'ada') \g /dev/null
select test.create(), test.create(), test.create(p_assignee => 'agent:y') \g /dev/null
select id from switchboard.claim_next(test.a(), 'agent:x', '{q}') \g /dev/null
select is(test.budget() -> 'admission', jsonb_build_object('status', 'open', 'used', 1, 'max_claims_per_window', 3, 'in_flight', 1, 'max_in_flight', 2, 'window_period', 'day', 'window_tz', 'America/Los_Angeles',
    'window_resets', switchboard.board_time('2026-03-02 14:30Z', switchboard.now()), 'window_resets_local', 'Mon 2026-03-02 06:30', 'next_eligible', null, 'exact', null, 'pending', 2, 'remaining', 2, 'charged', 1,
    'updated', test.since('0'), 'updated_by', 'Ada', 'window_started', switchboard.board_time('2026-03-01 14:30Z', switchboard.now())), 'how it stands');
select is(test.budget() -> 'form', '{"max_in_flight": "2", "max_claims_per_window": "3", "period": "day", "tz": "America/Los_Angeles", "start": "06:30", "weekday": "Mon", "error": null, "field": null}', 'what is in its form');
select is(test.budget() -> 'policy', '{"max_in_flight": 2, "max_claims_per_window": 3, "window": {"period": "day", "tz": "America/Los_Angeles", "start": "06:30"}}', 'the policy');
select is(test.budget() -> 'audit', jsonb_build_array(jsonb_build_object('at', test.since('0'), 'action', 'create', 'human', 'Ada', 'endpoint', null, 'before', null, 'after', test.budget() -> 'policy')), 'who changed it');
select is(test.budget() -> 'windows', jsonb_build_array(jsonb_build_object('start', switchboard.board_time('2026-03-01 14:30Z', switchboard.now()), 'start_local', 'Sun 2026-03-01 06:30', 'used', 1, 'limit', 3, 'current', true)), 'its window');
select test.pass('3 hours') \g /dev/null
select id from switchboard.claim_next(test.a(), 'agent:x', '{q}') \g /dev/null
select is((select array_agg(concat_ws(' ', w ->> 'start_local', w ->> 'current') order by n) from jsonb_array_elements(test.budget() -> 'windows') with ordinality u (w, n)), '{Mon 2026-03-02 06:30 true,Sun 2026-03-01 06:30 false}', 'the next day, newest first');
select switchboard.set_admission_policy(test.a(), 'q', '{"max_claims_per_window": 1, "window": {"period": "week", "tz": "CET", "start": "00:00", "weekday": "Wed"}}', :'ada') \g /dev/null
select is(test.budget() #> '{admission,remaining}', '1', 'a window that is counted anew') from test.budget();
select id from switchboard.claim_next(test.a(), 'agent:x', '{q}') \g /dev/null
update switchboard.admission_windows set used = 5 where window_start = (select max(window_start) from switchboard.admission_windows) or used = 1;
select is((test.budget() #>> '{admission,remaining}')::int, 0, 'never less than nothing is left');
update switchboard.admission_policies set window_tz = 'Nowhere/Gone' where endpoint_id::text = test.a();
select is(test.budget() #>> '{admission,status}', 'admission_unavailable', 'a zone that is gone');
select ok(bool_and(w ->> 'start_local' ~ 'UTC$'), 'its windows are shown in UTC') from jsonb_array_elements(test.budget() -> 'windows') w;
select is(test.budget() #> '{admission,remaining}', 'null', 'what is left is not known');
select switchboard.set_admission_policy(test.a(), 'q', '{"max_in_flight": 1}', :'ada') \g /dev/null
select is(test.budget() -> 'windows', '[]', 'a budget without windows');
select is(test.budget() #> '{admission,remaining}', 'null', 'has nothing left over');
select switchboard.clear_admission_policy(test.a(), 'q', :'ada'), switchboard.set_grant(test.a(), '{r}') \g /dev/null
select is(test.budget() -> 'admission', 'null', 'a budget that was removed');
select is(test.budget() -> 'granted', 'false', 'of a queue that is not granted any more');
select is(test.budget() #>> '{audit,0,action}', 'delete', 'is still on record');
select switchboard.set_grant(test.a(), '{q,r,inbox}') \g /dev/null

-- health
select is(jsonb_path_query_array(test.page('health'), '$.sweeps[*].level') , (select jsonb_agg('never'::text) from unnest(switchboard.sweep_names())), 'no sweep has run');
select is(jsonb_path_query_array(test.page('health'), '$.sweeps[*].name'), to_jsonb(switchboard.sweep_names()), 'all of them, in their order');
select switchboard.tick() \g /dev/null
update switchboard.sweeps set last_error = '42P01' where name = 'prune';
select is(test.page('health') #> '{sweeps,0}', jsonb_build_object('name', 'reap_expired', 'last_run', test.since('0'), 'count', (select last_count from switchboard.sweeps where name = 'reap_expired'), 'error', null, 'level', 'ok'), 'one that ran');
select is((test.page('health') #> '{sweeps,7}') - '{last_run,count}'::text[], '{"name": "prune", "error": "42P01", "level": "error"}', 'one that failed');
select test.pass('91 s') \g /dev/null
select is(test.page('health') #>> '{sweeps,0,level}', 'late', 'one that is late');
select is(test.page('health') -> 'stalled', '[]', 'no queue is stalled');
select test.clear(), test.create('a', 'r'), test.create('a', 'inbox'), test.create('b', 'q') \g /dev/null
select test.pass('10 min') \g /dev/null
insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges, last_nudged_at, progressed_at) values
    (test.a()::uuid, 'r', 1, switchboard.now() - interval '5 min', null), (test.a()::uuid, 'inbox', 5, switchboard.now() - interval '1 min', null),
    (test.endpoint('a2')::uuid, 'q', 2, switchboard.now() - interval '9 min', switchboard.now() - interval '2 min'), (test.b()::uuid, 'q', 1, switchboard.now(), null);
select is(test.page('health') #> '{stalled,1}', jsonb_build_object('endpoint', jsonb_build_object('id', test.a(), 'slug', 'test-a'), 'queue', 'r', 'waiting', 1, 'oldest_waiting', test.since('10 min'), 'nudges', 1, 'last_nudged', test.since('5 min'),
    'next_nudge', test.since('-15 min'), 'progressed', null), 'a queue that was nudged');
select is((select array_agg(concat_ws(' ', s ->> 'queue', s #>> '{next_nudge,in}', s #>> '{progressed,in}') order by n) from jsonb_array_elements(test.page('health') -> 'stalled') with ordinality u (s, n))::text,
    '{inbox,"r 900.000","q -120.000"}', 'those without progress first, the most nudged of them; no nudge follows the fifth, nor progress');
select is(jsonb_array_length(test.page('health', p_human => 'b') -> 'stalled'), 1, 'of one''s own endpoints only');
select ok(jsonb_path_exists(test.page('health'), '$.facts[*] ? (@.name == "PostgreSQL" && @.level == "ok")'), 'facts of the database');
select is(jsonb_path_query_array(test.page('health'), '$.facts[*] ? (@.level != "ok")'), '[]', 'nothing is wrong');
select switchboard.note_presence(gen_random_uuid(), '{}') \g /dev/null
select is(jsonb_path_query_first(test.page('health'), '$.facts[*] ? (@.name == "Servers").value'), '"1 with sessions"', 'servers that have sessions');
update switchboard.settings set is_test = true, test_now = switchboard.now();
select is(jsonb_path_query_first(test.page('health'), '$.facts[*] ? (@.name == "Clock").level'), '"warning"', 'a clock that is set by hand is told of');

select * from finish();
