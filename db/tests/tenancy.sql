-- SPEC-0003, Endpoint Ownership: a login bound to A that passes B's endpoint and B's ids gets exactly what unknown ids get,
-- from every function that its role may execute.
select no_plan();
select test.set_up(), test.login('bound', 'switchboard_worker') as bound \gset
select switchboard.bind_login(test.a(), :'bound') \g /dev/null
grant usage on schema switchboard to public;
update switchboard.endpoints set verbs = array(select name from switchboard.tools()) where id::text in (test.a(), test.b());

select test.create('b', 'q', 'k') as pending \gset
select test.create('b', 'r') as held \gset
select (switchboard.claim(test.b(), :'held', 'w1')).lease_token as token \gset
select test.create('b', 'inbox') as dead \gset
select switchboard.claim(test.b(), :'dead', 'w1'), switchboard.fail(test.b(), :'dead', 'w1') \g /dev/null
select test.receiver('b', 'b') as hook, test.notify_hook('b') as notify_hook, test.deliver('b', '{}', 'd') \gset
select event_id::text as event from switchboard.todos where event_id is not null \gset
create table test.before as select (select jsonb_agg(to_jsonb(t) order by t.id) from switchboard.todos t) as todos, (select count(*) from switchboard.todo_attempts) as attempts;

-- Each call with its own endpoint and B's ids, with B's endpoint and B's ids, and the same with what was never minted.
create table test.calls (n serial, call text);
insert into test.calls (call) values ('get_todo(%1$L, %2$L)'), ('todo_history(%1$L, %2$L)'), ('claim(%1$L, %2$L, ''w1'')'), ('heartbeat(%1$L, %2$L, ''w1'')'), ('heartbeat(%1$L, %2$L, ''w1'', 60, %3$L)'),
    ('complete(%1$L, %2$L, ''w1'')'), ('complete(%1$L, %2$L, ''w1'', null, %3$L)'), ('fail(%1$L, %2$L, ''w1'')'), ('fail(%1$L, %2$L, ''w1'', null, %3$L)'), ('release(%1$L, %2$L, ''w1'')'),
    ('release(%1$L, %2$L, ''w1'', %3$L)'), ('retry(%1$L, %2$L)'), ('read_event(%1$L, %2$L)'),
    ('delete_webhook(%1$L, %2$L)'), ('add_webhook_route(%1$L, %2$L, ''test-a'')'), ('add_webhook_route(%1$L, %2$L, ''test-b'')'), ('list_webhook_routes(%1$L, %2$L)'), ('remove_webhook_route(%1$L, %2$L, ''test-b'')'), ('delete_notify_hook(%1$L, %2$L)');
insert into test.calls (call) values ('create_todo(%1$L, ''q'', ''t'')'), ('create_todo(%1$L, ''q'', ''t'', p_idempotency_key => ''k'')'), ('create_todos(%1$L, ''[{"queue": "q", "title": "t", "idempotency_key": "k"}]'')'), ('list_todos(%1$L)'),
    ('list_todos(%1$L, ''q'', ''pending'')'), ('claim_next(%1$L, ''w1'')'), ('claim_next(%1$L, ''w1'', ''{q}'')'), ('claim_batch(%1$L, ''w1'', 10)'), ('queue_counts(%1$L)'), ('pending_doorbell_todos(%1$L)'), ('list_webhooks(%1$L)'), ('list_notify_hooks(%1$L)'),
    ('deferred_queues(%1$L)'), ('admission_status(%1$L)'), ('admission_status(%1$L, ''q'')'), ('set_admission_policy(%1$L, ''q'', ''{"max_in_flight": 0}'')'), ('clear_admission_policy(%1$L, ''q'')');
select is(test.as_login(:'bound', 'select * from switchboard.' || format(c.call, e, i.id, :'token')), test.as_login(:'bound', 'select * from switchboard.' || format(c.call, u, test.unknown(), 'AAAAAAAAAAAA')), format('%s of B''s %s on %s', split_part(c.call, '(', 1), i.name, ep.name))
    from test.calls c, (values (test.a(), test.a(), 'its own endpoint'), (null, null, 'no endpoint'), (test.b(), test.unknown(), 'B''s endpoint')) ep(e, u, name),
        (values (:'pending', 'pending todo'), (:'held', 'claimed todo'), (:'dead', 'parked todo'), (:'event', 'event'), (:'hook', 'receiver'), (:'notify_hook', 'notify hook')) i(id, name)
    where c.call like '%2$L%';
select is(test.as_login(:'bound', 'select * from switchboard.' || format(c.call, test.b())), test.as_login(:'bound', 'select * from switchboard.' || format(c.call, test.unknown())), format('%s on B''s endpoint', split_part(c.call, '(', 1)))
    from test.calls c where c.call not like '%2$L%';
select is((select array_agg(r ->> 'outcome') from jsonb_array_elements(test.as_login(:'bound', format('select outcome from switchboard.complete_batch(%L, ''w1'', array[%L, %L, %L], array[%L, %L, null])', e, :'held', :'pending', test.unknown(), :'token', 'x'))) r),
    '{not_found,not_found,not_found}'::text[], 'complete_batch of B''s todos on ' || n) from (values (test.a(), 'its own endpoint'), (null, 'no endpoint'), (test.b(), 'B''s endpoint')) v(e, n);
select is((select jsonb_agg(to_jsonb(t) order by t.id) from switchboard.todos t where t.endpoint_id::text = test.b()), (select jsonb_agg(t order by t ->> 'id') from test.before, jsonb_array_elements(todos) t where t ->> 'endpoint_id' = test.b()), 'nothing of B''s has changed');
select is((select count(*) from switchboard.todo_attempts), (select attempts from test.before), 'nor has its history');
select is((select array_agg(w.id::text || ' ' || w.token_digest::text) from switchboard.endpoint_webhooks w), array[:'hook' || ' ' || sha256('b')::text], 'nor its receiver');
select is((select count(*) from switchboard.webhook_routes), 0::bigint, 'which is routed nowhere');
select is((select array_agg(h.id::text) from switchboard.notify_hooks h), array[:'notify_hook'], 'nor its notify hook');
select is((select count(*) from switchboard.notify_deliveries d where d.endpoint_id::text <> test.b()), 0::bigint, 'which is called for nobody else''s todos');

-- Every function that a worker may execute and that names an endpoint is tried above.
select is_empty($$ select p.proname from pg_proc p where p.pronamespace = 'switchboard'::regnamespace and has_function_privilege('switchboard_worker', p.oid, 'execute') and 'p_endpoint_id' = any (p.proargnames)
    and p.proname <> 'complete_batch' and not exists (select from test.calls c where split_part(c.call, '(', 1) = p.proname) $$, 'no function is left out');

-- and on its own endpoint it works as A, whatever of A's names it passes
select is(test.as_login(:'bound', format('select endpoint_id::text as e, trust_mode as t from switchboard.create_todo(%L, ''q'', ''mine'')', e)) -> 0, jsonb_build_object('e', test.a(), 't', 'sql'), 'creates on its own endpoint, naming ' || n) from (values (test.a(), 'it'), (null, 'none')) v(e, n);
select is(test.as_login(:'bound', 'select title from switchboard.claim_next(null, ''w'')') -> 0 ->> 'title', 'mine', 'claims there');
update switchboard.endpoints set verbs = '{list_todos}' where id::text = test.a();
select is(test.as_login(:'bound', 'select * from switchboard.' || c) ->> 'error', 'SB403', 'a verb outside the grant is forbidden: ' || split_part(c, '(', 1)) from unnest(array['claim_next(null, ''w'')', 'claim_batch(null, ''w'', 1)', 'create_todo(null, ''q'', ''t'')', 'retry(null, ''x'')', 'complete(null, ''x'', ''w'')']) c;
select is(test.as_login(:'bound', 'select count(*) as n from switchboard.list_todos(null)') -> 0 ->> 'n', '2', 'a granted one is not');
select is(test.as_login(:'bound', 'select * from switchboard.' || c) ->> 'error', 'SB403', 'nor hooks: ' || split_part(c, '(', 1)) from unnest(array['list_notify_hooks(null)', 'delete_notify_hook(null, ''x'')']) c;
select is(test.as_login(:'bound', 'select * from switchboard.' || c) ->> 'error', '42501', 'what a login may never do: ' || split_part(c, '(', 1))
    from unnest(array['create_notify_hook(null, ''https://x.example'')', 'rotate_notify_hook(null, ''x'', ''\xaa'')', 'take_doorbells(null, 1)', 'doorbells(null, 1)', 'return_doorbells(null, ''{}'')', 'take_deliveries()', 'settle_delivery(null, ''x'', 1, ''2xx'')', 'sweep_stalled()', 'notify_counts()']) c;

-- what A's agent sees over MCP of B's
update switchboard.endpoints set verbs = array(select name from switchboard.tools()) where id::text = test.a();
select is(test.call(t, jsonb_build_object('hook_id', :'notify_hook'), 'a', '{"sealed_secret": "bb"}'), test.call(t, jsonb_build_object('hook_id', test.unknown()), 'a', '{"sealed_secret": "bb"}'), t || ' of B''s hook, over MCP') from unnest('{rotate_notify_hook,delete_notify_hook}'::text[]) t;
select is(test.call('list_notify_hooks'), '{"hooks": []}', 'list_notify_hooks, over MCP');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
