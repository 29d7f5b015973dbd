-- The table of docs/states.md drives this file: every function is tried in every situation, by every kind of caller, and the outcome
-- compared with the table. What the table does not have must be a conflict that changes nothing.
select no_plan();
select test.set_up(), test.stop_clock() \g /dev/null

-- the table
\set states `cat docs/states.md`
create table test.allowed (situation text, function text, caller text, outcome text, primary key (situation, function, caller));
insert into test.allowed
select btrim(c[2]), btrim(split_part(c[3], ',', 1)), btrim(split_part(c[3], ',', 2)), btrim(c[4])
from (select string_to_array(line, '|') as c from string_to_table(split_part(:'states', '## The table of transitions', 2), E'\n') line where line ~ '^\| [a-z]+ \| [a-z_]+, [a-z]+ \|') rows;
select cmp_ok((select count(*) from test.allowed), '>', 30::bigint, 'docs/states.md has a table of transitions');
select is_empty($$ select distinct situation from test.allowed where situation not in ('pending', 'claimed', 'lapsed', 'spent', 'parked', 'due', 'dead', 'done') $$, 'of known situations');

-- the calls: the function, who calls, and how it is called (%1$L endpoint, %2$L id)
create table test.tried (function text, caller text, call text, by_scan boolean default false);
insert into test.tried (function, caller, call) values
    ('claim', 'anyone', 'claim(%1$L, %2$L, ''w2'')'), ('claim', 'anyone', 'claim(%1$L, %2$L, ''w1'')'), ('claim', 'anyone', 'claim_any_endpoint(%2$L)'),
    ('heartbeat', 'holder', 'heartbeat(%1$L, %2$L, ''w1'')'), ('heartbeat', 'other', 'heartbeat(%1$L, %2$L, ''w2'')'), ('heartbeat', 'other', 'heartbeat(%1$L, %2$L, ''w1'', null, ''AAAAAAAAAAAA'')'),
    ('complete', 'holder', 'complete(%1$L, %2$L, ''w1'')'), ('complete', 'other', 'complete(%1$L, %2$L, ''w2'')'), ('complete', 'other', 'complete(%1$L, %2$L, ''w1'', null, ''AAAAAAAAAAAA'')'),
    ('fail', 'holder', 'fail(%1$L, %2$L, ''w1'')'), ('fail', 'other', 'fail(%1$L, %2$L, ''w2'')'), ('fail', 'other', 'fail(%1$L, %2$L, ''w1'', null, ''AAAAAAAAAAAA'')'),
    ('release', 'holder', 'release(%1$L, %2$L, ''w1'')'), ('release', 'other', 'release(%1$L, %2$L, ''w2'')'), ('release', 'other', 'release(%1$L, %2$L, ''w1'', ''AAAAAAAAAAAA'')'),
    ('retry', 'anyone', 'retry(%1$L, %2$L)'), ('retry', 'anyone', 'retry_any_endpoint(%2$L)'),
    ('complete_any_endpoint', 'operator', 'complete_any_endpoint(%2$L, p_force => true)'), ('complete_any_endpoint', 'other', 'complete_any_endpoint(%2$L)'),
    ('fail_any_endpoint', 'operator', 'fail_any_endpoint(%2$L, p_force => true)'), ('fail_any_endpoint', 'other', 'fail_any_endpoint(%2$L)'),
    ('release_any_endpoint', 'operator', 'release_any_endpoint(%2$L, p_force => true)'), ('release_any_endpoint', 'other', 'release_any_endpoint(%2$L)'),
    ('heartbeat_any_endpoint', 'operator', 'heartbeat_any_endpoint(%2$L, p_force => true)'), ('heartbeat_any_endpoint', 'other', 'heartbeat_any_endpoint(%2$L)');
insert into test.tried values ('claim', 'anyone', 'claim_next(%1$L, ''w2'')', true), ('claim', 'anyone', 'claim_batch(%1$L, ''w2'', 10)', true), ('reap_expired', 'time', 'reap_expired()', true), ('requeue_due_retries', 'time', 'requeue_due_retries()', true),
    ('revoke_endpoint', 'operator', 'revoke_endpoint(%1$L)', true);
select is_empty($$ select distinct function, caller from test.allowed except select function, caller from test.tried $$, 'every row of the table is tried');

-- one attempt each: undone afterwards, so that the next one finds the same
create function test.try_call(p_situation text, p_call text) returns table (error text, situation text, unchanged boolean) language plpgsql as $$
declare
    v_id text;
    v_before jsonb;
begin
    perform test.clear();
    v_id := test.make(p_situation);
    v_before := test.stored(v_id);
    error := test.error_of(format('select * from switchboard.' || p_call, test.a(), v_id)) ->> 'sqlstate';
    situation := test.situation(v_id);
    unchanged := test.stored(v_id) = v_before;
    if exists (select from switchboard.unsound_todos()) then
        situation := situation || ', unsound';
    end if;
    raise exception using errcode = 'P0001', message = 'undo', detail = jsonb_build_object('e', error, 's', situation, 'u', unchanged)::text;
exception when raise_exception then
    declare
        v_detail text;
    begin
        get stacked diagnostics v_detail = pg_exception_detail;
        error := v_detail::jsonb ->> 'e';
        situation := v_detail::jsonb ->> 's';
        unchanged := (v_detail::jsonb ->> 'u')::boolean;
        return next;
    end;
end
$$;
create table test.results as
    select s.situation, t.*, r.error, r.situation as after, r.unchanged, a.outcome
    from unnest('{pending,claimed,lapsed,spent,parked,due,dead,done}'::text[]) s(situation) cross join test.tried t
        left join test.allowed a on (a.situation, a.function, a.caller) = (s.situation, t.function, t.caller),
        lateral test.try_call(s.situation, t.call) r;

select ok(r.error is null and r.after = r.outcome and (not r.unchanged or r.after = r.situation), format('%s: %s by %s → %s', r.situation, split_part(r.call, '(', 1), r.caller, r.outcome))
    || case when r.error is null and r.after = r.outcome then '' else E'\n' || diag(r.call, ' gave ', coalesce(r.error, r.after)) end
    from test.results r where r.outcome is not null;
select ok(r.unchanged and coalesce(r.error, '') = case when r.by_scan then '' else 'SB409' end, format('%s: %s by %s is %s', r.situation, replace(r.call, '%1$L, %2$L', '…'), r.caller, case when r.by_scan then 'passed by' else 'a conflict' end))
    || case when r.unchanged then '' else E'\n' || diag(r.call, ' gave ', coalesce(r.error, r.after)) end
    from test.results r where r.outcome is null;
select is((select count(*) from test.results), (select 8 * count(*) from test.tried), 'every function in every situation');

-- what the column `when` says
select is(test.outcome(format('select dead_letter from switchboard.%s(test.a(), %L, ''w1'')', f, (switchboard.claim(test.a(), test.create(p_max_attempts => 1), 'w1')).id)), 'true', f || ' of the last attempt: dead') from unnest('{fail,release}'::text[]) f;
select is(test.outcome(format('select dead_letter from switchboard.%s_any_endpoint(%L, p_force => true)', f, (switchboard.claim(test.a(), test.create(p_max_attempts => 1), 'w1')).id)), 'true', f || ' by an operator of the last attempt: dead') from unnest('{fail,release}'::text[]) f;
select test.clear() \g /dev/null
select test.make(s, p_key => 'key ' || s) from unnest('{parked,dead}'::text[]) s \g /dev/null
select test.create(p_key => 'key dead') \g /dev/null
select is(test.outcome(format('select state from switchboard.retry(test.a(), %L)', id)), e, 'retry where a live todo has the key: ' || k) from (select id, idempotency_key as k, case idempotency_key when 'key dead' then 'SB409' else 'pending' end as e from switchboard.todos where state = 'failed') t;
update switchboard.endpoints set expires_at = switchboard.now() where id::text = test.a();
select is(test.outcome(format('select state from switchboard.retry(test.a(), %L)', id)), 'SB409', 'no retry on an endpoint that is not active') from switchboard.todos where state = 'failed';

select * from finish();
