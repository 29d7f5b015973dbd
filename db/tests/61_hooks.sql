-- functions/61_hooks: hooks, what is written to the outbox and when, and how calls are taken and settled. Races are in isolation/specs,
-- costs in plans.sql; the calls themselves are in py/tests.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
create function test.hooks(p_endpoint text default 'a') returns jsonb language sql as $$ select coalesce(jsonb_agg(to_jsonb(h) order by n), '[]') from switchboard.list_notify_hooks(test.endpoint(p_endpoint)) with ordinality h (hook_id, url, queues, enabled, failures, disabled_at, last_delivered_at, last_failed_at, last_status, waiting, created_at, n) $$;
create function test.counts() returns jsonb language sql as $$ select coalesce(jsonb_object_agg(outcome, total), '{}') from switchboard.notify_counts() where type = 'todo.ready' and total > 0 $$;
create function test.drop_hooks() returns void language sql as $$ select test.clear(); delete from switchboard.notify_hooks; truncate switchboard.notify_totals $$;

-- making one
select switchboard.create_notify_hook(test.a(), 'https://agent.example:8443/wake?x=1', '{r,q,r}', '\xaa') as made \gset
select is(:'made'::jsonb - 'hook_id', '{"url": "https://agent.example:8443/wake?x=1", "queues": ["q", "r"], "signing_secret": "$secret"}', 'create_notify_hook: what the shell is to fill in, and each queue once');
select is(test.hooks() -> 0, jsonb_build_object('hook_id', :'made'::jsonb -> 'hook_id', 'url', 'https://agent.example:8443/wake?x=1', 'queues', '{q,r}'::text[], 'enabled', true, 'failures', 0, 'disabled_at', null, 'last_delivered_at', null,
    'last_failed_at', null, 'last_status', null, 'waiting', 0, 'created_at', switchboard.now(), 'n', 1), 'list_notify_hooks: its health, and no secret');
select test.pass('1 s') \g /dev/null
select is(switchboard.create_notify_hook(test.a(), 'http://agent.example') - 'hook_id', '{"url": "http://agent.example", "queues": null, "signing_secret": null}', 'fault 37: one without a secret');
select is(switchboard.create_notify_hook(test.a(), 'http://agent.example', null, '\x') ->> 'signing_secret', null, 'fault 37: an empty secret is none');
select is((select array_agg(h -> 'enabled') from jsonb_array_elements(test.hooks()) h), '{true,false,false}'::jsonb[], 'fault 37: which is not enabled');
select test.notify_hook(), test.notify_hook() \g /dev/null
select test.refused($$ select test.notify_hook() $$, 'SB411', 'five are the ceiling', '{"ceiling": 5}');
select isnt(test.notify_hook('b'), null, 'of each endpoint');
select is(jsonb_array_length(test.hooks('b')) || ' ' || jsonb_array_length(test.hooks()), '1 5', 'which lists its own');
select is_empty(format('select * from switchboard.list_notify_hooks(%L)', e), 'none for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'x', test.unknown()]) e;
select test.invalid(format('select switchboard.create_notify_hook(test.endpoint(''a2''), %L)', u), 'url', 'no URL: ' || coalesce(to_json(left(u, 40))::text, 'NULL'))
    from unnest(array[null, '', 'agent.example', '//agent.example/', 'ftp://agent.example/', 'file:///etc/passwd', 'javascript:alert(1)', 'https:agent.example', 'https:///x', 'https://', 'https://user@agent.example/', 'https://user:pass@agent.example/', 'https://agent.example@127.0.0.1/',
        'https://agent.example/#x', 'https://agent.example#x', E'https://agent.example/\n', E'https://agent.example/\r\nx: y', 'https://agent example/', 'https://agent.example/a b', E'https://agent.example\t/', ' https://agent.example/', 'https://agent.example/' || repeat('x', 2048)]) u;
select lives_ok(format('select switchboard.delete_notify_hook(test.endpoint(''a2''), switchboard.create_notify_hook(test.endpoint(''a2''), %L) ->> ''hook_id'')', u), 'a URL: ' || left(u, 40))
    from unnest(array['https://agent.example', 'http://agent.example/', 'https://agent.example:443/a/b?c=d&e=%20@f', 'https://[2001:db8::1]/', 'https://192.0.2.1/x', 'https://agent.example?x', 'https://agent.example/' || repeat('x', 2026)]) u;
select test.invalid(format('select test.notify_hook(''a2'', %L)', q), f, 'no queues: ' || left(q, 20)) from (values ('{}', 'queues'), ((select array_agg('q' || n) from generate_series(1, 33) n)::text, 'queues'), ('{Q}', 'queue'), ('{q,null}', 'queue')) v(q, f);
select test.forbidden(format('select test.notify_hook(''a2'', %L)', q), 'a queue outside the grant: ' || q) from unnest(array['{other}', '{q,other}', '{quarantine}']) q;
select test.not_found(format('select switchboard.create_notify_hook(%L, ''https://agent.example'')', e), 'none for ' || coalesce(quote_literal(e), 'NULL')) from unnest(array[null, '', 'x', test.unknown()]) e;
select test.invalid(format('select switchboard.rotate_notify_hook(test.a(), %L, %L)', :'made'::jsonb ->> 'hook_id', s), 'signing_secret', 'a rotation needs a secret: ' || coalesce(s, 'NULL')) from unnest(array[null, '\x']) s;
select test.not_found(format('select switchboard.%s', format(f, e, i)), format('%s of %s', split_part(f, '(', 1), n)) from unnest(array['rotate_notify_hook(%L, %L, ''\xbb'')', 'delete_notify_hook(%L, %L)']) f,
    (values (test.b(), :'made'::jsonb ->> 'hook_id', 'another endpoint''s'), (test.a(), 'x', 'a malformed id'), (test.a(), null, 'NULL'), (test.a(), test.unknown(), 'an unknown one'), (null, :'made'::jsonb ->> 'hook_id', 'no endpoint')) v(e, i, n);
select is(switchboard.delete_notify_hook(test.a(), :'made'::jsonb ->> 'hook_id'), jsonb_build_object('hook_id', :'made'::jsonb -> 'hook_id', 'deleted', true), 'delete_notify_hook');
select is(jsonb_array_length(test.hooks()), 4, 'it is gone');
select test.vend('gone', test.human('a')) \g /dev/null
select switchboard.revoke_endpoint(test.endpoint('gone')) \g /dev/null
select test.conflict($$ select test.notify_hook('gone') $$, 'none on a revoked endpoint');

-- the outbox: what becomes ready is posted, once a hook, in the transaction that does it
select test.drop_hooks() \g /dev/null
select test.notify_hook() as all_queues, test.notify_hook('a', '{r}') as only_r, test.notify_hook('b') as of_b, test.notify_hook('a', null, null) as silent \gset
select test.listen('switchboard_outbox') \g /dev/null
create function test.posted_to(p_hook text) returns text[] language sql as $$ select coalesce(array_agg(queue || ' ' || reason order by id), '{}') from switchboard.notify_deliveries where hook_id::text = p_hook $$;
select test.create('a', 'q', 'k') as id \gset
select is(test.posted(:'id'), '{created}', 'a create is posted to the hook that covers the queue');
select is(test.heard('switchboard_outbox'), '{""}', 'and announced on switchboard_outbox, without a payload');
select test.create('a', 'q', 'k') \g /dev/null
select is(test.posted(), '{created}', 'a duplicate is not');
select is(test.heard('switchboard_outbox'), '{}', 'nor announced');
select test.create('a', 'r') as in_r \gset
select is(test.posted(:'in_r'), '{created,created}', 'two hooks that cover it are two calls');
select is(test.posted_to(:'only_r'), '{"r created"}', 'one that covers another queue gets none of this');
select is(test.posted_to(:'silent'), '{}', 'fault 37: one without a secret gets none at all');
select is(test.posted_to(:'of_b'), '{}', 'nor does another endpoint''s');
select ok(d.due_at = switchboard.now() and d.created_at = switchboard.now() and d.attempts = 0 and d.ended_at is null and d.outcome is null, 'it is due at once') from switchboard.notify_deliveries d where d.todo_id::text = :'id';
begin;
select test.create('a', 'q') as undone \gset
rollback;
select is(test.posted(:'undone'), '{}', 'what is rolled back is not posted');
select test.heard('switchboard_outbox'), test.clear() \g /dev/null
select is((select array_agg(created) from switchboard.create_todos(test.a(), test.keyed('t', 'k1', 'k2', 'k1', 'k3'))), '{t,t,f,t}', '(a batch with a duplicate)');
select is(test.posted(), '{created,created,created}', 'create_todos: one for each todo, none for a duplicate');
select is((select array_agg(distinct d.todo_id order by d.todo_id) from switchboard.notify_deliveries d), (select array_agg(id order by id) from switchboard.todos), 'each its own');
select is(test.heard('switchboard_outbox'), '{""}', 'announced once');
select switchboard.create_todos(test.a(), test.keyed('t', 'k1', 'k2', 'k3')) \g /dev/null
select is(cardinality(test.posted()), 3, 'a batch of duplicates: none');
select test.clear() \g /dev/null
select switchboard.create_todos(test.a(), (select jsonb_agg(jsonb_build_object('queue', case when n % 2 = 0 then 'q' else 'r' end, 'title', 't')) from generate_series(1, 20) n)) \g /dev/null
select is(cardinality(test.posted_to(:'all_queues')) || ' ' || cardinality(test.posted_to(:'only_r')), '20 10', 'and in several queues: for each hook what it covers');

create function test.way_back(p_way text, p_endpoint text default 'a') returns text language plpgsql as $$
declare
    v_id text := test.create(p_endpoint);
    v_endpoint text := test.endpoint(p_endpoint);
begin
    perform switchboard.claim(v_endpoint, v_id, 'w', 60);
    delete from switchboard.notify_deliveries;
    case p_way
        when 'release' then perform switchboard.release(v_endpoint, v_id, 'w');
        when 'release by force' then perform switchboard.release_any_endpoint(v_id, p_force => true);
        when 'lapse' then perform test.pass('61 s'); perform switchboard.reap_expired();
        when 'backoff' then perform switchboard.fail(v_endpoint, v_id, 'w'), test.pass('31 s'); perform switchboard.requeue_due_retries();
        when 'retry' then perform switchboard.fail(v_endpoint, v_id, 'w'), switchboard.retry(v_endpoint, v_id);
        when 'retry by the operator' then perform switchboard.fail(v_endpoint, v_id, 'w'), switchboard.retry_any_endpoint(v_id);
        when 'fail' then perform switchboard.fail(v_endpoint, v_id, 'w');
        when 'complete' then perform switchboard.complete(v_endpoint, v_id, 'w');
        when 'heartbeat' then perform switchboard.heartbeat(v_endpoint, v_id, 'w');
        when 'lapse for the last time' then
            update switchboard.todos set max_attempts = 1 where id::text = v_id;
            perform test.pass('61 s'); perform switchboard.reap_expired();
        when 'release for the last time' then
            update switchboard.todos set max_attempts = 1 where id::text = v_id;
            perform switchboard.release(v_endpoint, v_id, 'w');
    end case;
    return v_id;
end
$$;
select test.clear() \g /dev/null
select is(test.posted(id), '{requeued}', 'back to pending by ' || w || ': requeued') from unnest('{release,"release by force",lapse,backoff,retry,"retry by the operator"}'::text[]) w, lateral test.way_back(w) id;
select is(test.posted(id), '{}', 'no call for ' || w) from unnest('{fail,complete,heartbeat,"lapse for the last time","release for the last time"}'::text[]) w, lateral test.way_back(w) id;
select test.clear() \g /dev/null
create table test.lapsed as select n, test.create('a', case when n % 2 = 0 then 'q' else 'r' end) as id from generate_series(1, 6) n;
select test.heard('switchboard_outbox'), count(*) from switchboard.claim_batch(test.a(), 'w', 10, null, 60) \g /dev/null
truncate switchboard.notify_deliveries;
select test.pass('61 s') \g /dev/null
select count(*) from switchboard.reap_expired() \g /dev/null
select is((select array_agg(h || ' ' || n order by h) from (select queue || ' ' || reason || ' ' || case hook_id::text when :'all_queues' then 'all' else 'r' end as h, count(*) as n from switchboard.notify_deliveries group by 1) s), '{q requeued all 3,r requeued all 3,r requeued r 3}', 'a sweep: one for each todo and hook');

-- by trust and by receivers
select test.clear() \g /dev/null
select is(test.posted(test.trusted(t)), e::text[], 'trust ' || t) from (values ('signed', '{created}'), ('token', '{created}'), ('operator', '{created}'), ('agent', '{created}'), ('sql', '{created}'), ('open', '{}')) v(t, e);
select switchboard.claim(test.a(), t.id::text, 'w'), switchboard.release(test.a(), t.id::text, 'w') from switchboard.todos t where trust_mode = 'open' \g /dev/null
select is(test.posted(t.id::text), '{}', 'an open one is not called for when it comes back, either') from switchboard.todos t where trust_mode = 'open';
select test.clear(), test.grant_all('a') \g /dev/null
select test.receiver('token') as receiver, test.receiver('open', 'a', 'open') as unsigned \gset
select test.deliver('token', '{}', 'd1') \g /dev/null
select is(test.posted(), '{created}', 'a verified delivery is posted');
select test.deliver('token', '{}', 'd1'), test.deliver('open', '{}', 'd2') \g /dev/null
select is(test.posted(), '{created}', 'a redelivery, and one that nobody signed, are not');
select switchboard.replay_event(v.id::text) from test.finish((select id::text from switchboard.todos where trust_mode = 'signed')), switchboard.events v where v.trust_mode = 'signed' \g /dev/null
select is(test.posted(), '{created,created}', 'a replay that makes a new todo is');
select test.clear(), switchboard.hold_webhook(:'receiver', true) \g /dev/null
select test.deliver('token', '{}', 'd3') \g /dev/null
select is(test.posted(), '{}', 'what is held in quarantine is not');
select switchboard.release_quarantined(id::text) from switchboard.todos \g /dev/null
select is(test.posted(), '{created}', 'until it is released: created');
select is((select queue from switchboard.notify_deliveries), 'q', 'in the queue it was meant for');
select switchboard.hold_webhook(:'receiver', false) \g /dev/null
select is((select array_agg(test.posted(id)) from test.call('create_todo', '{"queue": "q", "title": "t"}') a, lateral (select a #>> '{todo,id}' as id) i), array[array['created']], 'a create over MCP is posted');
select is(test.posted((switchboard.create_todo_any_endpoint(test.a(), 'q', 't')).id::text), '{created}', 'and one by the operator');

-- no calls: of a queue that is not granted any more, of an endpoint that is not active, of a disabled hook
select test.clear(), test.create() as id \gset
select switchboard.claim(test.a(), :'id', 'w', 60) \g /dev/null
truncate switchboard.notify_deliveries;
select switchboard.set_grant(test.a(), '{r,inbox}'), test.pass('61 s') \g /dev/null
select is((select array_agg(state) || test.posted() from switchboard.reap_expired()), '{pending}', 'none for a queue that is not granted any more');
select switchboard.set_grant(test.a(), '{q,r,inbox}') \g /dev/null
select switchboard.claim(test.a(), :'id', 'w', 60), test.pass('61 s') \g /dev/null
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.a();
select is((select array_agg(state) || test.posted() from switchboard.reap_expired()), '{pending}', 'none for an endpoint that is not active any more');
update switchboard.endpoints set expires_at = null;
select test.clear() \g /dev/null
update switchboard.notify_hooks set disabled_at = switchboard.now();
select is(test.posted(test.create()), '{}', 'none for a disabled hook');

-- a call: what a dispatcher gets
select test.drop_hooks() \g /dev/null
select test.notify_hook(p_secret => '\xaa11') as hook, (switchboard.create_todo(test.a(), 'q', E'A <b>title</b>\nof others ' || repeat('x', 500), p_kind => 'kind', p_source => 'src')).id as id \gset
select test.pass('1 s'), switchboard.take_deliveries() -> 0 as call \gset
select is(:'call'::jsonb - '{id,message_id,body}'::text[], jsonb_build_object('endpoint_id', test.a(), 'hook_id', :'hook', 'url', 'https://agent.example/wake', 'attempt', 1, 'sealed_secrets', array['aa11']), 'take_deliveries: where to, and what signs it');
select matches(:'call'::jsonb ->> 'message_id', '^msg_[0-9a-f]{32}$', 'webhook-id');
select is(:'call'::jsonb -> 'body', jsonb_build_object('type', 'todo.ready', 'reason', 'created', 'todo_id', :'id', 'queue', 'q', 'kind', 'kind', 'source', 'src', 'summary', left('A <b>title</b> of others ' || repeat('x', 500), 200), 'endpoint', 'test-a', 'attempt', 0,
    'created_at', (test.stored(:'id') -> 'created_at')), 'the body, as interfaces.md has it');
select is(test.settle(:'call'::jsonb, '2xx'), 'delivered', 'settled');
select ok(h @> '{"failures": 0, "waiting": 0, "last_status": "2xx"}' and (h ->> 'last_delivered_at')::timestamptz = switchboard.now(), 'which its health shows') from jsonb_array_elements(test.hooks()) h;
select is(test.counts(), '{"delivered": 1}', 'and the counters');
select is(test.calls(), '{}', 'it is not sent again');
select is(test.settle(:'call'::jsonb, '2xx'), 'superseded', 'settling it again changes nothing');
select is(test.counts(), '{"delivered": 1}', 'nor the counters');
select test.create() as bare, test.pass('1 s') \gset
select is((select array_agg(k order by k) from jsonb_object_keys(switchboard.take_deliveries() #> '{0,body}') k), '{attempt,created_at,endpoint,queue,reason,summary,todo_id,type}', 'a todo without kind and source: no such fields');
select is(switchboard.settle_delivery(e, i, 1, '2xx'), 'superseded', 'settle_delivery of ' || n) from switchboard.notify_deliveries d, lateral (values (test.b(), d.id::text, 'another endpoint'), ('x', d.id::text, 'a malformed one'), (null, d.id::text, 'none'), (test.a(), 'x', 'a malformed id'), (test.a(), null, 'NULL'), (test.a(), test.unknown(), 'an unknown one')) v(e, i, n)
    where d.todo_id::text = :'bare';
select is((select attempts || ' ' || (outcome is null) from switchboard.notify_deliveries where todo_id::text = :'bare'), '1 true', 'and it is still under way');
select test.invalid(format('select switchboard.take_deliveries(%s)', l), 'limit', 'no limit: ' || l) from unnest('{0,-1}'::int[]) l;

-- retries: 1 s and 5 s after, +-20 %, the same webhook-id, a fresh attempt each; then it has failed
select test.drop_hooks() \g /dev/null
create table test.waits (n serial, wait interval, result text);
create table test.messages (message text, attempt int);
do $$
declare
    v_call jsonb;
    v_due timestamptz;
begin
    perform test.notify_hook();
    for v_n in 1..40 loop
        update switchboard.notify_hooks set quota_full_at = 'epoch', failures = 0;
        truncate switchboard.notify_deliveries;
        perform test.create();
        for v_attempt in 1..3 loop
            v_call := switchboard.take_deliveries() -> 0;
            insert into test.messages values (v_call ->> 'message_id', (v_call ->> 'attempt')::int);
            perform test.pass('100 ms');
            insert into test.waits (result) values (test.settle(v_call, '5xx'));
            select due_at into v_due from switchboard.notify_deliveries;
            update test.waits set wait = v_due - switchboard.now() where n = (select max(w.n) from test.waits w);
            exit when v_due is null;
            perform test.at(v_due - interval '1 ms');
            if switchboard.take_deliveries() <> '[]' then
                raise exception 'taken before it was due';
            end if;
            perform test.at(v_due);
        end loop;
    end loop;
end
$$;
select is((select array_agg(distinct result order by result) from test.waits where n % 3 <> 0), '{again}', 'a failed attempt is made again');
select is((select array_agg(distinct result || coalesce(wait::text, '')) from test.waits where n % 3 = 0), '{failed}', 'the third one is the last');
select ok(min(wait) between '0.8 s' and '0.9 s' and max(wait) between '1.1 s' and '1.2 s', format('the first retry comes after 1 s +-20 %%: %s..%s', min(wait), max(wait))) from test.waits where n % 3 = 1;
select ok(min(wait) between '4 s' and '4.5 s' and max(wait) between '5.5 s' and '6 s', format('the second after 5 s +-20 %%: %s..%s', min(wait), max(wait))) from test.waits where n % 3 = 2;
select is((select array_agg(distinct a) from (select array_agg(attempt order by attempt) as a from test.messages group by message) s), array[array[1, 2, 3]], 'the webhook-id is the same over the attempts');
select is(test.counts(), '{"failed": 40}', 'a delivery counts once, not an attempt');
select test.drop_hooks(), test.notify_hook(), test.create() \g /dev/null
select is(test.settle(switchboard.take_deliveries() -> 0, 'refused', true), 'failed', 'where another attempt cannot help, the first is the last');
select ok(h @> '{"failures": 1, "waiting": 0, "last_status": "refused", "last_delivered_at": null}' and (h ->> 'last_failed_at')::timestamptz = switchboard.now(), 'its health') from jsonb_array_elements(test.hooks()) h;
select test.create() \g /dev/null
select is(test.settle(switchboard.take_deliveries() -> 0, 'timeout'), 'again', 'a failed attempt is no failed delivery yet');
select ok(h @> '{"failures": 1, "waiting": 1, "last_status": "timeout"}', 'its health, meanwhile') from jsonb_array_elements(test.hooks()) h;

-- fault 36: one whose dispatcher died is sent again 15 s later, with the same webhook-id; what the dead one says then, if it lives, is not heard
select test.drop_hooks(), test.notify_hook(), test.create() \g /dev/null
select switchboard.take_deliveries() -> 0 as first, test.calls() as none, test.pass('14.999 s') \gset
select is(test.calls() || :'none'::text[], '{}', 'fault 36: within 15 s nobody else sends it');
select test.pass('1 ms') \g /dev/null
select switchboard.take_deliveries() -> 0 as second \gset
select ok(:'second'::jsonb ->> 'message_id' = :'first'::jsonb ->> 'message_id' and :'second'::jsonb -> 'attempt' = '2', 'fault 36: then it is sent again, with the same webhook-id');
select is(test.settle(:'first'::jsonb, s), 'superseded', 'fault 36: what the first one reports, ' || s || ', changes nothing') from unnest('{2xx,5xx}'::text[]) s;
select is((select attempts || ' ' || (due_at - switchboard.now()) from switchboard.notify_deliveries), '2 00:00:15', 'fault 36: the second is still under way');
select test.pass('15 s'), switchboard.take_deliveries() -> 0 ->> 'attempt' as third \gset
select is(:third, 3, 'fault 36: a third time');
select test.pass('15 s') \g /dev/null
select is(test.calls(), '{}', 'fault 36: and then it has failed');
select is((select outcome from switchboard.notify_deliveries), 'failed', 'fault 36: as the table says');
select ok(h @> '{"failures": 1, "last_status": "timeout"}', 'fault 36: and the hook''s health') from jsonb_array_elements(test.hooks()) h;
select is(test.counts(), '{"failed": 1}', 'fault 36: and the counters');

-- moot: the todo is not pending any more when its call would be made
select test.drop_hooks(), test.notify_hook() \g /dev/null
create table test.moots as select s as situation, test.make(s) as id from unnest('{pending,claimed,done,parked,dead}'::text[]) s;
insert into test.moots select 'gone', test.create();
delete from switchboard.todos t using test.moots m where m.situation = 'gone' and m.id = t.id::text;
insert into test.moots select 'pending again', test.create();
select switchboard.claim(test.a(), id, 'w'), switchboard.release(test.a(), id, 'w') from test.moots where situation = 'pending again' \g /dev/null
select is((select array_agg(distinct m.situation order by m.situation) from jsonb_array_elements(switchboard.take_deliveries()) c join test.moots m on m.id = c #>> '{body,todo_id}'), '{pending,"pending again"}', 'only what is pending is called for');
select set_eq($$ select situation from test.moots m join switchboard.notify_deliveries d on d.todo_id::text = m.id where d.outcome = 'moot' and d.ended_at = switchboard.now() and d.due_at is null and d.attempts = 0 $$, array['claimed', 'done', 'parked', 'dead', 'gone'], 'the others end as moot');
select is(test.counts(), '{"moot": 5}', 'which is counted');
select ok(h @> '{"failures": 0, "waiting": 3}', 'and is no failure') from jsonb_array_elements(test.hooks()) h;
select test.drop_hooks(), test.notify_hook(), test.many(3000) \g /dev/null
select switchboard.post_wakes(test.a()::uuid, 'q', (select array_agg(id) from switchboard.todos), 'created') \g /dev/null
update switchboard.todos set state = 'done', completed_at = now();
select test.pass('1 s'), test.create() as id \gset
select is((select array_agg(c #>> '{body,todo_id}') from jsonb_array_elements(switchboard.take_deliveries()) c), array[:'id'], '3,000 moot ones hide no call behind them');
select is(test.counts(), '{"moot": 3000}', 'and are over, all at once');

-- at most 120 in any minute, whatever waits; and no fewer than that can be
select test.drop_hooks(), test.notify_hook(), test.notify_hook('b'), test.many(700) \g /dev/null
select switchboard.post_wakes(test.a()::uuid, 'q', (select array_agg(id) from switchboard.todos), 'created') \g /dev/null
create table test.sent (at timestamptz);
do $$
declare
    v_calls jsonb;
begin
    for n in 1..1200 loop
        perform test.pass('250 ms');
        v_calls := switchboard.take_deliveries(100);
        insert into test.sent select switchboard.now() from jsonb_array_elements(v_calls);
        perform test.settle(c, '2xx') from jsonb_array_elements(v_calls) c;
    end loop;
end
$$;
select cmp_ok((select max(n) from (select count(*) over (order by at range between current row and interval '59.999 s' following) as n from test.sent) s), '<=', 120::bigint, 'at most 120 in any minute');
select is((select count(*) from test.sent where at < (select min(at) from test.sent) + interval '1 ms'), 20::bigint, '20 of them at once');
select cmp_ok((select count(*) from test.sent where at < (select min(at) from test.sent) + interval '1 min'), '>=', 118::bigint, 'and no fewer than that, within a call or two, in the first');
select cmp_ok((select count(*) from test.sent), '>=', 515::bigint, 'nor than 100 a minute after that');
select test.pass('1 h') \g /dev/null
select is(cardinality(test.calls()), 20, 'a pause saves up no more than 20');
select test.create('b') \g /dev/null
select is(cardinality(test.calls()), 1, 'another hook has a quota of its own');
-- in turn: a hook with much to send does not keep others waiting
select test.drop_hooks() \g /dev/null
select test.notify_hook() as a, test.notify_hook('b') as b \gset
select test.create('a', 'q', 'k' || n), test.create('b', 'q', 'k' || n) from generate_series(1, 10) n \g /dev/null
select is((select array_agg(distinct c ->> 'hook_id') from (select switchboard.take_deliveries(1) -> 0 as c from generate_series(1, 2)) s), (select array_agg(h order by h) from unnest(array[:'a', :'b']) h), 'hooks are served in turn');
select is(cardinality(test.calls(7)), 7, 'a limit is kept');
select is(cardinality(test.calls(1000)), 11, 'and clamped');
-- a retry has its place in the quota
select ok((select bool_and(switchboard.hook_quota(h, switchboard.now()) = 10) from switchboard.notify_hooks h), 'each attempt counts');

-- the tenth failed delivery in a row disables the hook and drops what waits
select test.drop_hooks(), test.notify_hook() as hook \gset
create function test.fail_times(p_n int) returns text[] language plpgsql as $$
declare
    v_results text[] := '{}';
begin
    for n in 1..p_n loop
        perform test.create();
        v_results := v_results || test.settle(switchboard.take_deliveries(1) -> 0, '5xx', true);
        perform test.pass('1 s');
    end loop;
    return v_results;
end
$$;
select test.fail_times(9), test.create(), test.settle(switchboard.take_deliveries(1) -> 0, '2xx') \g /dev/null
select is(test.hooks() #> '{0,failures}', '0', 'fault 39: a success resets the count');
select is(test.fail_times(9), array_fill('failed'::text, '{9}'), 'fault 39: nine failed deliveries in a row');
select ok(h @> '{"enabled": true, "failures": 9, "disabled_at": null}', 'fault 39: it is enabled still') from jsonb_array_elements(test.hooks()) h;
select test.create(), test.create(), test.create() \g /dev/null
select switchboard.take_deliveries(2) as two, test.posted() as before \gset
select is(test.settle(:'two'::jsonb -> 0, '4xx'), 'again', 'fault 39: an attempt that is tried again disables nothing');
select is(test.settle(:'two'::jsonb -> 1, '5xx', true), 'failed', 'fault 39: the tenth');
select ok(h @> '{"enabled": false, "failures": 10, "waiting": 0}' and (h ->> 'disabled_at')::timestamptz = switchboard.now(), 'fault 39: disables it') from jsonb_array_elements(test.hooks()) h;
select is((select array_agg(outcome || (due_at is null) || (ended_at = switchboard.now())) from switchboard.notify_deliveries where outcome = 'dropped'), '{droppedtruetrue,droppedtruetrue}', 'fault 39: and drops what waited, for a retry, too');
select is(test.settle(:'two'::jsonb -> 0, '2xx'), 'superseded', 'fault 39: (which is over then)');
select is(test.counts(), '{"failed": 19, "delivered": 1, "dropped": 2, "disabled": 1}', 'fault 39: counted');
select is(test.posted(test.create()), '{}', 'fault 39: nothing is written for it any more');
select is(test.calls(), '{}', 'fault 39: nor sent');
select is(switchboard.rotate_notify_hook(test.a(), :'hook', '\xbb') - 'previous_valid_until', jsonb_build_object('hook_id', :'hook', 'enabled', true, 'signing_secret', '$secret'), 'fault 39: a rotation of its secret enables it again');
select ok(h @> '{"enabled": true, "failures": 0, "disabled_at": null}', 'fault 39: with a clean record') from jsonb_array_elements(test.hooks()) h;
select is(cardinality(test.fail_times(9)), 9, 'fault 39: (nine more)');
select ok((test.hooks() #>> '{0,enabled}')::boolean, 'fault 39: which counts from 0');
-- several that were lost at once: the tenth ends it, and what was just taken is not sent
select test.drop_hooks(), test.notify_hook() as hook \gset
select test.create('a', 'q', 'k' || n) from generate_series(1, 14) n \g /dev/null
update switchboard.notify_deliveries set attempts = 3 where id in (select id from switchboard.notify_deliveries order by id limit 12);
select test.pass('1 s') \g /dev/null
select is(test.calls(), '{}', 'lost ones count as failed: the tenth disables the hook, and nothing is sent');
select ok(h @> '{"enabled": false, "failures": 10, "waiting": 0}', 'its health') from jsonb_array_elements(test.hooks()) h;
select is(test.counts() -> 'disabled', '1', 'it is disabled once');

-- both secrets for 24 h after a rotation
select test.drop_hooks(), test.notify_hook(p_secret => '\x01') as hook \gset
create function test.secrets() returns jsonb language plpgsql as $$
begin
    perform test.create(), test.pass('1 s');
    return switchboard.take_deliveries() #> '{0,sealed_secrets}';
end
$$;
select switchboard.rotate_notify_hook(test.a(), :'hook', '\x02') ->> 'previous_valid_until' as until \gset
select is(:'until'::timestamptz, switchboard.now() + interval '24 h', 'rotate_notify_hook tells until when the old secret signs, too');
select is(test.secrets(), '["02", "01"]', 'both sign, the new one first');
select switchboard.rotate_notify_hook(test.a(), :'hook', '\x03') \g /dev/null
select is(test.secrets(), '["03", "02"]', 'a second rotation: the last two');
select test.pass('24 h'), switchboard.rotate_notify_hook(test.a(), :'hook', '\x04') ->> 'previous_valid_until' as until \gset
select test.at(:'until'::timestamptz - interval '2 s') \g /dev/null
select is(test.secrets(), '["04", "03"]', 'until 24 h have passed');
select test.at(:'until'::timestamptz) \g /dev/null
select is(test.secrets(), '["04"]', 'and then not any more');
select switchboard.rotate_notify_hook(test.a(), test.notify_hook(p_secret => null), '\x05') \g /dev/null
select is((select array_agg(h -> 'enabled') from jsonb_array_elements(test.hooks()) h), '{true,true}'::jsonb[], 'fault 37: a rotation gives a secret to a hook that has none');

-- an endpoint that is not active calls nobody; a hook that is deleted takes its calls along
select test.drop_hooks(), test.notify_hook() as hook, test.create() \gset
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.a();
select is(test.calls(), '{}', 'an expired endpoint calls nobody');
update switchboard.endpoints set expires_at = null;
select switchboard.take_deliveries() -> 0 as call \gset
select switchboard.delete_notify_hook(test.a(), :'hook') \g /dev/null
select is((select count(*) from switchboard.notify_deliveries), 0::bigint, 'a deleted hook takes its calls along');
select is(test.settle(:'call'::jsonb, '5xx'), 'superseded', 'and what is under way settles nothing');
select lives_ok('select test.create()', 'creates go on');

-- retention: 7 days
select test.drop_hooks(), test.notify_hook(), test.notify_hook('b'), test.create(), test.create('b') \g /dev/null
select test.pass('1 h'), test.create() as young, test.pass('6 d 22 h 59 min 59 s') \gset
select switchboard.prune() \g /dev/null
select is(cardinality(test.posted()), 3, 'what is not yet 7 days old is kept');
select test.pass('2 s') \g /dev/null
select is(switchboard.prune(), 2::bigint, 'what is older is deleted, and counted by prune');
select is(test.posted(:'young') || test.posted(), '{created,created}', 'the younger stays');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
