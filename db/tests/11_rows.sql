-- functions/11_rows: how a stored todo is shown.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null

select is(switchboard.is_verified(t), v, t || ': verified ' || v) from (values ('signed', true), ('token', false), ('open', false), ('operator', true), ('agent', true), ('sql', true)) x(t, v);

-- Every column of switchboard.todo that the table has, too, holds the table's value; the token is left out.
select test.create('a', 'q', 'key', 7, 'w1') as id \gset
select switchboard.claim(test.a(), :'id', 'w1') \g /dev/null
select switchboard.complete(test.a(), :'id', 'w1', '{"ok": true}') \g /dev/null
select is(shown.value, stored.value, 'shown as stored: ' || shown.key)
    from jsonb_each(to_jsonb(switchboard.get_todo(test.a(), :'id'))) shown join jsonb_each((select to_jsonb(t) from switchboard.todos t where t.id::text = :'id')) stored using (key) where key <> 'lease_token';
select set_has(format($$ select jsonb_object_keys(to_jsonb(switchboard.get_todo(test.a(), %L))) $$, :'id'),
    $$ select unnest('{id,endpoint_id,queue,state,kind,source,title,payload,assignee,owner,lease_expires_at,lease_token,claimed_at,attempt,max_attempts,next_retry_at,dead_letter,result,idempotency_key,trust_mode,verified,ring_attempts,last_ringed_at,event_id,created_at,updated_at,completed_at}'::text[]) $$,
    'the columns of interfaces.md');
create table test.made as select s, test.make(s) as id, s = 'dead' as d from unnest('{pending,claimed,parked,dead,done}'::text[]) s;
select is((switchboard.get_todo(test.a(), id)).dead_letter, d, 'dead_letter is ' || d || ' for ' || s) from test.made;

-- The lease token: to the claimer, from the claim, and nobody else.
select test.make('claimed') as id \gset
select isnt(test.stored(:'id') ->> 'lease_token', null, 'a claimed todo has a token');
select is((switchboard.get_todo(test.a(), :'id')).lease_token, null, 'get_todo hides the token');
select is((select array_agg(distinct lease_token) from switchboard.list_todos(test.a(), null, 'claimed')), array[null::text], 'list_todos hides it');
select is((switchboard.get_todo_any_endpoint(:'id')).lease_token, null, 'the operator''s get hides it');
select is((select array_agg(distinct lease_token) from switchboard.list_todos_any_endpoint(null, 'claimed')), array[null::text], 'and the operator''s list');
select is((switchboard.heartbeat(test.a(), :'id', 'w1')).lease_token, null, 'a heartbeat does not repeat it');

select is(switchboard.show(null::switchboard.todos), null, 'no row is shown as none');

select * from finish();
