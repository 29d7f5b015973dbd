-- functions/60_doorbell: which todos ring, when, and once. Races are in isolation/specs, costs in plans.sql.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
create function test.pending(p_queues text[] default null, p_endpoint text default 'a') returns text[] language sql as $$
    select coalesce(array_agg(t.id::text), '{}') from switchboard.pending_doorbell_todos(test.endpoint(p_endpoint), p_queues) t
$$;

-- the schedule: at once, then 5 min, 20 min, 1 h, 6 h and 6 h after the last ring, to the second; then silent, whoever asks
select test.create() as id \gset
create table test.rings (n serial, after interval, listed int, rung int, again int);
do $$
declare
    v_wait interval;
begin
    foreach v_wait in array '{0 s,5 min,20 min,1 h,6 h,6 h,30 d}'::interval[] loop
        if v_wait > '0 s' then
            perform test.pass(v_wait - interval '1 s');
            insert into test.rings (after, listed, rung, again) select v_wait - interval '1 s', cardinality(test.pending()), cardinality(test.ring()), cardinality(test.ring('q'));
            perform test.pass('1 s');
        end if;
        insert into test.rings (after, listed, rung) select v_wait, cardinality(test.pending()), cardinality(case when v_wait = '0 s' then test.ring('q') else test.ring() end);
        update test.rings set again = cardinality(test.ring()) + cardinality(test.ring('q')) where n = (select max(n) from test.rings);
    end loop;
end
$$;
select results_eq('select after, listed, rung, again from test.rings order by n', $$ values
    (interval '0 s', 1, 1, 0), ('00:04:59', 0, 0, 0), ('5 min', 1, 1, 0), ('00:19:59', 0, 0, 0), ('20 min', 1, 1, 0), ('00:59:59', 0, 0, 0), ('1 h', 1, 1, 0),
    ('05:59:59', 0, 0, 0), ('6 h', 1, 1, 0), ('05:59:59', 0, 0, 0), ('6 h', 1, 1, 0), (interval '30 d' - interval '1 s', 0, 0, 0), ('30 d', 0, 0, 0) $$,
    'a todo rings at once, then 5 min, 20 min, 1 h, 6 h and 6 h after the last ring, then never: to the second, once each, and is listed just then');
select is(test.stored(:'id') ->> 'ring_attempts', '6', 'six rings in all');
select is(test.ring('q'), '{}', 'a late bell of its queue changes nothing of that');

-- silent or not, what is claimed and comes back rings at once: by release, lapse, backoff and retry
create function test.come_back(p_way text) returns text language plpgsql as $$
declare
    v_id text := test.create();
begin
    perform test.ring('q');
    update switchboard.todos set ring_attempts = 6 where id::text = v_id;
    perform switchboard.claim(test.a(), v_id, 'w', 60);
    case p_way
        when 'release' then perform switchboard.release(test.a(), v_id, 'w');
        when 'lapse' then perform test.pass('61 s'); perform switchboard.reap_expired();
        when 'backoff' then perform switchboard.fail(test.a(), v_id, 'w'), test.pass('31 s'); perform switchboard.requeue_due_retries();
        when 'retry' then perform switchboard.fail(test.a(), v_id, 'w'), switchboard.retry(test.a(), v_id);
        when 'retry of a dead letter' then
            update switchboard.todos set max_attempts = 1 where id::text = v_id;
            perform switchboard.fail(test.a(), v_id, 'w'), switchboard.retry(test.a(), v_id);
        when 'force' then perform switchboard.release_any_endpoint(v_id, p_force => true);
    end case;
    return v_id;
end
$$;
select test.clear() \g /dev/null
select is(test.ring('q'), array[id], 'rings at once after ' || w) from unnest('{release,lapse,backoff,retry,"retry of a dead letter",force}'::text[]) w, lateral test.come_back(w) id;
select is((select array_agg(distinct ring_attempts) from switchboard.todos), '{1}'::int[], 'and its schedule begins anew');
select test.clear() \g /dev/null
select is(test.ring(), array[id], 'the look at the oldest finds it, too, after ' || w) from unnest('{release,lapse,backoff,retry}'::text[]) w, lateral test.come_back(w) id;

-- a ring changes nothing else
select test.clear(), test.create() as id \gset
create table test.before as select to_jsonb(t) - '{ring_attempts,last_ringed_at}'::text[] as todo from switchboard.todos t;
select test.pass('1 s'), test.ring('q') \g /dev/null
select is((select to_jsonb(t) - '{ring_attempts,last_ringed_at}'::text[] from switchboard.todos t), (select todo from test.before), 'a ring changes the two marks of the todo and nothing else');
select test.listen('todo_ready') \g /dev/null
select test.pass('5 min'), test.ring() \g /dev/null
select is(test.heard('todo_ready'), '{}', 'and sends no todo_ready');

-- who rings: trust
select test.clear() \g /dev/null
create table test.trusts as select t as trust, test.trusted(t) as id from unnest('{signed,token,open,operator,agent,sql}'::text[]) t;
select set_eq('select unnest(test.pending())', $$ select id from test.trusts where trust <> 'open' $$, 'past the sender gate: all but open');
select set_eq($$ select unnest(test.ring('q')) $$, $$ select id from test.trusts where trust <> 'open' $$, 'an open one rings nobody');
select is(test.ring(p_attach => true), '{}', 'not even on attach');
select test.pass('1 h') \g /dev/null
select set_eq('select unnest(test.ring())', $$ select id from test.trusts where trust <> 'open' $$, 'nor later');
select is(test.outcome(format('select state from switchboard.claim(test.a(), %L, ''w'')', (select id from test.trusts where trust = 'open'))), 'claimed', 'it stays claimable by pull');
select switchboard.release(test.a(), (select id from test.trusts where trust = 'open'), 'w') \g /dev/null
select is(test.ring('q'), '{}', 'and does not ring when it comes back');

-- assignee: the endpoint's agent is whom a bell rings
select test.clear() \g /dev/null
select test.create() as free, test.create(p_assignee => 'agent:test-a') as own, test.create(p_assignee => 'ann') as anns, test.create(p_assignee => 'agent:test-b') as of_b \gset
select set_eq('select unnest(test.pending())', array[:'free', :'own'], 'what is assigned to the endpoint''s agent, or to nobody, is listed');
select set_eq($$ select unnest(test.ring('q')) $$, array[:'free', :'own'], 'and rings; what is assigned to others does not');
select is(test.ring(p_attach => true), '{}', 'nor on attach');
select test.pass('5 min') \g /dev/null
select set_eq('select unnest(test.ring())', array[:'free', :'own'], 'nor later');

-- queues: granted ones only, quarantine never
select test.clear(), test.create('a', 'r') as in_r, test.pass('1 s') \gset
select test.create('a', 'q') as in_q \gset
select is(test.pending('{r}'), array[:'in_r'], 'pending_doorbell_todos of one queue');
select is(test.pending('{}'), '{}', 'of none');
select is(test.pending('{r,q,r}'), array[:'in_r', :'in_q'], 'a queue named twice is one');
select test.forbidden($$ select * from switchboard.pending_doorbell_todos(test.a(), '{other}') $$, 'of a queue outside the grant');
select test.forbidden($$ select * from switchboard.pending_doorbell_todos(test.a(), '{quarantine}') $$, 'of quarantine');
select test.invalid($$ select * from switchboard.pending_doorbell_todos(test.a(), '{Q}') $$, 'queue', 'of a malformed queue');
select is(test.ring('q'), array[:'in_q'], 'a bell of one queue rings for that queue');
select is(test.ring(q), '{}', 'none for ' || coalesce(nullif(q, ''), 'an empty name')) from unnest('{other,quarantine,Q,""}'::text[]) q;
select switchboard.set_grant(test.a(), '{q}') \g /dev/null
select is(test.pending(), '{}', 'a queue that is no longer granted is not listed') from test.pass('1 h') where test.ring() = array[:'in_q'];
select is(test.ring('r'), '{}', 'and does not ring');
select is(test.ring(p_attach => true), '{}', 'nor on attach') from test.pass('10 s');
select switchboard.set_grant(test.a(), '{q,r,inbox}') \g /dev/null
select is(test.ring('r'), array[:'in_r'], 'until it is granted again');
select test.clear(), test.receiver('held') as held \gset
select switchboard.hold_webhook(:'held', true), test.deliver('held', '{}', 'd') \g /dev/null
select is((select array_agg(queue) from switchboard.todos), '{quarantine}', '(a delivery is held in quarantine)');
select is(test.pending() || test.ring() || test.ring('q') || test.ring('quarantine') || test.ring(p_attach => true), '{}', 'what is in quarantine rings in no way');
select test.pass('1 d'), test.ring('q') \g /dev/null
select is(test.ring('q'), array[r.id::text], 'until it is released, though it is older than what has rung') from switchboard.todos t, lateral switchboard.release_quarantined(t.id::text) r where r.queue = 'q';

-- endpoints: its own; an active one
select test.clear(), test.create('b', 'q') as of_b \gset
select is(test.pending() || test.ring() || test.ring('q') || test.ring(p_attach => true), '{}', 'never for a todo of another endpoint');
select is_empty(format('select * from switchboard.%s', replace(f, '%', coalesce(quote_literal(e), 'null'))), format('%s: nothing for %s', split_part(f, '(', 1), coalesce(quote_literal(e), 'NULL')))
    from unnest(array[null, '', 'x', test.unknown()]) e, unnest('{pending_doorbell_todos(%),"take_doorbells(%, 3)","take_doorbells(%, 3, ''q'')","take_doorbells(%, 3, null, true)"}'::text[]) f;
select is(switchboard.doorbells('x', 3), '[]', 'doorbells: nothing for a malformed endpoint');
select test.invalid(format('select * from switchboard.take_doorbells(test.a(), %s)', l), 'limit', 'no limit: ' || l) from unnest('{0,-1}'::int[]) l;
update switchboard.endpoints set expires_at = switchboard.now() + interval '1 s' where id::text = test.b();
select is(test.pending(p_endpoint => 'b'), array[:'of_b'], 'a second before its endpoint expires, a todo may ring');
select test.pass('1 s') \g /dev/null
select is(test.pending(p_endpoint => 'b') || test.ring(p_endpoint => 'b') || test.ring('q', p_endpoint => 'b') || test.ring(p_endpoint => 'b', p_attach => true), '{}', 'and from then on not any more');
update switchboard.endpoints set expires_at = null;

-- limits: the oldest first, the rest on the next call
select test.clear(), test.many(250), test.pass('1 s') \g /dev/null
create table test.oldest as select id::text, row_number() over (order by created_at, id) as n from switchboard.todos;
create function test.numbers(p_ids text[]) returns text language sql as $$
    select coalesce(min(o.n) || '..' || max(o.n) || ': ' || count(*), 'none') from unnest(p_ids) i join test.oldest o on o.id = i
$$;
select is(test.numbers(test.ring('q', 1000)), e, 'a burst of 250, by 100: ' || e) from unnest('{1..100: 100,101..200: 100,201..250: 50,none}'::text[]) e;
select test.clear(), test.many(20), test.pass('1 s') \g /dev/null
truncate test.oldest;
insert into test.oldest select id::text, row_number() over (order by created_at, id) as n from switchboard.todos;
select is(test.numbers(test.ring('q', null)), '1..10: 10', 'a NULL limit is 10');
select is(test.numbers(test.ring(null, 3)), '11..13: 3', 'the look at the oldest goes on where that stopped');

-- on attach: the oldest three, unless they rang just now; their schedule goes on
select test.clear() \g /dev/null
create table test.line (n int, id text);
do $$ begin for v_n in 1..5 loop perform test.pass('1 s'); insert into test.line values (v_n, test.create()); end loop; end $$;
create function test.attach() returns text language sql as $$ select coalesce(string_agg(l.n::text, ',' order by l.n), 'none') from unnest(test.ring(null, 3, 'a', true)) i join test.line l on l.id = i $$;
select is(test.attach(), '1,2,3', 'a session that attaches hears of the oldest three');
select is((select array_agg(ring_attempts order by l.n) from switchboard.todos t join test.line l on l.id = t.id::text), '{1,1,1,0,0}'::int[], 'for a todo that never rang that is its first ring');
select is(test.attach(), '4,5', 'another one right after it: of the next');
select test.pass('29 s') \g /dev/null
select is(test.attach(), 'none', '29 s later: of none');
select test.pass('1 s') \g /dev/null
select is(test.attach(), '1,2,3', '30 s later: of the oldest three again');
select is((select array_agg(ring_attempts order by l.n) from switchboard.todos t join test.line l on l.id = t.id::text), '{1,1,1,1,1}'::int[], 'which spends none of their rings');
select test.pass('4 min 59 s') \g /dev/null
select is(cardinality(test.ring()), 2, 'the schedule counts from the last ring, the one on attach included');
select test.pass('1 s') \g /dev/null
select is(cardinality(test.ring()), 3, 'to the second');
update switchboard.todos set ring_attempts = 6;
select test.pass('1 h') \g /dev/null
select is(test.attach(), '1,2,3', 'who attaches hears of silent ones, too');
select is((select array_agg(distinct ring_attempts) from switchboard.todos), '{6}'::int[], 'which stay silent');
select test.pass('7 d') \g /dev/null
select is(test.ring(), '{}', 'for ever');

-- what is new is found by its queue's bell, however long the line before it that has rung or never will
select test.clear(), test.many(10000, 'open'), test.pass('1 min') \g /dev/null
select test.create() as id \gset
select is(test.ring('q'), array[:'id'], '10,000 open todos at the head hide nothing that has just been created');
select test.clear(), test.many(10000, 'open'), test.pass('1 min') \g /dev/null
select test.create() as id, test.pass('10 min') \gset
select is(test.pending(), array[:'id'], '10,000 open todos at the head hide nothing from the list');
select is(test.ring(null, 3, 'a', true), array[:'id'], 'nor from who attaches');
select test.pass('5 min') \g /dev/null
select is(test.ring(null, 3), array[:'id'], 'nor from the look at the oldest');
select test.clear(), test.many(1500, p_assignee => 'ann'), test.many(1500, p_queue => 'r') \g /dev/null
update switchboard.todos set ring_attempts = 6, last_ringed_at = switchboard.now() where queue = 'r';
insert into switchboard.todos (endpoint_id, id, created_at, queue, trust_mode, title) select test.a()::uuid, gen_random_uuid(), switchboard.now() - interval '1 h', 'inbox', 'sql', 'not granted' from generate_series(1, 1500);
select switchboard.set_grant(test.a(), '{q,r}'), test.pass('1 min') \g /dev/null
select test.create('a', 'q') as id \gset
select is(test.pending(), array[:'id'], 'nor do todos of somebody else, of another queue, or of one that is not granted');
select is(test.ring(null, 3), array[:'id'], 'nor from the look at the oldest');
select switchboard.set_grant(test.a(), '{q,r,inbox}') \g /dev/null

-- the mark rung_from: where a queue's bell looks from
create function test.rung_from(p_queue text default 'q') returns interval language sql as $$ select switchboard.now() - rung_from from switchboard.queue_marks where endpoint_id::text = test.a() and queue = p_queue $$;
select test.clear(), test.create(), test.ring('q') \g /dev/null
select is(test.rung_from(), interval '2 s', 'a bell that has rung all there is moves the mark to 2 s before now: a create may yet commit');
select test.pass('2 s'), test.ring('q') \g /dev/null
select is(test.rung_from(), interval '4 s', 'seldom, for claims read that row: not within 2 s');
select test.pass('1 s'), test.ring('q') \g /dev/null
select is(test.rung_from(), interval '2 s', 'but after');
select is(test.rung_from('r') > interval '1 year', true, 'another queue''s stays');
select test.pass('1 h'), test.ring('q') \g /dev/null
select switchboard.claim_next(test.a(), 'w'), test.pass('1 min') \g /dev/null
select switchboard.release(test.a(), id::text, 'w') from switchboard.todos \g /dev/null
select ok(test.rung_from() >= interval '1 h', 'what comes back to pending moves it down to its creation');
select is(test.ring('q'), array_agg(id::text), 'so that it is found') from switchboard.todos;
select is(test.rung_from(), interval '2 s', 'and the mark goes up again');

-- a create that commits late: within 2 s by the queue's bell, later by the look at the oldest, which is within a sweep
select test.connect('late') \g /dev/null
create function test.create_late(p_wait interval, p_title text) returns void language plpgsql as $$
begin
    perform test.there('late', format('set switchboard.test_now = %L', switchboard.now()));
    perform test.there('late', 'begin');
    perform test.there('late', format('do $b$ begin perform switchboard.create_todo(test.a(), ''q'', %L); end $b$', p_title));
    perform test.pass(p_wait), test.create(), test.ring('q');
    perform test.there('late', 'commit');
end
$$;
select test.clear() \g /dev/null
select test.create_late('2 s', 'late by 2 s') \g /dev/null
select is(test.ring('q'), array[test.titled('late by 2 s')], 'a create that commits 2 s late is found by the queue''s bell');
select test.clear() \g /dev/null
select test.create_late('10 s', 'late by 10 s') \g /dev/null
select is(test.ring('q'), '{}', 'one that commits 10 s late is not');
select is(test.ring(null, 3), array[test.titled('late by 10 s')], 'but by the look at the oldest, every half minute');

-- behind a mark that was lowered far below: more than a look covers
select test.clear(), test.many(6000), test.pass('1 min') \g /dev/null
update switchboard.todos set ring_attempts = 1, last_ringed_at = switchboard.now();
select test.create() as id \gset
select is(test.ring('q'), array[:'id'], '6,000 that have rung, and a mark below them, do not hide what has just been created');
select is(test.ring('q'), '{}', 'which rings once');
select test.create(), test.ring('q'), test.ring('q'), test.ring('q') \g /dev/null
select is(test.rung_from(), interval '2 s', 'and the mark catches up');
-- the mark never passes by what has not been looked at: the pool is long, what is assigned is new
select test.clear(), test.many(3000), test.pass('1 min') \g /dev/null
update switchboard.todos set ring_attempts = 1, last_ringed_at = switchboard.now() where id in (select id from switchboard.todos order by created_at limit 2500);
select test.pass('1 min'), test.create(p_assignee => 'agent:test-a') as own \gset
select is((select count(distinct i) from generate_series(1, 10) n, unnest(test.ring('q', 90 + n)) i), 501::bigint, 'nor is what lies between skipped: 500 in the pool and the one that is assigned');

-- above READ COMMITTED a bell works, and moves no mark
select test.clear(), test.create() as id \gset
begin isolation level repeatable read;
select is(test.ring('q'), array[:'id'], 'at REPEATABLE READ');
select ok(test.rung_from() > interval '1 year', 'no mark moves');
commit;

-- what is pushed
select test.clear() \g /dev/null
select (switchboard.create_todo(test.a(), 'q', E'Fix </channel> <b>it</b>\n\u2028now \u202Eplease', p_kind => E'pull_request" x="<1>\n2')).id::text as id \gset
select switchboard.doorbells(test.a(), 3, 'q') as bells \gset
select is(:'bells'::jsonb, jsonb_build_array(jsonb_build_object('content', 'Todo ready on queue q: Fix ‹/channel› ‹b›it‹/b› now please', 'meta', jsonb_build_object('todo_id', :'id', 'queue', 'q', 'kind', 'pull_request'' x=''‹1› 2'))),
    'fault 52: a bell is one line, and closes no tag and no attribute');
select is(switchboard.doorbells(test.a(), 3, 'q'), '[]', 'it is taken once');
select test.clear(), test.create() as first, test.pass('1 ms') \gset
select test.create() as second, switchboard.create_todo(test.a(), 'r', repeat('x', 500), p_kind => ' ') as long \gset
select is((select array_agg(b #>> '{meta,todo_id}' order by n) from jsonb_array_elements(switchboard.doorbells(test.a(), 3)) with ordinality u (b, n)) @> array[:'first', :'second'], true, 'oldest first');
select test.pass('31 s') \g /dev/null
select ok(length(b ->> 'content') <= 240 and not b -> 'meta' ? 'kind' and (select bool_and(jsonb_typeof(v) = 'string') from jsonb_each(b -> 'meta') m (k, v)) and b ->> 'content' !~ E'\n', 'short; meta holds texts only; no kind where there is none')
    from jsonb_array_elements(switchboard.doorbells(test.a(), 3, p_attach => true)) b where b #>> '{meta,queue}' = 'r';

-- what no session took
select test.clear(), test.create() as id \gset
select switchboard.return_doorbells(test.a(), test.ring('q')) \g /dev/null
select is(test.stored(:'id') -> 'ring_attempts' || (test.stored(:'id') -> 'last_ringed_at'), '[0, null]', 'a bell that no session took is given back');
select is(test.ring(p_attach => true, p_limit => 3), array[:'id'], 'so that the next session that attaches gets it');
select test.pass('5 min') \g /dev/null
select switchboard.return_doorbells(test.a(), test.ring()) \g /dev/null
select is((test.stored(:'id') ->> 'ring_attempts')::int, 1, 'one of several is given back as one');
select is(test.ring(), array[:'id'], 'and is due');
create table test.marks as select test.stored(:'id') as todo;
select lives_ok(format('select switchboard.return_doorbells(%L, %L)', e, i), 'return_doorbells: nothing to do for ' || n)
    from (values (test.b(), array[:'id'], 'a foreign endpoint'), (null, array[:'id'], 'none'), ('x', array[:'id'], 'a malformed one'), (test.a(), '{}', 'no ids'), (test.a(), null, 'NULL'), (test.a(), array['x', null, test.unknown()], 'malformed and unknown ids')) v(e, i, n);
select is(test.stored(:'id'), (select todo from test.marks), 'and changes nothing');
select switchboard.claim(test.a(), :'id', 'w') \g /dev/null
update switchboard.todos set ring_attempts = 3, last_ringed_at = switchboard.now();
select switchboard.return_doorbells(test.a(), array[:'id']) \g /dev/null
select is((test.stored(:'id') ->> 'ring_attempts')::int, 3, 'nor of a todo that has been claimed meanwhile');
select switchboard.release(test.a(), :'id', 'w') \g /dev/null
update switchboard.todos set ring_attempts = 3, last_ringed_at = switchboard.now();
select test.there('late', 'begin') \g /dev/null
select test.there('late', format('do $b$ begin perform switchboard.claim(test.a(), %L, ''w''); end $b$', :'id')) \g /dev/null
set lock_timeout = '2s';
select lives_ok(format('select switchboard.return_doorbells(test.a(), array[%L])', :'id'), 'it waits for no claimer');
select lives_ok('select test.ring(), test.ring(''q''), test.ring(p_attach => true)', 'nor does a bell');
select test.there('late', 'rollback') \g /dev/null

-- todo_ready, for programs in any language: '<endpoint_id>:<queue>', once a queue and transaction
select test.clear(), test.heard('todo_ready') \g /dev/null
begin;
select test.create('a', 'q', 'k'), test.create('a', 'q'), test.create('a', 'r'), test.create('a', 'q', 'k') \g /dev/null
select switchboard.create_todos(test.a(), test.keyed('t', 'k', 'l', 'm')) \g /dev/null
select switchboard.release(test.a(), c.id::text, 'w') from switchboard.claim_next(test.a(), 'w', '{q}') c \g /dev/null
commit;
select is(test.heard('todo_ready'), array[test.a() || ':q', test.a() || ':r'], 'todo_ready: once a queue and transaction');
select test.create('a', 'q', 'k') \g /dev/null
select is(test.heard('todo_ready'), '{}', 'none for a duplicate');
select test.trusted('open') \g /dev/null
select is(test.heard('todo_ready'), array[test.a() || ':q'], 'an open one sends it: programs may pull');

select is_empty($$ select * from switchboard.unsound_todos() $$, 'every todo is sound');

select * from finish();
