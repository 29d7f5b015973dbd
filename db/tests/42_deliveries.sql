-- functions/42_deliveries: what a delivery becomes, on one target and on several; counters; read_event.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready') \g /dev/null
select test.grant_all(e) from unnest('{a,a2,b}'::text[]) e \g /dev/null
select test.receiver('token a', 'a', 'github', 'inbox') as hook \gset

-- a delivery becomes an event and a todo
select test.deliver('token a', '{"action": "opened", "n": 1.0}', 'd1', 'pull_request') as got \gset
select ok(:'got'::jsonb @> jsonb_build_object('created', 1, 'verified', true, 'trust_mode', 'signed', 'todos', jsonb_build_array(jsonb_build_object('endpoint_id', test.a(), 'queue', 'inbox', 'created', true))), 'the answer of interfaces.md');
select is((select array_agg(k order by k) from jsonb_object_keys(:'got'::jsonb) k), '{created,todos,trust_mode,verified}', 'and nothing more');
select (:'got'::jsonb #>> '{todos,0,id}') as id \gset
select ok(to_jsonb(t) @> '{"state": "pending", "payload": {"action": "opened", "n": 1.0}, "kind": "pull_request", "source": "github", "trust_mode": "signed", "verified": true, "title": "pull request opened", "max_attempts": 5}' and t.event_id is not null, 'the todo carries the document')
    from switchboard.get_todo(test.a(), :'id') t;
select is((switchboard.get_todo(test.a(), :'id')).idempotency_key, :'hook' || ':d1', 'its key is <webhook_id>:<delivery id>');
select is((select convert_from(body, 'UTF8') || headers || verification from switchboard.events), '{"action": "opened", "n": 1.0}{"x": "y"}{"scheme": "github", "secret": "current"}', 'the event holds the bytes, the headers, and how it was verified');
select is((select (e.endpoint_id::text, e.todo_id::text, e.webhook_id::text, e.source_type, e.queue, e.delivery_id, e.event_type, e.content_type, e.trust_mode, e.received_at) from switchboard.events e),
    (test.a(), :'id'::text, :'hook'::text, 'github'::text, 'inbox'::text, 'd1'::text, 'pull_request'::text, 'application/json'::text, 'signed'::text, switchboard.now()), 'and what it was');
select is(test.heard('todo_ready'), array[test.a() || ':inbox'], 'and it rings');

-- the same delivery again
select test.deliver('token a', '{"other": "body"}', 'd1') as again \gset
select is(:'again'::jsonb #> '{todos,0}', jsonb_build_object('id', :'id', 'endpoint_id', test.a(), 'queue', 'inbox', 'created', false), 'fault 41: the same id while its todo is live is the same todo, whatever the body');
select is((:'again'::jsonb -> 'created'), '0', 'fault 41: and nothing was created');
select is((select count(*) from switchboard.events), 1::bigint, 'fault 41: nor stored');
select is(test.heard('todo_ready'), '{}', 'fault 41: nor rung');
select test.finish(:'id') \g /dev/null
select isnt(test.made(test.deliver('token a', '{}', 'd1')), :'id', 'fault 41: after completion it is a new todo');
select is(test.made(test.deliver('token a', '{"no": "id"}')), test.made(test.deliver('token a', '{"no": "id"}')), 'fault 41: without an id the body''s hash is the id');
select is((select split_part(idempotency_key, ':', 2) from switchboard.todos where payload = '{"no": "id"}'), encode(test.digest('{"no": "id"}'), 'hex'), 'in hex');
select is(length(test.stored(test.made(test.deliver('token a', '{}', repeat('d', 257)))) ->> 'idempotency_key'), 101, 'an id of more than 256 bytes is hashed');
select test.receiver('token a2') \g /dev/null
select is(test.deliver('token a2', '{}', 'd1') -> 'created', '1', 'fault 41: the same id through another receiver is another todo');

-- trust, by type, and the event as the document names it
select test.receiver('of ' || s, 'b', s) from (select source_type from switchboard.source_types()) t(s) \g /dev/null
select ok(d @> jsonb_build_object('trust_mode', s.trust_mode, 'verified', s.trust_mode = 'signed', 'created', 1) and test.stored(test.made(d, 'b')) @> jsonb_build_object('trust_mode', s.trust_mode, 'verified', s.trust_mode = 'signed', 'source', s.source_type), 'trust of ' || s.source_type)
    from switchboard.source_types() s, lateral test.deliver('of ' || s.source_type, '{"trust_mode": "operator", "verified": true}', 'trust', 'operator') d;
create function test.seen(p_id text) returns text[] language sql as $$
    select array[e.delivery_id, e.event_type, t.title] from switchboard.todos t join switchboard.events e on (e.endpoint_id, e.id) = (t.endpoint_id, t.event_id) where t.id::text = p_id
$$;
select is(test.seen(test.made(d, 'b')), array[i, e, t], format('%s without headers: %s %s', s, i, e)) from (values ('stripe', '{"id": "evt_1", "type": "invoice.paid"}', 'evt_1', 'invoice.paid', 'stripe invoice.paid evt_1'),
    ('slack', '{"event_id": "Ev1", "event": {"type": "message", "text": "help"}}', 'Ev1', 'message', 'slack message Ev1: help'), ('cairn', '{"event_id": "c1", "type": "alarm"}', 'c1', 'alarm', 'cairn alarm c1')) v(s, b, i, e, t), lateral test.deliver('of ' || s, b, null, null) d;

-- who only asks whether anybody is there
select is(test.deliver('token a', '{"zen": "z", "hook_id": 1}', 'p1', 'ping'), '{"todos": [], "created": 0, "verified": true, "trust_mode": "signed"}', 'GitHub''s ping is answered');
select is(test.deliver('token a', 'payload=x', 'p2', 'ping', '{"zen": "z"}') -> 'created', '0', 'a form-encoded one, too');
select is(test.deliver('of slack', '{"type": "url_verification", "challenge": "c", "event_id": "Ev9"}', null, null), '{"challenge": "c"}', 'Slack''s url_verification gets its challenge');
select is((select count(*) from switchboard.events where delivery_id in ('p1', 'p2', 'Ev9')), 0::bigint, 'neither makes work');

-- what a todo cannot carry stays in the event
create table test.odd (n serial, name text, body text, id text);
insert into test.odd (name, body) values ('NUL', '{"a": "\u0000"}'), ('a lone surrogate', '"\ud800"'), ('a long number', '[1e131000]'), ('depth 10,000', repeat('[', 10000) || repeat(']', 10000)), ('depth 1,000,000', repeat('[', 1000000)),
    ('too large', to_json(repeat('x', 300000))::text), ('not JSON', 'payload=%7B%7D'), ('empty', ''), ('null', 'null'), ('a NUL of its own', 'x');
update test.odd set id = test.made(test.deliver('token a', body)) where name <> 'a NUL of its own';
update test.odd set body = null, id = test.made(switchboard.receive_delivery(test.digest('token a'), null, 'push', '{}', '\x7b00ff7d', 'application/json')) where name = 'a NUL of its own';
select ok(t.payload ?& '{event_id,bytes,content_type,reason}'::text[] and (t.payload ->> 'bytes')::int = coalesce(octet_length(o.body), 4) and t.payload ->> 'event_id' = t.event_id::text, 'fault 43: taken in, with the body in the event: ' || o.name)
    from test.odd o left join switchboard.todos t on t.id::text = o.id;
select is((select e.body from switchboard.events e where e.todo_id::text = o.id), coalesce(convert_to(o.body, 'UTF8'), '\x7b00ff7d'), 'fault 43: byte for byte: ' || o.name) from test.odd o;
select is(test.stored(test.made(test.deliver('token a', b))) -> 'payload', b::jsonb, 'fault 42: a document: ' || b) from unnest(array['[]', '"x"', '0', '{"é": "\u00e9<>&"}', '[1.0]']) b;
select is(test.stored(id) -> 'payload', '{"a": "é"}', 'fault 42: a document with ' || n) from (values ('a BOM', E'\uFEFF{"a": "é"}'), ('CRLF', E'{"a":\r\n"é"}'), ('a trailing newline', E'{"a": "\\u00e9"}\n')) v(n, b), lateral test.made(test.deliver('token a', b)) id;
select is((select convert_from(body, 'UTF8') from switchboard.events where substring(body for 3) = '\xefbbbf'), E'\uFEFF{"a": "é"}', 'fault 42: whose event has the bytes as they came');
select is(test.stored(test.made(test.deliver('token a', E'\uFEFF\uFEFF{}'))) -> 'payload' ->> 'reason', 'the body is not JSON that can be stored', 'of two BOMs the second is no JSON');
-- of a form the field is the document, the event the form
select test.made(test.deliver('token a', 'payload=%7B%22number%22%3A7%7D', 'form', 'issues', '{"number": 7, "action": "opened"}', 'application/x-www-form-urlencoded')) as form \gset
select ok(test.stored(:'form') @> '{"payload": {"number": 7, "action": "opened"}, "title": "issues #7 opened"}', 'fault 43: a form''s document');
select is((select convert_from(body, 'UTF8') || ' ' || content_type from switchboard.events where todo_id::text = :'form'), 'payload=%7B%22number%22%3A7%7D application/x-www-form-urlencoded', 'fault 43: and its bytes');
select test.made(test.deliver('token a', 'payload=%7B', 'bad form', 'issues', '{', 'application/x-www-form-urlencoded')) as form \gset
select ok(test.stored(:'form') -> 'payload' @> '{"bytes": 11, "content_type": "application/x-www-form-urlencoded", "reason": "the body is not JSON that can be stored"}', 'fault 43: a form whose field is no JSON');
select is(test.stored(test.made(test.deliver('token a', '{"head_commit": {"message": "Large"}, "x": ' || to_json(repeat('x', 300000)) || '}', 'large', 'push'))) ->> 'title', 'push: Large', 'one that is too large has its title all the same');

-- read_event
select test.event_of(id) as event from test.odd where name = 'too large' \gset
select ok(e @> '{"bytes": 300002, "offset": 0, "next_offset": 16384, "content_type": "application/json"}' and length(e ->> 'text') = 16384, 'a first piece') from switchboard.read_event(test.a(), :'event') e;
select ok(e @> '{"offset": 300000}' and e ->> 'text' = 'x"' and not e ? 'next_offset', 'the last piece') from switchboard.read_event(test.a(), :'event', 300000) e;
select ok(e ->> 'text' = '' and not e ? 'next_offset', 'beyond the end: ' || o) from unnest('{300002,400000,999999999,2147483647}'::int[]) o, switchboard.read_event(test.a(), :'event', o) e;
select test.event_of(test.made(test.deliver('token a', 'aäöü', 'utf'))) as utf \gset
select ok(e ->> 'text' = 'a' and e -> 'next_offset' = '1', 'a piece does not end within a character') from switchboard.read_event(test.a(), :'utf', 0, 2) e;
select ok(e ? 'base64' or length(e ->> 'text') > 0, 'nor does it stand still: a piece of one byte') from switchboard.read_event(test.a(), :'utf', 1, 1) e;
create function test.read_all(p_event text, p_limit int) returns bytea language plpgsql as $$
declare
    v_piece jsonb := '{"next_offset": 0}';
    v_all bytea := '';
begin
    while v_piece ? 'next_offset' loop
        v_piece := switchboard.read_event(test.a(), p_event, (v_piece ->> 'next_offset')::int, p_limit);
        v_all := v_all || coalesce(convert_to(v_piece ->> 'text', 'UTF8'), decode(v_piece ->> 'base64', 'base64'));
    end loop;
    return v_all;
end
$$;
select is(test.read_all(test.event_of(o.id), case when e.bytes > 100000 then 30000 else l end), e.body, format('piece by piece of %s it is the body: %s', l, o.name)) from test.odd o join lateral (select body, octet_length(body) as bytes from switchboard.events v where v.todo_id::text = o.id) e on true, unnest('{1,7,16384}'::int[]) l where l > 1 or e.bytes < 100;
select test.invalid(format('select switchboard.read_event(test.a(), %L, %s, %s)', :'event', o, l), f, format('offset %s, limit %s', o, l)) from (values (-1, 1, 'offset'), (0, 0, 'limit'), (0, -1, 'limit')) v(o, l, f);
select test.not_found(format('select switchboard.read_event(%L, %L)', e, i), n) from (values (test.b(), :'event', 'a foreign event'), (test.endpoint('a2'), :'event', 'another endpoint of the same human'), (test.a(), test.unknown(), 'an unknown one'), (test.a(), 'x', 'a malformed id'), (null, :'event', 'no endpoint')) v(e, i, n);

-- over routes: one event and one todo a live target, each deduplicated in its own endpoint
select test.clear() \g /dev/null
truncate switchboard.events, switchboard.delivery_totals;
select test.vend('a3', test.human('a'), '{inbox}'), test.vend('a4', test.human('a'), '{inbox,q}') \g /dev/null
select switchboard.add_webhook_route(test.a(), :'hook', 'test-' || e) from unnest('{a4,a2,a3}'::text[]) e \g /dev/null
select test.heard('todo_ready') \g /dev/null
select test.deliver('token a', '{"k": 1}', 'f1') as got \gset
select is(test.outcomes(:'got'), '{a inbox new,a2 inbox new,a3 inbox new,a4 inbox new}', 'a delivery over three routes is four todos');
select is(:'got'::jsonb -> 'created', '4', 'created 4');
select is(array(select (t ->> 'endpoint_id')::uuid from jsonb_array_elements(:'got'::jsonb -> 'todos') with ordinality u(t, n) order by n), array(select id::uuid from test.endpoints where name in ('a', 'a2', 'a3', 'a4') order by 1), 'made in order of endpoint, so that two deliveries cannot wait for each other');
select is(test.heard('todo_ready'), (select array_agg(id || ':inbox' order by id || ':inbox') from test.endpoints where name in ('a', 'a2', 'a3', 'a4')), 'each rings on its endpoint');
select is((select array_agg(distinct e.id) from switchboard.events e), (select array_agg(distinct t.event_id) from switchboard.todos t), 'all share the event''s id');
select is((select array_agg(n.name || ' ' || (e.todo_id = t.id) order by n.name) from switchboard.events e join switchboard.todos t on t.endpoint_id = e.endpoint_id join test.endpoints n on n.id = e.endpoint_id::text), '{a true,a2 true,a3 true,a4 true}', 'stored once on each, with its own todo');
select is((select array_agg(distinct convert_from(e.body, 'UTF8') || e.queue) from switchboard.events e), '{"{\"k\": 1}inbox"}', 'the bytes and the queue on each');
select is(switchboard.read_event(t.endpoint_id::text, t.event_id::text) ->> 'text', '{"k": 1}', 'each reads its own') from switchboard.todos t;
select is((select jsonb_agg(t - 'created' order by t ->> 'id') from jsonb_array_elements(test.deliver('token a', '{"k": 2}', 'f1') -> 'todos') t), (select jsonb_agg(t - 'created' order by t ->> 'id') from jsonb_array_elements(:'got'::jsonb -> 'todos') t), 'again: the same four ids');
select test.finish(test.made(:'got', 'a3'), 'a3') \g /dev/null
select is(test.outcomes(test.deliver('token a', '{"k": 3}', 'f1')), '{a inbox old,a2 inbox old,a3 inbox new,a4 inbox old}', 'a target whose todo has ended gets a new one, the others keep theirs');
select is((select count(*) || ' ' || count(distinct id) from switchboard.events), '5 2', 'and an event of its own');

-- who is left out
select switchboard.revoke_endpoint(test.endpoint('a3')), switchboard.set_grant(test.endpoint('a4'), '{q}') \g /dev/null
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.endpoint('a2');
select is(test.outcomes(test.deliver('token a', '{}', 'f2')), '{a inbox new}', 'revoked, expired, the queue no longer granted: not these');
select switchboard.set_grant(test.endpoint('a4'), '{inbox}'), switchboard.set_grant(test.a(), '{q}') \g /dev/null
update switchboard.endpoints set expires_at = null where id::text = test.endpoint('a2');
select is(test.outcomes(test.deliver('token a', '{}', 'f3')), '{a2 inbox new,a4 inbox new}', 'nor the owner, when it may not take it');
select switchboard.set_grant(test.a(), '{q,inbox}'), switchboard.revoke_endpoint(test.a()) \g /dev/null
select is(test.outcomes(test.deliver('token a', '{}', 'f4')), '{a2 inbox new,a4 inbox new}', 'nor one that is revoked: its routes go on');
select ok(switchboard.webhook_for(test.digest('token a')) is not null, 'so it is still looked up');
update switchboard.endpoints set expires_at = switchboard.now() where id::text in (test.endpoint('a2'), test.endpoint('a4'));
create table test.stored_before as select (select count(*) from switchboard.events) as events, (select count(*) from switchboard.todos) as todos;
select is(test.deliver('token a', '{}', 'f5'), '{"error": {"code": "unavailable", "message": "this receiver has no active endpoint: ask its owner"}}', 'none is live: unavailable');
select is(test.code(test.deliver('token a', '{}', 'f6', 'ping')), 'unavailable', 'for a ping, too');
select is(((select count(*) from switchboard.events), (select count(*) from switchboard.todos)), (select (events, todos) from test.stored_before), 'and nothing is stored');
update switchboard.endpoints set expires_at = null where id::text = test.endpoint('a2');
select is(test.deliver('token a', '{}', 'f5') -> 'created', '1', 'nor used up');
select is(test.code(test.deliver('no such token', '{}')), 'not_found', 'an unknown token');

-- the counters add up
select results_eq($$ select provider || ' ' || trust_mode || ' ' || verdict || ' ' || reason || ' ' || total from switchboard.delivery_counts() $$, $$ values ('github signed accepted  6'), ('github signed duplicate  1'), ('github signed no_target  2') $$, 'what was taken is counted by what became of it');
select test.deliver('of github', '{}', 'c1'), test.deliver('of github', '{}', 'c1', 'ping'), test.deliver('of open', '{}', 'c1'), test.deliver('of open', '{}', 'c1'), test.deliver('no such token') \g /dev/null
select switchboard.count_deliveries('[{"provider": "github", "trust_mode": "signed", "verdict": "refused", "reason": "mismatch", "n": 3}, {"provider": "github", "trust_mode": "signed", "verdict": "refused", "reason": "mismatch", "n": 2}, {"provider": "stripe", "trust_mode": "signed", "verdict": "refused", "reason": "stale", "n": 1},
    {"verdict": "refused", "reason": "missing", "n": 4}, {"provider": "", "trust_mode": "", "verdict": "limited", "n": 7}, {"verdict": "accepted", "n": 100}, {"verdict": "refused", "reason": "x", "n": 0}, {"verdict": "refused", "reason": "x", "n": -5}, {"n": 9}]'), switchboard.count_deliveries(c) from unnest(array['[]', null]::jsonb[]) c \g /dev/null
select set_eq($$ select provider || ' ' || trust_mode || ' ' || verdict || ' ' || reason || ' ' || total from switchboard.delivery_counts() $$, $$ values ('github signed accepted  7'), ('github signed duplicate  1'), ('github signed no_target  2'), ('github signed silent  1'), ('open open accepted  1'), ('open open duplicate  1'),
    ('github signed refused mismatch 10'), ('stripe signed refused stale 2'), ('  refused missing 8'), ('  limited  14') $$, 'and what was refused before, by reason; nothing else may be claimed');
select test.connect('other') \g /dev/null
select test.there('other', $$ do $b$ begin perform test.deliver('of github', '{}', 'c2'); end $b$ $$) \g /dev/null
select is((select total from switchboard.delivery_counts() where provider = 'github' and verdict = 'accepted'), 8::bigint, 'over sessions');
begin;
select test.deliver('of github', '{}', 'c3') \g /dev/null
rollback;
select is((select total from switchboard.delivery_counts() where provider = 'github' and verdict = 'accepted'), 8::bigint, 'and only what was committed');
select is(test.as_login(test.login('looks', 'switchboard_readonly'), 'select sum(total) as n from switchboard.delivery_counts()') -> 0 ->> 'n', (select sum(total)::text from switchboard.delivery_counts()), 'anybody who looks sees them');

-- events go with their retention, those of live todos stay
select test.clear(), test.real_time() \g /dev/null
truncate switchboard.events;
select test.made(test.deliver('of github', '{}', 'live'), 'b') as live, test.made(test.deliver('of github', '{}', 'ended'), 'b') as ended \gset
select test.finish(:'ended', 'b') \g /dev/null
truncate switchboard.todo_attempts; -- else the fold waits for the transactions of other tests
select test.at(clock_timestamp() + interval '40 d'), switchboard.prune() \g /dev/null
select is((select array_agg(delivery_id) from switchboard.events), '{live}', 'an event of a live todo is kept, however old');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
