-- functions/28_search: find_todos, by state, and by id, key and title.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null
select test.human('a') as ada, test.human('b') as bob \gset

-- One todo in each situation, a second apart; w… of queue r are shut by a budget; qd waits in quarantine.
create table test.made (n int primary key, what text, id text);
do $$
declare
    v_situations text[] := '{lapsed,due,parked,dead,done,claimed,pending}';
begin
    for n in 1..7 loop
        insert into test.made select n, v_situations[n], test.make(v_situations[n], case when n % 2 = 0 then 'a2' else 'a' end, 'q', 'key-' || n);
        perform test.pass('1 s');
    end loop;
    insert into test.made values (8, 'deferred', test.create('a', 'r', 'key-8'));
    perform test.pass('1 s');
    insert into test.made values (9, 'assigned', test.create('a', 'q', 'key-9', p_assignee => 'ann'));
    perform test.pass('1 s');
    perform test.receiver('held');
    perform switchboard.hold_webhook((select id::text from switchboard.endpoint_webhooks), true);
    insert into test.made values (10, 'quarantined', test.made(test.deliver('held', '{"a": 1}', 'd-1')));
    perform test.pass('1 s');
    insert into test.made values (11, 'assigned, deferred', test.create('a', 'r', p_assignee => 'ann'));
    perform switchboard.set_admission_policy(test.a(), 'r', '{"max_in_flight": 0}');
    perform test.make('pending', 'b', 'q', 'key-1'), test.make('dead', 'b');  -- Bob's
end
$$;
update switchboard.todos t set title = case m.n when 5 then '100% of %TITLES' when 10 then 'Held _x' else 'Title ' || m.what end from test.made m where m.id = t.id::text;
update switchboard.todos set title = 'Title of Bob' where endpoint_id = test.b()::uuid;
create function test.found(p_q text default null, p_endpoint text default null, p_queue text default null, p_state text default null, p_limit int default 50, p_before int default null, p_human text default 'a') returns int[] language sql as $$
    select coalesce(array_agg(coalesce(m.n, 0) order by f.ordinality), '{}')
    from switchboard.find_todos(test.human(p_human), p_q, test.endpoint(p_endpoint)::uuid, p_queue, p_state, p_limit, (select id::uuid from test.made where n = p_before)) with ordinality f
    left join test.made m on m.id = f.id::text
$$;

-- lists
select is(test.found(), '{11,9,8,7,6,5,4,3,2,1}', 'everything, newest first, without quarantine');
select is(test.found(p_state => s), e::int[], 'state ' || s) from (values
    ('pending', '{11,9,8,7}'), ('claimed', '{6,1}'), ('done', '{5}'), ('failed', '{4,3,2}'),
    ('waiting', '{9,7}'), ('deferred', '{11,8}'), ('connected', '{6,1}'), ('parked', '{3,2}'), ('dead', '{4}'), ('quarantined', '{10}')) v(s, e);
select is(test.found(p_queue => 'r'), '{11,8}', 'a queue');
select is(test.found(p_queue => 'q'), '{9,7,6,5,4,3,2,1}', 'a queue, all states');
select is(test.found(p_queue => 'quarantine'), '{10}', 'quarantine, when it is named');
select is(test.found(p_queue => 'quarantine', p_state => 'pending'), '{10}', 'and what waits there');
select is(test.found(p_queue => 'quarantine', p_state => 'waiting'), '{}', 'which is not said to be waiting');
select is(test.found(p_queue => 'q', p_state => 'quarantined'), '{}', 'nothing of another queue is quarantined');
select is(test.found(p_endpoint => 'a2'), '{6,4,2}', 'an endpoint');
select is(test.found(p_endpoint => 'a2', p_queue => 'q', p_state => 'dead'), '{4}', 'all filters together');
select is(test.found(p_queue => 'no-such'), '{}', 'an unknown queue holds nothing');
select test.invalid(format('select * from switchboard.find_todos(%L, p_state => %L)', :'ada', s), 'state', 'no state: ' || s) from unnest('{"",asleep,DEAD}'::text[]) s;
select test.invalid(format('select * from switchboard.find_todos(%L, p_limit => 0)', :'ada'), 'limit', 'no limit');
select test.invalid(format('select * from switchboard.find_todos(%L, %L)', :'ada', q), 'q', 'not to be looked for') from unnest(array['', repeat('x', 513)]) q;

-- a discarded one is dead, in quarantine
select switchboard.discard_quarantined(id, :'ada') from test.made where n = 10 \g /dev/null
select is(test.found(p_state => 'dead'), '{4}', 'what was discarded is not among the dead letters');
select is(test.found(p_queue => 'quarantine', p_state => 'dead'), '{10}', 'but where it was held');

-- pages: every way of asking, page by page, is the whole, without gaps
create function test.paged(p_state text, p_queue text, p_limit int, p_q text default null) returns int[] language plpgsql as $$
declare
    v_all int[] := '{}';
    v_page int[];
begin
    for i in 1..20 loop
        v_page := test.found(p_q, null, p_queue, p_state, p_limit, v_all[cardinality(v_all)]);
        v_all := v_all || v_page;
        exit when cardinality(v_page) < p_limit;
    end loop;
    return v_all;
end
$$;
select is(test.paged(s, q, n), test.found(p_state => s, p_queue => q), format('page by page: %s %s, %s a page', s, q, n))
from unnest('{1,2,3}'::int[]) n, unnest(array[null, 'pending', 'waiting', 'failed', 'claimed', 'done']) s, unnest(array[null, 'q']) q;
select is(test.paged(null, null, n, 'title'), test.found('title'), format('page by page: a title, %s a page', n)) from unnest('{1,2}'::int[]) n;
select test.pass('1 s'), test.create('a') as newer \gset
select is(test.found(p_before => 8), '{7,6,5,4,3,2,1}', 'what came in meanwhile changes no page but the first');
delete from switchboard.todos where id = :'newer';

-- by id
select is(test.found(id), array[n], 'by id: ' || what) from test.made;
select is(test.found(upper(id)), '{5}', 'in any letter case') from test.made where n = 5;
select is(test.found(id, p_state => 'done', p_endpoint => 'a', p_queue => 'q'), '{5}', 'filters that fit') from test.made where n = 5;
select is(test.found(id, p_state => s, p_endpoint => e, p_queue => q), '{}', format('filters that do not: %s %s %s', s, e, q)) from test.made, (values ('dead', null, null), (null, 'a2', null), (null, null, 'r')) v(s, e, q) where n = 5;
select is(test.found(id, p_state => v.s), case when v.fits then array[n] else '{}'::int[] end, format('%s, by id, is %s%s', what, case when v.fits then '' else 'not ' end, v.s))
from test.made, lateral (values ('deferred', n in (8, 11)), ('waiting', n in (7, 9)), ('connected', n in (1, 6)), ('parked', n in (2, 3)), ('dead', n in (4, 10)), ('failed', n in (2, 3, 4, 10)), ('quarantined', false)) v(s, fits);

-- by key
select is(test.found('key-' || n), array[n], 'by key: ' || what) from test.made where n <= 9;
select is(test.found('KEY-5'), '{}', 'a key is exact');
select is(test.found('key'), '{}', 'and whole');
update switchboard.todos set idempotency_key = (select id from test.made where n = 3) where id = (select id::uuid from test.made where n = 7);
select is(test.found((select id from test.made where n = 3)), '{3}', 'an id goes before a key');
update switchboard.todos set idempotency_key = test.unknown() where id = (select id::uuid from test.made where n = 7);
select is(test.found(test.unknown()), '{7}', 'a key that looks like an id');
update switchboard.todos set idempotency_key = 'Title parked' where id = (select id::uuid from test.made where n = 7);
select is(test.found('Title parked'), '{7}', 'a key goes before a title');
select is(test.found('Title parked', p_before => 7), '{}', 'on every page');
update switchboard.todos set idempotency_key = 'again' where id in (select id::uuid from test.made where n in (4, 5, 7));
select is(test.found('again'), '{7,5,4}', 'a key that was used again and again, newest first');
select is(test.found('again', p_state => 'done'), '{5}', 'of one state');

-- by the beginning of a title
select is(test.found('title'), '{11,9,8,7,6,4,3,2,1}', 'in any letter case');
select is(test.found('TITLE D'), '{8,4,2}', 'only what begins so: due, dead, deferred');
select is(test.found('itle'), '{}', 'from its beginning');
select is(test.found('100% OF %t'), '{5}', 'as it stands: % is no wildcard');
select is(test.found('Title_d'), '{}', 'nor is _');
select is(test.found('held _'), '{10}', 'in quarantine, too');
select is(test.found('title', p_state => 'failed', p_endpoint => 'a2'), '{4,2}', 'with filters');
select is(test.found('title', p_queue => 'r'), '{11,8}', 'of a queue');
select is(test.found('title', p_limit => 2), '{11,9}', 'a limit');
select is(test.found('Title dead'), '{4}', 'a dead letter');
select is(test.found('title', p_state => s), e::int[], 'a title in state ' || s) from (values
    ('pending', '{11,9,8,7}'), ('claimed', '{6,1}'), ('done', '{}'), ('waiting', '{9,7}'), ('deferred', '{11,8}'), ('connected', '{6,1}'), ('parked', '{3,2}'), ('dead', '{4}')) v(s, e);

-- tenancy: another human finds their own, and nothing of these
select is(cardinality(test.found(p_human => 'b')), 2, 'Bob''s list');
select is(test.found(q, p_human => 'b'), e::int[], 'Bob looks for ' || q) from (values ('key-1', '{0}'), ('key-2', '{}'), ('again', '{}'), ('title', '{0,0}'), ('100%', '{}')) v(q, e);
select is(test.found(id, p_human => 'b'), '{}', 'Bob looks for ' || what) from test.made;
select is(test.found(p_endpoint => 'a', p_human => 'b'), '{}', 'on an endpoint of Ada''s');
select is(test.found('key-1', p_endpoint => 'b'), '{}', 'Ada on one of Bob''s');
select is_empty(format('select * from switchboard.find_todos(%L)', h), 'nobody has nothing') from unnest(array[null, test.unknown()]) h;

-- a title far behind is found among the dead, not among the done; a queue that is named lets one look further
select test.clear(), test.vend('far', :'ada', '{q,r}') \g /dev/null
insert into switchboard.todos (endpoint_id, id, created_at, completed_at, state, queue, trust_mode, title)
select test.endpoint('far')::uuid, switchboard.new_id(at), at, at, case when n = 2 then 'failed' else 'done' end::switchboard.todo_state, case when n = 3 then 'r' else 'q' end, 'sql', case when n <= 3 then 'far ' || n else 'near' end
from (select n, switchboard.now() - interval '1 d' + n * interval '1 s' as at from generate_series(1, 16000) n) s;
select is((select array_agg(title) from switchboard.find_todos(:'ada', 'far')), '{far 2}', 'beyond the newest 15,000: a dead letter, nothing done');
select is((select array_agg(title) from switchboard.find_todos(:'ada', 'far', p_queue => 'r', p_state => 'done')), '{far 3}', 'with queue and state all there is');
select is((select count(*) from switchboard.find_todos(:'ada', 'near', p_limit => 1000)), 200::bigint, 'limits above 200 are clamped');

-- plans: an id and a key are probes; a list reads heads of indexes
vacuum analyze switchboard.todos;
create table test.costs as
    select q.name, (test.plan_of(format('select * from switchboard.find_todos(%L, %s)', :'ada', q.args)) ->> 'buffers')::int as cost
    from generate_series(1, 7) r, (values ('list', 'p_limit => 30'), ('done', 'p_state => ''done'', p_limit => 30'), ('dead', 'p_state => ''dead'', p_limit => 30'), ('key', '''no such key''')) q(name, args) order by r;
select cmp_ok(min(c.cost), '<=', l, format('%s: at most %s buffers', c.name, l)) from test.costs c join (values ('list', 350), ('done', 400), ('dead', 200), ('key', 2500)) v(name, l) using (name) group by c.name, l;

select * from finish();
