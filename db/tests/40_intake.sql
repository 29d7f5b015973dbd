-- functions/40_intake: receivers and deliveries.
select no_plan();
select test.set_up(), test.stop_clock(), test.listen('todo_ready') \g /dev/null
create function test.digest(p_text text) returns bytea language sql immutable as $$ select sha256(convert_to(p_text, 'UTF8')) $$;
-- A delivery as the shell passes it on.
create function test.deliver(p_token text, p_body text, p_delivery_id text default null, p_event text default 'push') returns jsonb language sql as $$
    select switchboard.receive_delivery(test.digest(p_token), p_delivery_id, p_event, '{"x": "y"}', convert_to(p_body, 'UTF8'), 'application/json', p_body)
$$;

-- receivers
select switchboard.create_webhook(test.a(), 'github', 'inbox', '\xaa', test.digest('token a')) as made \gset
select is(:'made'::jsonb - 'webhook_id', '{"source_type": "github", "target_queue": "inbox", "trust_mode": "signed"}', 'a receiver is made');
select is(switchboard.webhook_for(test.digest('token a')), jsonb_build_object('webhook_id', :'made'::jsonb ->> 'webhook_id', 'endpoint_id', test.a(), 'source_type', 'github', 'sealed_secrets', '["aa"]'::jsonb), 'and found by its token');
select is(switchboard.webhook_for(d), null, 'but not by another') from unnest(array[test.digest('x'), '\x', null]) d;
select is((select array_agg(webhook_id::text) from switchboard.list_webhooks(test.a())), array[:'made'::jsonb ->> 'webhook_id'], 'it is listed');
select is_empty(format('select * from switchboard.list_webhooks(%L)', e), 'not on ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[test.b(), null, 'x', test.unknown()]) e;
select test.refused($$ select switchboard.create_webhook(test.a(), 'github', 'inbox', '\xaa', test.digest('second')) $$, 'SB411', 'the ceiling of the grant', '{"ceiling": 1}');
select test.invalid($$ select switchboard.create_webhook(test.b(), 'fax', 'inbox', '\xaa', test.digest('t')) $$, 'source_type', 'an unknown source type');
select test.invalid($$ select switchboard.create_webhook(test.b(), 'github', 'Q', '\xaa', test.digest('t')) $$, 'queue', 'a malformed queue');
select test.forbidden(format($$ select switchboard.create_webhook(test.b(), 'github', %L, '\xaa', test.digest('t')) $$, q), 'forbidden: ' || q) from unnest('{other,quarantine}'::text[]) q;
select test.invalid(format($$ select switchboard.create_webhook(test.b(), 'github', 'inbox', %s) $$, s), 'signing_secret', 'without ' || n) from (values ('null, test.digest(''t'')', 'a secret'), ('''\xaa'', null', 'a token'), ('''\xaa'', ''\x00''', 'a whole digest')) v(s, n);
select test.not_found(format($$ select switchboard.create_webhook(%L, 'github', 'inbox', '\xaa', test.digest('t')) $$, e), 'none for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, 'x', test.unknown()]) e;
select endpoint_id::text as narrow from switchboard.vend_endpoint(test.human('a'), 'narrow', '{q}', null, 1, '{}') \gset
select test.forbidden(format($$ select switchboard.create_webhook(%L, 'github', 'q', '\xaa', test.digest('t')) $$, :'narrow'), 'a source type outside the grant');

-- a delivery becomes an event and a todo
select test.heard('todo_ready') \g /dev/null
select test.deliver('token a', '{"action": "opened", "n": 1.0}', 'd1', 'pull_request') as got \gset
select ok(:'got'::jsonb @> jsonb_build_object('created', 1, 'verified', true, 'trust_mode', 'signed', 'todos', jsonb_build_array(jsonb_build_object('endpoint_id', test.a(), 'queue', 'inbox', 'created', true))), 'the answer of interfaces.md');
select is((select array_agg(k order by k) from jsonb_object_keys(:'got'::jsonb) k), '{created,todos,trust_mode,verified}', 'and nothing more');
select (:'got'::jsonb #>> '{todos,0,id}') as id \gset
select ok(to_jsonb(t) @> '{"state": "pending", "payload": {"action": "opened", "n": 1.0}, "kind": "pull_request", "source": "github", "trust_mode": "signed", "verified": true}' and t.event_id is not null, 'the todo carries the document')
    from switchboard.get_todo(test.a(), :'id') t;
select is((switchboard.get_todo(test.a(), :'id')).idempotency_key, (:'made'::jsonb ->> 'webhook_id') || ':d1', 'its key is <webhook_id>:<delivery id>');
select is((select convert_from(body, 'UTF8') || headers from switchboard.events), '{"action": "opened", "n": 1.0}{"x": "y"}', 'the event holds the bytes');
select is(test.heard('todo_ready'), array[test.a() || ':inbox'], 'and it rings');

-- the same delivery again
select test.deliver('token a', '{"other": "body"}', 'd1') as again \gset
select is(:'again'::jsonb #> '{todos,0}', jsonb_build_object('id', :'id', 'endpoint_id', test.a(), 'queue', 'inbox', 'created', false), 'the same id while its todo is live is the same todo, whatever the body');
select is((:'again'::jsonb -> 'created'), '0', 'and nothing was created');
select is((select count(*) from switchboard.events), 1::bigint, 'nor stored');
select is(test.heard('todo_ready'), '{}', 'nor rung');
select switchboard.claim(test.a(), :'id', 'w'), switchboard.complete(test.a(), :'id', 'w') \g /dev/null
select isnt(test.deliver('token a', '{}', 'd1') #>> '{todos,0,id}', :'id', 'after completion it is a new todo');
select is(test.deliver('token a', '{"no": "id"}') #>> '{todos,0,id}', test.deliver('token a', '{"no": "id"}') #>> '{todos,0,id}', 'without an id the body''s hash is the id');
select is((select split_part(idempotency_key, ':', 2) from switchboard.todos where payload = '{"no": "id"}'), encode(test.digest('{"no": "id"}'), 'hex'), 'in hex');
select is(length(test.stored(test.deliver('token a', '{}', repeat('d', 257)) #>> '{todos,0,id}') ->> 'idempotency_key'), 101, 'an id of more than 256 bytes is hashed');
update switchboard.endpoints set webhook_max = 2 where id::text = test.a();
select switchboard.create_webhook(test.a(), 'github', 'q', '\xaa', test.digest('token a2')) \g /dev/null
select is(test.deliver('token a2', '{}', 'd1') -> 'created', '1', 'the same id through another receiver is another todo');

-- what a todo cannot carry stays in the event
create table test.odd (n serial, name text, body text, id text);
insert into test.odd (name, body) values ('NUL', '{"a": "\u0000"}'), ('a lone surrogate', '"\ud800"'), ('a long number', '[1e131000]'), ('depth 10,000', repeat('[', 10000) || repeat(']', 10000)),
    ('too large', to_json(repeat('x', 300000))::text), ('not JSON', 'payload=%7B%7D'), ('empty', ''), ('null', 'null'), ('a BOM', E'\uFEFF{}');
update test.odd set id = test.deliver('token a', body) #>> '{todos,0,id}';
select ok(t.payload ?& '{event_id,bytes,reason}'::text[] and (t.payload ->> 'bytes')::int = octet_length(o.body) and t.payload ->> 'event_id' = t.event_id::text, 'taken in, with the body in the event: ' || o.name)
    from test.odd o left join switchboard.todos t on t.id::text = o.id;
select is(convert_from((select e.body from switchboard.events e join switchboard.todos t on t.event_id = e.id where t.id::text = o.id), 'UTF8'), o.body, 'byte for byte: ' || o.name) from test.odd o;
select is(test.stored(test.deliver('token a', b) #>> '{todos,0,id}') -> 'payload', b::jsonb, 'a document: ' || b) from unnest(array['[]', '"x"', '0', '{"é": "\u00e9<>&"}']) b;

-- read_event
select (select event_id::text from switchboard.todos where id::text = (select id from test.odd where name = 'too large')) as event \gset
select ok(e @> '{"bytes": 300002, "offset": 0, "next_offset": 16384, "content_type": "application/json"}' and length(e ->> 'text') = 16384, 'a first piece') from switchboard.read_event(test.a(), :'event') e;
select ok(e @> '{"offset": 300000}' and e ->> 'text' = 'x"' and not e ? 'next_offset', 'the last piece') from switchboard.read_event(test.a(), :'event', 300000) e;
select ok(e ->> 'text' = '' and not e ? 'next_offset', 'beyond the end') from switchboard.read_event(test.a(), :'event', 400000) e;
select test.deliver('token a', 'aäöü', 'utf') #>> '{todos,0,id}' as utf \gset
select ok(e ->> 'text' = 'a' and e -> 'next_offset' = '1', 'a piece does not end within a character') from switchboard.todos t, switchboard.read_event(test.a(), t.event_id::text, 0, 2) e where t.id::text = :'utf';
select ok(e ? 'base64' or length(e ->> 'text') > 0, 'nor does it stand still: a piece of one byte') from switchboard.todos t, switchboard.read_event(test.a(), t.event_id::text, 1, 1) e where t.id::text = :'utf';
select test.invalid(format('select switchboard.read_event(test.a(), %L, %s, %s)', :'event', o, l), f, format('offset %s, limit %s', o, l)) from (values (-1, 1, 'offset'), (0, 0, 'limit'), (0, -1, 'limit')) v(o, l, f);
select test.not_found(format('select switchboard.read_event(%L, %L)', e, i), n) from (values (test.b(), :'event', 'a foreign event'), (test.a(), test.unknown(), 'an unknown one'), (test.a(), 'x', 'a malformed id'), (null, :'event', 'no endpoint')) v(e, i, n);

-- titles for people
select is(switchboard.delivery_title('github', e, d::jsonb), t, 'the title of ' || coalesce(e, 'nothing')) from (values
    ('pull_request', '{"action": "opened", "repository": {"full_name": "o/r"}, "pull_request": {"number": 7, "title": "Fix\n it"}}', 'o/r pull request #7 opened: Fix it'),
    ('push', '{"ref": "refs/heads/main", "repository": {"full_name": "o/r"}, "head_commit": {"message": "m"}}', 'o/r push main: m'), ('ping', null, 'ping'), (null, '[]', 'github')) v(e, d, t);
select lives_ok(format('select switchboard.delivery_title(''github'', ''push'', %L)', d), 'of any document: ' || d) from unnest(array['{"pull_request": 1, "repository": [], "head_commit": "x", "ref": {}}', '0', '""']) d;
select cmp_ok(length(switchboard.delivery_title('github', 'push', jsonb_build_object('head_commit', jsonb_build_object('message', repeat('x', 5000))))), '<=', 500, 'cut to 500 characters');

-- who gets nothing
select is(test.deliver('no such token', '{}') #>> '{error,code}', 'not_found', 'an unknown token');
select switchboard.create_webhook(test.b(), 'github', 'q', '\xaa', test.digest('token b')), switchboard.revoke_endpoint(test.b()) \g /dev/null
select is(test.deliver('token b', '{}') #>> '{error,code}', 'unavailable', 'a receiver of a revoked endpoint');
select is((select count(*) from switchboard.events where endpoint_id::text = test.b()), 0::bigint, 'which stores nothing');

-- events go with their retention, those of live todos stay
select test.clear(), test.real_time() \g /dev/null
truncate switchboard.events;
select test.deliver('token a', '{}', 'live') #>> '{todos,0,id}' as live, test.deliver('token a', '{}', 'ended') #>> '{todos,0,id}' as ended \gset
select switchboard.claim(test.a(), :'ended', 'w'), switchboard.complete(test.a(), :'ended', 'w') \g /dev/null
select test.at(clock_timestamp() + interval '40 d'), switchboard.fold_attempts(), switchboard.prune() \g /dev/null
select is((select array_agg(delivery_id) from switchboard.events), '{live}', 'an event of a live todo is kept, however old');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
