-- functions/80_board: the exchange and the page of a todo. Columns are printed one a line, so that a statement may test several things.
select no_plan();
\pset fieldsep '\n'
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada, test.human('b') as bob, (select slug from test.endpoints where name = 'a') as slug_a \gset
create function test.exchange(p_args jsonb default '{}', p_human text default 'a') returns jsonb language sql as $$ select switchboard.board_exchange(test.human(p_human), p_args, switchboard.now()) $$;
create function test.page(p_id text, p_human text default 'a') returns jsonb language sql as $$ select switchboard.board_todo(test.human(p_human), jsonb_build_object('id', p_id), switchboard.now()) -> 'todo' $$;
create function test.position(p_endpoint text default 'a') returns jsonb language sql as $$ select e from jsonb_array_elements(test.exchange() -> 'endpoints') e where e ->> 'id' = test.endpoint(p_endpoint) $$;
create function test.strip(p_queue text default 'q', p_endpoint text default 'a') returns jsonb language sql as $$ select q from jsonb_array_elements(test.position(p_endpoint) -> 'queues') q where q ->> 'queue' = p_queue $$;
create function test.keys(p_object jsonb) returns text[] language sql immutable as $$ select array_agg(k order by k) from jsonb_object_keys(p_object) k $$;
create function test.has(p_object jsonb, p_fields text) returns text[] language sql immutable as $$ select array(select f from unnest(string_to_array(p_fields, ' ')) f where not p_object ? f) $$;
create function test.ids(p_page jsonb) returns text[] language sql immutable as $$ select coalesce(array_agg(t ->> 'id'), '{}') from jsonb_array_elements(p_page -> 'todos') t $$;
create function test.lit(p_strip jsonb) returns text[] language sql immutable as $$ select coalesce(array_agg(l ->> 'state' order by o), '{}') from jsonb_array_elements(p_strip -> 'lamps') with ordinality s (l, o) $$;

-- times and states
select is(switchboard.board_time('2026-11-30 07:30:00.0456+01', '2026-11-30 06:29:13Z'), '{"at": "2026-11-30T06:30:00.045Z", "in": 47.046}', 'a time to come');
select is(switchboard.board_time('2026-11-30 06:30Z', '2026-11-30 06:30:47Z'), '{"at": "2026-11-30T06:30:00.000Z", "in": -47}', 'a time gone by');
select is(switchboard.board_time(null, now()), null, 'no time');
create table test.made (what text primary key, id text);
do $$ declare v_what text; begin foreach v_what in array '{pending,claimed,parked,dead,done}'::text[] loop insert into test.made values (v_what, test.make(v_what)); perform test.pass('1 s'); end loop; end $$;
select is(switchboard.board_state(t, d), s, format('%s is %s', what, s)) from (values ('pending', false, 'waiting'), ('pending', true, 'deferred'), ('pending', null, 'waiting'), ('claimed', true, 'connected'), ('parked', true, 'parked'), ('dead', true, 'dead'), ('done', true, 'done')) v(what, d, s)
join test.made m using (what) join switchboard.todos t on t.id::text = m.id;

-- somebody who has nothing
select switchboard.create_human('Eve') \g /dev/null
select is(switchboard.board_exchange(id, '{}', switchboard.now()) - 'filter', '{"todos": [], "next": null, "endpoints": [], "endpoints_more": 0, "choices": {"queues": [], "endpoints": []},
    "totals": {"waiting": 0, "deferred": 0, "connected": 0, "parked": 0, "dead": 0, "done": 0, "quarantined": 0}}', 'an exchange without lines') from switchboard.humans where name = 'Eve';
select is(switchboard.board_status(id, switchboard.now()), '{"sweep": null, "sweep_level": "never", "sweep_error": null, "stalled": 0, "dead": 0, "quarantined": 0, "hooks_off": 0}', 'and the rail before the first sweep') from switchboard.humans where name = 'Eve';

-- every field is there
select is(test.has(test.exchange(), 'totals endpoints endpoints_more todos next filter choices'), '{}', 'fields of the exchange');
select is(test.has(test.exchange() -> 'totals', 'waiting deferred connected parked dead done quarantined'), '{}', 'of the totals');
select is(test.exchange() -> 'filter', '{"endpoint": null, "queue": null, "state": null, "q": null, "before": null}', 'of the filter');
select is(test.has(test.position(), 'id slug line attached last_seen expires revoked held held_total queues'), '{}', 'of an endpoint');
select is(test.has(test.strip(), 'queue granted waiting connected parked dead done counts_capped parked_capped dead_capped oldest_waiting admission stall lamps more'), '{}', 'of a queue');
select is(test.has(test.strip('inbox'), 'queue granted waiting connected parked dead done counts_capped parked_capped dead_capped oldest_waiting admission stall lamps more'), '{}', 'of an empty one');
select is(test.keys(l), '{id,state,title}', 'of a lamp') from jsonb_array_elements(test.strip() -> 'lamps') l;
select is(test.keys(t), '{assignee,attempt,completed,created,deferred,endpoint,id,key,kind,lease,lease_span,max_attempts,owner,queue,retry,source,state,title,trust_mode,updated,verified}', 'of a row: ' || (t ->> 'state'))
from jsonb_array_elements(test.exchange() -> 'todos' || (test.position() -> 'held')) t;
select is(test.has(test.page(id), 'id endpoint queue state title kind source trust_mode verified assignee owner attempt max_attempts key created updated completed lease lease_span retry deferred '
    'claimed last_ringed claims ring_attempts mine payload result admission event timeline timeline_more actions'), '{}', 'of a page: ' || what) from test.made;
select is(test.keys(test.page(id) -> 'actions'), '{claim,complete,discard_quarantined,extend,fail,force,lease_default,release,release_quarantined,retry}', 'of its actions: ' || what) from test.made;

-- what is counted, what is lit
select is(test.exchange() -> 'totals', '{"waiting": 1, "deferred": 0, "connected": 1, "parked": 1, "dead": 1, "done": 1, "quarantined": 0}', 'totals: what has ended counts before it is folded');
select is(test.strip() - '{lamps,oldest_waiting}'::text[], '{"queue": "q", "granted": true, "waiting": 1, "connected": 1, "parked": 1, "dead": 1, "done": 1, "counts_capped": false, "parked_capped": false, "dead_capped": false,
    "admission": null, "stall": null, "more": 0}', 'a strip');
select switchboard.fold_attempts() \g /dev/null
select is(test.strip() -> 'done', '1', 'and once after it');
select is(test.lit(test.strip()), '{waiting,connected,parked,dead,done}', 'a lamp each, in order of id');
select is((select array_agg(l ->> 'title' order by o) from jsonb_array_elements(test.strip() -> 'lamps') with ordinality s (l, o)), '{NULL,a test,a test,a test,NULL}', 'titles where somebody has to look');
select is((select array_agg(q ->> 'queue' order by o) from jsonb_array_elements(test.position() -> 'queues') with ordinality s (q, o)), '{inbox,q,r}', 'strips in order of name');
select is(test.strip() -> 'oldest_waiting' ->> 'at', (select to_char(created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') from switchboard.todos where id::text = (select id from test.made where what = 'pending')), 'the oldest');
select test.create(p_assignee => 'ann') as assigned \gset
select is((test.strip() -> 'waiting'), '2', 'an assigned one waits, too');
select is(test.lit(test.strip()), '{waiting,connected,parked,dead,done,waiting}', 'and has a lamp');

select test.pass('1 s'), test.create('a2', p_assignee => 'ann'), test.pass('1 s'), test.create('a2') \g /dev/null
select is(test.strip('q', 'a2') #>> '{oldest_waiting,in}', '-1.000', 'the oldest of both kinds');

-- a lease that lapsed is still a connection; who holds most urgently comes first
select is(test.position() -> 'held_total', '1', 'one held');
select is(test.position() #>> '{held,0,lease,in}', '54.000', 'for a minute, of which 6 s are gone');
select test.pass('61 s'), test.make('claimed') as later \gset
select is((select array_agg(h ->> 'state' || ' ' || ((h #>> '{lease,in}')::numeric > 0) order by o) from jsonb_array_elements(test.position() -> 'held') with ordinality s (h, o)), '{"connected false","connected true"}', 'the lapsed one first');
select is(test.page(id) -> 'actions', '{"claim": true, "complete": true, "fail": true, "extend": true, "release": true, "retry": false, "release_quarantined": false, "discard_quarantined": false, "force": true, "lease_default": 300}', 'it may be taken over') from test.made where what = 'claimed';
select is(test.page(id) ->> 'state', 'connected', 'and is connected on its page') from test.made where what = 'claimed';
update switchboard.todos set max_attempts = 1 where id::text = (select id from test.made where what = 'claimed');
select is(test.page(id) #> '{actions,claim}', 'false', 'but not once its attempts are spent') from test.made where what = 'claimed';
select test.create() from generate_series(1, 40) \g /dev/null
select switchboard.claim_batch(test.a(), 'w9', 40, '{q}', 600) \g /dev/null
select is(jsonb_array_length(test.position() -> 'held'), 12, 'at most 12 of one endpoint'), is(test.position() -> 'held_total', (select to_jsonb(count(*)) from switchboard.todos where state = 'claimed'), 'of all');
select is((select count(*) from jsonb_array_elements(test.position() -> 'held') h where h ->> 'id' in (:'later', (select id from test.made where what = 'claimed'))), 2::bigint, 'the most urgent among them');
insert into switchboard.todos (endpoint_id, id, queue, state, due_at, trust_mode, title) select test.a()::uuid, switchboard.new_id(switchboard.now(), n), 'r', 'failed', switchboard.now() + interval '1 s', 'sql', 'parked' from generate_series(1, 700) n;
select is(test.position() #>> '{held,0,id}', (select id from test.made where what = 'claimed'), 'also behind much that is parked');
select is(jsonb_array_length(test.position() -> 'held'), 12, 'all of them');
select is(jsonb_build_array(test.strip('r') -> 'parked', test.strip('r') -> 'parked_capped', test.exchange() #> '{totals,parked}'), jsonb_build_array('500'::jsonb, 'true'::jsonb, '700'::jsonb), 'what is parked is counted up to 500 a queue, and all of it in the total');
delete from switchboard.todos where title = 'parked';

-- a queue with more than there is room for
select test.clear() \g /dev/null
insert into switchboard.todos (endpoint_id, id, created_at, queue, trust_mode, title) select test.endpoint('a2')::uuid, switchboard.new_id(at), at, 'q', 'sql', 'many' from (select switchboard.now() - (10100 - n) * interval '1 ms' as at from generate_series(1, 10100) n) s;
insert into switchboard.todos (endpoint_id, id, queue, state, completed_at, trust_mode, title) select test.endpoint('a2')::uuid, switchboard.new_id(switchboard.now(), n), 'q', s::switchboard.todo_state, switchboard.now(), 'sql', 'many' from generate_series(1, 20) n, unnest('{done,failed}'::text[]) s;
select is(jsonb_build_array(s -> 'waiting', s -> 'counts_capped', s -> 'dead', s -> 'done'), jsonb_build_array('10000'::jsonb, 'true'::jsonb, '20'::jsonb, '0'::jsonb), 'counting ends at 10,000'), is(jsonb_array_length(s -> 'lamps'), 340 / 6, 'six queues share the lamps'),
    is((s -> 'more')::int, 10020 - (select count(*) from unnest(test.lit(s)) l where l <> 'done')::int, 'and the rest is said'),
    is((select array_agg(l || ' ' || n order by l) from (select l, count(*) as n from unnest(test.lit(s)) l group by l) c), '{"dead 8","done 7","waiting 41"}', 'dead ones first, a few done, and those that wait')
from test.strip('q', 'a2') s;
select is((select min(l ->> 'id') from jsonb_array_elements(test.strip('q', 'a2') -> 'lamps') l where l ->> 'state' = 'waiting'), (select min(id::text) from switchboard.todos where state = 'pending'), 'the oldest of them');

-- budgets: a queue that is shut
select test.clear(), test.create('a', 'q') as p1, test.create('a', 'r') as p2, switchboard.set_admission_policy(test.a(), 'r', '{"max_claims_per_window": 0, "window": {"period": "day", "tz": "Europe/Warsaw", "start": "06:30"}}') \gset
select is(test.strip('r') -> 'admission', jsonb_build_object('window_resets', switchboard.board_time('2026-03-03 05:30Z', switchboard.now())) || '{"status": "paused", "used": 0, "max_claims_per_window": 0, "in_flight": null, "max_in_flight": null, "window_period": "day", "window_tz": "Europe/Warsaw",
    "window_resets_local": "Tue 2026-03-03 06:30", "next_eligible": null, "exact": false}', 'a budget of 0: paused, and when its window resets in both zones');
select is(test.lit(test.strip('r')), '{deferred}', 'its lamp is deferred'), is(test.lit(test.strip('q')), '{waiting}', 'that of another queue is not');
select is((test.exchange() -> 'totals') - '{connected,parked,dead,done,quarantined}'::text[], '{"waiting": 2, "deferred": 1}', 'a part of what waits');
select is((select t -> 'deferred' from jsonb_array_elements(test.exchange() -> 'todos') t where t ->> 'id' = :'p2'), '{"reason": "paused", "next_eligible": null, "exact": false}', 'its row says why');
select is(jsonb_build_array(test.page(:'p2') ->> 'state', test.page(:'p2') #> '{actions,claim}', test.page(:'p2') #>> '{admission,status}'), jsonb_build_array('deferred', 'false'::jsonb, 'paused'), 'its page, too, where it cannot be claimed');
select is(test.ids(test.exchange(jsonb_build_object('state', s))), array[i], 'the list of what is ' || s) from (values ('deferred', :'p2'), ('waiting', :'p1')) v(s, i);
select switchboard.set_admission_policy(test.a(), 'r', '{"max_in_flight": 1}'), switchboard.claim(test.a(), :'p2', 'w1', 60), test.create('a', 'r') as p3 \gset
select is((test.strip('r') -> 'admission') - '{window_period,window_tz,window_resets,window_resets_local,used,max_claims_per_window}'::text[], '{"status": "in_flight_full", "in_flight": 1, "max_in_flight": 1, "next_eligible": {"at": "2026-03-02T12:02:08.000Z", "in": 60.000}, "exact": false}', 'a full cap opens when a lease ends');
select is(test.page(:'p3') #> '{actions,claim}', 'false', 'nothing more can be claimed');
select test.pass('61 s') \g /dev/null
select is(test.page(:'p2') #> '{actions,claim}', 'true', 'but what lapsed may be taken over');
update switchboard.admission_policies set max_in_flight = null, max_claims_per_window = 5, window_period = 'day', window_tz = 'Nowhere/Gone', window_start = '00:00';
select is(jsonb_build_array(test.strip('r') #>> '{admission,status}', test.strip('r') #>> '{admission,window_tz}', test.strip('r') #> '{admission,window_resets}'), jsonb_build_array('admission_unavailable', 'Nowhere/Gone', 'null'::jsonb), 'a zone that is gone breaks no page');
select switchboard.clear_admission_policy(test.a(), 'r') \g /dev/null

-- lines
select is(jsonb_build_array(test.position() ->> 'line', test.position('a2') ->> 'line'), jsonb_build_array('quiet', 'never'), 'a line is quiet once its agent was there');
select switchboard.note_presence(gen_random_uuid(), jsonb_build_object(test.endpoint('a2'), '[{"client": "x", "age": 1, "stream": true}, {"client": "y", "age": 2, "stream": true}, {"client": "z", "age": 2, "stream": false}]'::jsonb)) \g /dev/null
select is(jsonb_build_array(test.position('a2') ->> 'line', test.position('a2') -> 'attached'), jsonb_build_array('attached', '2'::jsonb), 'attached, while it listens');
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('a2');
select is(jsonb_build_array(test.position('a2') ->> 'line', test.position('a2') #>> '{expires,in}'), jsonb_build_array('expired', '0.000'), 'expired'), is((select array_agg(e ->> 'slug' order by o) from jsonb_array_elements(test.exchange() -> 'endpoints') with ordinality s (e, o)), '{test-a,test-a2}', 'after those that are active');
update switchboard.endpoints set expires_at = null where id::text = test.endpoint('a2');
select switchboard.revoke_endpoint(test.endpoint('a2')) \g /dev/null
select is(jsonb_build_array(test.position('a2') ->> 'line', test.position('a2') #>> '{revoked,in}'), jsonb_build_array('revoked', '0.000'), 'revoked'), test.pass('6 d 23 h') is not null;
select isnt(test.position('a2'), null, 'still there after six days'), test.pass('2 h') is not null;
select is(test.position('a2'), null, 'and no longer after a week'), is(test.exchange() -> 'endpoints_more', '0', 'which is not counted');

-- a queue that is not granted any more, and one that was nudged
select switchboard.set_grant(test.a(), '{q,inbox}'), test.create('a', 'q') \g /dev/null
select is(test.strip('r') -> 'granted', 'false', 'a queue with live todos stays on the board when it is not granted any more');
update switchboard.todos set state = 'done', due_at = null, completed_at = switchboard.now() where queue = 'r';
select is(test.strip('r'), null, 'but not without'), is(test.strip('inbox') -> 'granted', 'true', 'as an empty one that is granted does');
insert into switchboard.queue_stall_nudges (endpoint_id, queue, nudges, last_nudged_at) values (test.a()::uuid, 'q', 2, switchboard.now() - interval '10 min');
select is(jsonb_build_array(test.strip() #> '{stall,nudges}', test.strip() #>> '{stall,last_nudged,in}', test.strip() #>> '{stall,next_nudge,in}'), jsonb_build_array('2'::jsonb, '-600.000', '3000.000'), 'stalled: nudged twice, again an hour after the last'),
    is(switchboard.board_status(:'ada', switchboard.now()) -> 'stalled', '1', 'which the rail says');
update switchboard.queue_stall_nudges set nudges = 5;
select is(test.strip() #> '{stall,next_nudge}', 'null', 'after the fifth no more');
update switchboard.queue_stall_nudges set progressed_at = switchboard.now();
select is(jsonb_build_array(test.strip() -> 'stall', switchboard.board_status(:'ada', switchboard.now()) -> 'stalled'), jsonb_build_array('null'::jsonb, '0'::jsonb), 'not stalled any more once somebody came');

-- quarantine
select test.clear(), test.receiver('held') as receiver \gset
select switchboard.hold_webhook(:'receiver', true), test.made(test.deliver('held', '{"a": 1}', 'd-1', 'push')) as held \gset
select is(test.exchange() #> '{totals,quarantined}', '1', 'counted apart'), is(test.exchange() #> '{totals,waiting}', '0', 'not as waiting'), is(test.ids(test.exchange()), '{}', 'and on no list'), is(test.strip('quarantine'), null, 'nor on a strip');
select is(test.ids(test.exchange('{"state": "quarantined"}')), array[:'held'], 'but its own');
select is(jsonb_build_array(p ->> 'state', p ->> 'meant_for', p #> '{actions,claim}', p #> '{actions,retry}', p #> '{actions,release_quarantined}', p #> '{actions,discard_quarantined}', p -> 'admission'), jsonb_build_array('quarantined', 'q', 'false'::jsonb, 'false'::jsonb, 'true'::jsonb, 'true'::jsonb, 'null'::jsonb), 'its page: let in or discarded'),
    is((p -> 'event') - '{id,received}'::text[], '{"source_type": "github", "event_type": "push", "delivery_id": "d-1", "trust_mode": "signed", "verified": true, "verification": {"scheme": "github", "secret": "current"}}', 'and what it was made of') from test.page(:'held') p;
select is(switchboard.board_status(:'ada', switchboard.now()) -> 'quarantined', '1', 'the rail says it');
select switchboard.discard_quarantined(:'held', :'ada') \g /dev/null
select is(jsonb_build_array(test.page(:'held') ->> 'state', test.page(:'held') #> '{actions,retry}', test.page(:'held') #> '{actions,discard_quarantined}'), jsonb_build_array('dead', 'false'::jsonb, 'false'::jsonb), 'discarded: dead for good'),
    is(test.exchange() #> '{totals,dead}', '0', 'and no dead letter that somebody could retry');
update switchboard.todos set event_id = test.unknown()::uuid;
select is(jsonb_build_array(test.page(:'held') -> 'event', test.page(:'held') ? 'meant_for'), jsonb_build_array('null'::jsonb, false), 'a delivery that is not kept any more');

-- the page of a todo
select test.clear(), (switchboard.create_todo(test.a(), 'q', repeat('long ', 60), '{"a": [1, {"b": "<i>"}]}', 'key', 'kind', 'source', 'ann', 3)).id as long \gset
select is(jsonb_build_array(length(p ->> 'title'), (length(test.exchange() #>> '{todos,0,title}'))), jsonb_build_array(299, 160), 'titles are whole on the page, cut in lists'),
    is(p -> 'payload', jsonb_build_object('text', E'{\n    "a": [\n        1,\n        {\n            "b": "<i>"\n        }\n    ]\n}', 'bytes', 24, 'cut', false), 'a payload, as it is'),
    is(jsonb_build_array(p -> 'result', p -> 'mine', p #> '{actions,claim}', p ->> 'assignee', p ->> 'key', p ->> 'kind', p ->> 'source', p -> 'max_attempts'), jsonb_build_array('null'::jsonb, 'false'::jsonb, 'false'::jsonb, 'ann', 'key', 'kind', 'source', '3'::jsonb), 'meant for somebody else') from test.page(:'long') p;
select (switchboard.create_todo(test.a(), 'q', 'big', jsonb_build_object('x', repeat('ä', 20000)))).id as big, (switchboard.create_todo(test.a(), 'q', 'none')).id as none \gset
select is(jsonb_build_array(length(p #>> '{payload,text}'), p #> '{payload,cut}', p #> '{payload,bytes}'), jsonb_build_array(16384, 'true'::jsonb, '40009'::jsonb), 'a large one is cut'), is(test.page(:'none') -> 'payload', 'null', 'and an empty one is none') from test.page(:'big') p;
select switchboard.claim_any_endpoint(:'none', 120, :'ada') \g /dev/null
select is(jsonb_build_array(p -> 'mine', p ->> 'owner', p #> '{actions,force}', p #> '{actions,extend}', p #> '{actions,claim}', p -> 'lease_span', p #>> '{lease,in}', p #>> '{claimed,in}'), jsonb_build_array('true'::jsonb, 'op:Ada', 'false'::jsonb, 'true'::jsonb, 'false'::jsonb, '120'::jsonb, '120.000', '0.000'), 'what I hold needs no force') from test.page(:'none') p;
select switchboard.fail_any_endpoint(:'none', '{"error": "x"}', :'ada') \g /dev/null
select is(jsonb_build_array(p ->> 'state', p #> '{actions,retry}', p #> '{actions,claim}', p #> '{actions,complete}', (p #>> '{retry,in}')::numeric > 0, p #>> '{result,text}'), jsonb_build_array('parked', 'true'::jsonb, 'false'::jsonb, 'false'::jsonb, true, E'{\n    "error": "x"\n}'), 'parked: may be retried, not claimed before its time') from test.page(:'none') p;
select is(test.page(:'none') -> 'timeline', jsonb_build_array(jsonb_build_object('seq', 1, 'attempt', 1, 'owner', 'op:Ada', 'outcome', 'failed', 'state', 'failed', 'summary', 'x',
    'claimed', switchboard.board_time(switchboard.now(), switchboard.now()), 'ended', switchboard.board_time(switchboard.now(), switchboard.now()))), 'and what happened');
select test.pass('1 h') \g /dev/null
select is(test.page(:'none') #> '{actions,claim}', 'true', 'when it is due it can be claimed');
insert into switchboard.todo_attempts (endpoint_id, todo_id, seq, attempt, claimed_at, ended_at, queue, owner, outcome, state) select test.a()::uuid, :'none', n, 1, switchboard.now(), switchboard.now(), 'q', 'w', 'released', 'pending' from generate_series(2, 60) n;
select is(jsonb_build_array(jsonb_array_length(p -> 'timeline'), p #> '{timeline,0,seq}', p #> '{timeline,49,seq}', p -> 'timeline_more'), jsonb_build_array(50, '11'::jsonb, '60'::jsonb, '10'::jsonb), 'the newest 50 attempts, oldest first') from test.page(:'none') p;
update switchboard.todos set claims = 60 where id = :'none';
select switchboard.set_default_lease(test.a(), 900) \g /dev/null
select is(test.page(:'none') #> '{actions,lease_default}', '900', 'the lease that a claim gets');
select switchboard.claim_any_endpoint(:'none', 60, :'ada'), switchboard.complete_any_endpoint(:'none', '"fine"', :'ada') \g /dev/null
select is(jsonb_build_array(p ->> 'state', p #>> '{completed,in}', p #>> '{result,text}', (select bool_or(v::boolean) from jsonb_each_text(p -> 'actions') a(k, v) where k <> 'lease_default')), jsonb_build_array('done', '0.000', '"fine"', false), 'done: nothing to do') from test.page(:'none') p;

-- filters and pages of the list
select test.clear() \g /dev/null
create table test.many (n int primary key, id text);
do $$ begin for n in 1..65 loop perform test.pass('1 s'); insert into test.many values (n, test.create(p_queue => case when n % 2 = 0 then 'q' else 'inbox' end, p_key => 'key ' || n)); end loop; end $$;
create function test.pages(p_filter jsonb) returns text[] language plpgsql as $$
declare
    v_page jsonb := test.exchange(p_filter);
    v_ids text[] := test.ids(v_page);
begin
    while v_page ->> 'next' is not null loop
        v_page := test.exchange(p_filter || jsonb_build_object('before', v_page ->> 'next'));
        v_ids := v_ids || test.ids(v_page);
    end loop;
    return v_ids;
end
$$;
select is(test.pages('{}'), array(select id from test.many order by n desc), 'page by page all 65, each once, without gaps');
select is(test.pages('{"state": "waiting"}'), array(select id from test.many order by n desc), 'of a state'), is(test.pages('{"q": "a t"}'), array(select id from test.many order by n desc), 'of a search');
select is(test.pages('{"queue": "q"}'), array(select id from test.many where n % 2 = 0 order by n desc), 'of a queue: 32'), is(test.exchange('{"queue": "q"}') ->> 'next', (select id from test.many where n = 6), 'the cursor is the last id of the page');
delete from switchboard.todos where id::text in (select id from test.many where n > 30 and n % 2 = 1 or n <= 5);
select is(jsonb_build_array(jsonb_array_length(test.exchange('{"state": "waiting", "queue": "inbox"}') -> 'todos'), test.exchange('{"state": "waiting", "queue": "inbox"}') -> 'next'), jsonb_build_array(12, 'null'::jsonb), 'no cursor at the end');
select is(test.exchange('{"endpoint": "", "queue": "", "state": "", "q": "", "before": ""}') - 'filter', test.exchange() - 'filter', 'empty arguments are none');
select is(test.ids(test.exchange('{"q": "key 40"}')), array[(select id from test.many where n = 40)], 'found by key'), is(test.ids(test.exchange(jsonb_build_object('q', (select id from test.many where n = 40), 'queue', 'inbox', 'state', 'dead'))), array[(select id from test.many where n = 40)], 'an id is found whatever the filter stands at');
select is(test.exchange(jsonb_build_object('endpoint', :'slug_a', 'state', 'dead', 'q', 'zzz')) - '{totals,endpoints,endpoints_more,choices}'::text[], jsonb_build_object('todos', '[]'::jsonb, 'next', null, 'filter', jsonb_build_object('endpoint', :'slug_a', 'state', 'dead', 'q', 'zzz', 'queue', null, 'before', null)), 'the filter comes back');
select is(test.exchange() -> 'choices', '{"endpoints": ["test-a", "test-a2"], "queues": ["inbox", "q", "quarantine", "r"]}', 'what there is to choose');
select test.invalid(format('select test.exchange(%L)', jsonb_build_object(f, 'x')), f, 'refused: ' || f) from unnest('{state,before}'::text[]) f;

-- tenancy: foreign and unknown are one
select test.make('claimed', 'b') as foreign \gset
select is((select count(distinct test.error_of(format('select test.page(%L)', i))) from unnest(array[:'foreign', test.unknown(), 'x', '', null]) i), 1::bigint, 'a todo of somebody else, and none at all');
select test.not_found(format('select test.page(%L)', :'foreign'), 'it is not there');
select is((select count(distinct test.error_of(format('select test.exchange(%L)', jsonb_build_object('endpoint', e)))) from unnest(array['test-b', test.b(), test.unknown(), 'nobody']) e), 1::bigint, 'an endpoint of somebody else, and none at all');
select test.not_found($$ select test.exchange('{"endpoint": "test-b"}') $$, 'it is not there, either');
select is(test.exchange('{}', 'b') -> 'totals', '{"waiting": 0, "deferred": 0, "connected": 1, "parked": 0, "dead": 0, "done": 0, "quarantined": 0}', 'Bob sees what is Bob''s');
select is(test.ids(test.exchange('{}', 'b')), array[:'foreign'], 'his todo'), is((select array_agg(e ->> 'slug') from jsonb_array_elements(test.exchange('{}', 'b') -> 'endpoints') e), '{test-b}', 'his endpoint'), is(test.exchange('{}', 'b') #> '{choices,endpoints}', '["test-b"]', 'his choices');
select is(strpos(test.exchange('{}', 'b')::text, e), 0, 'and nothing of Ada''s: ' || e) from unnest(array[test.a(), 'test-a', (select id from test.many where n = 40), 'key 40']) e;

-- the rail
update switchboard.sweeps set last_run_at = switchboard.now() - interval '30 s', last_error = null;
select is(switchboard.board_status(:'ada', switchboard.now()) - '{stalled,dead,quarantined,hooks_off}'::text[], jsonb_build_object('sweep', switchboard.board_time(switchboard.now() - interval '30 s', switchboard.now()), 'sweep_level', 'ok', 'sweep_error', null), 'sweeps: ok');
update switchboard.sweeps set last_run_at = switchboard.now() - interval '91 s' where name = (select min(name) from switchboard.sweeps);
select is(jsonb_build_array(s ->> 'sweep_level', s #>> '{sweep,in}'), jsonb_build_array('late', '-91.000'), 'late: the one that ran longest ago counts') from switchboard.board_status(:'ada', switchboard.now()) s;
update switchboard.sweeps set last_error = '40001' where name = 'prune';
select is(jsonb_build_array(s ->> 'sweep_level', s ->> 'sweep_error'), jsonb_build_array('error', 'prune'), 'an error is said by name') from switchboard.board_status(:'ada', switchboard.now()) s;
select test.clear(), test.make('dead'), test.make('dead', 'b'), test.make('dead', 'b') \g /dev/null
select is(switchboard.board_status(:'ada', switchboard.now()) -> 'dead', '1', 'dead letters of one''s own'), is(switchboard.board_status(:'bob', switchboard.now()) -> 'dead', '2', 'and of Bob''s');

-- 50 queues are what there is room for: an endpoint is shown whole, or not at all
select test.vend('wide' || n, :'bob', (select array_agg('q' || lpad(q::text, 2, '0')) from generate_series(1, 20) q)) from generate_series(1, 4) n \g /dev/null
select is((select array_agg(e ->> 'slug' order by o) from jsonb_array_elements(test.exchange('{}', 'b') -> 'endpoints') with ordinality s (e, o)), '{test-b,test-wide1,test-wide2}', '3 + 20 + 20 queues'), is(test.exchange('{}', 'b') -> 'endpoints_more', '2', 'and two endpoints more');
select test.create('wide4', 'q01') \g /dev/null
select is(test.exchange('{}', 'b') #> '{totals,waiting}', '1', 'whose todos are in the totals');
select test.create('wide1', 'q01') from generate_series(1, 20) \g /dev/null
select is(max(jsonb_array_length(q -> 'lamps')), 8, 'and the lamps are shared: 8 for each') from jsonb_array_elements(test.exchange('{}', 'b') #> '{endpoints,1,queues}') q;
select test.vend('e' || n, :'ada', '{q}') from generate_series(1, 30) n \g /dev/null
select is(jsonb_build_array(jsonb_array_length(test.exchange() -> 'endpoints'), test.exchange() -> 'endpoints_more'), jsonb_build_array(24, '7'::jsonb), 'no more than 24 endpoints');
select test.vend('a-first', id, (select array_agg('q' || q) from generate_series(1, 32) q)), test.vend('z-second', id, (select array_agg('q' || q) from generate_series(1, 32) q)) from switchboard.humans where name = 'Eve' \g /dev/null
select is((select jsonb_array_length(switchboard.board_exchange(id, '{}', switchboard.now()) -> 'endpoints') from switchboard.humans where name = 'Eve'), 1, 'the first one always');

-- one endpoint, as its own page shows it
select is(test.has(switchboard.board_endpoint(e, switchboard.now()), 'id slug line attached last_seen expires revoked held held_total queues'), '{}', 'an endpoint alone'), is(switchboard.board_endpoint(e, switchboard.now()) #> '{queues,0,queue}', '"inbox"', 'with its queues') from switchboard.endpoints e where e.slug = 'test-a';

-- a document is cut by what it weighs in HTML
select is((d ->> 'cut')::boolean and length(d ->> 'text') between 4000 and 6000, true, 'of text that is long in HTML there is less') from switchboard.board_document(to_jsonb(repeat('&', 20000))) d;
select is(length(d ->> 'text'), 16384, 'of other text its first 16,384 characters') from switchboard.board_document(to_jsonb(repeat('a', 20000))) d;

select * from finish();
