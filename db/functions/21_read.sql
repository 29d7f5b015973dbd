-- Reading: one todo, lists, counts.
--
-- Lists are newest first, pending ones oldest first (the order of claims). Each is answered per queue
-- from an index that holds just the state that is asked for, then merged, so that five million done
-- todos do not slow the list of the three failed ones.

create or replace function switchboard.get_todo(p_endpoint_id text, p_id text) returns switchboard.todo
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_row todos;
begin
    select * into v_row from todos t where t.endpoint_id = scope(p_endpoint_id, 'get_todo') and t.id = as_uuid(p_id) and t.queue <> 'quarantine';
    if not found then
        perform refuse('not_found', 'there is no such todo here: list_todos shows what there is');
    end if;
    return with_admission(show(v_row), case when v_row.state = 'pending' then pending_admission(v_row.endpoint_id, array[v_row.queue], clock()) end);
end $$;
comment on function switchboard.get_todo(text, text) is 'One todo of the endpoint; a pending one of a budgeted queue with admission: {status, next_eligible_at, exact}. Errors: not_found. Reads todos, admission_policies.';

create or replace function switchboard.check_state(p_state text) returns void
language plpgsql immutable set search_path = switchboard, pg_temp
as $$
begin
    if p_state not in ('pending', 'claimed', 'done', 'failed') then
        perform refuse_argument('state', 'must be pending, claimed, done or failed');
    end if;
end $$;
comment on function switchboard.check_state(text) is 'Refuses a state filter that is no state; NULL is none.';

create or replace function switchboard.todos_of(p_endpoint_id uuid, p_queue text, p_state switchboard.todo_state, p_limit integer, p_before uuid default null)
returns setof switchboard.todos
language sql stable set search_path = switchboard, pg_temp
as $$
    select u.* from (
     select t.* from queue_marks m cross join (values ('done'::todo_state), ('failed')) s (state) cross join lateral (
         select * from todos t
         where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = s.state and t.completed_at is not null
           and (p_before is null or t.id < p_before) order by t.id desc limit p_limit) t
     where m.endpoint_id = p_endpoint_id and m.queue = coalesce(p_queue, nullif(m.queue, 'quarantine')) and s.state = coalesce(p_state, s.state)
     union all
     select t.* from todos t  -- held or parked
     where t.endpoint_id = p_endpoint_id and t.due_at is not null and t.state = coalesce(p_state, t.state)
       and (p_queue is null or t.queue = p_queue) and (p_before is null or t.id < p_before)
     union all
     select t.* from queue_marks m cross join lateral (
         select * from todos t
         where t.endpoint_id = m.endpoint_id and t.assignee is null and t.queue = m.queue and t.state = 'pending'
           and (p_before is null or t.id < p_before)
         order by t.created_at desc, t.id desc limit p_limit) t
     where m.endpoint_id = p_endpoint_id and m.queue = coalesce(p_queue, nullif(m.queue, 'quarantine')) and p_state is null
     union all
     select t.* from queue_marks m cross join lateral (
         select * from todos t
         where t.endpoint_id = m.endpoint_id and t.assignee is null and t.queue = m.queue and t.state = 'pending'
         order by t.created_at, t.id limit p_limit) t
     where m.endpoint_id = p_endpoint_id and m.queue = coalesce(p_queue, nullif(m.queue, 'quarantine')) and p_state = 'pending'
     union all
     select t.* from todos t
     where t.endpoint_id = p_endpoint_id and t.assignee is not null and t.state = 'pending' and coalesce(p_state, 'pending') = 'pending'
       and (p_queue is null or t.queue = p_queue) and (p_before is null or t.id < p_before)) u
    order by case when p_state = 'pending' then u.created_at end, case when p_state = 'pending' then u.id end, u.id desc
    limit p_limit
$$;
comment on function switchboard.todos_of(uuid, text, switchboard.todo_state, integer, uuid) is
'Up to p_limit todos of an endpoint, newest first, with p_state pending oldest first; p_queue: NULL: all but quarantine; p_state: NULL: all; p_before: only ids below (a cursor). Reads todos, queue_marks.';

create or replace function switchboard.list_todos(p_endpoint_id text, p_queue text default null, p_state text default null, p_limit integer default 50)
returns setof switchboard.todo
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit    integer := check_limit(p_limit, 50, 200);
    v_endpoint endpoints;
    v_budgets  jsonb;
begin
    perform check_state(p_state);
    select * into v_endpoint from endpoints e where e.id = scope(p_endpoint_id, 'list_todos');
    if not found then
        return;
    elsif p_queue is not null then
        perform check_queue(p_queue, v_endpoint.queues);
    end if;
    v_budgets := pending_admission(v_endpoint.id, case when p_queue is not null then array[p_queue] end, clock());
    return query select s.* from todos_of(v_endpoint.id, p_queue, p_state::todo_state, v_limit) t cross join lateral with_admission(show(t), v_budgets) s;
end $$;
comment on function switchboard.list_todos(text, text, text, integer) is
'Todos of the endpoint, newest first, with p_state pending oldest first. p_queue, p_state: NULL: all; p_limit: 1..200, above is clamped, NULL: 50. Pending ones of a budgeted queue with admission, as get_todo. Errors: invalid_argument, forbidden (queue outside the grant). Reads todos, admission_policies.';

create or replace function switchboard.queue_counts(p_endpoint_id text)
returns table (queue text, pending bigint, claimed bigint, parked bigint, dead bigint, done bigint, oldest_pending_seconds double precision)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_endpoint uuid := scope(p_endpoint_id, 'list_todos');
    v_now      timestamptz := clock();
begin
    return query
    select m.queue, p.waiting + coalesce(a.waiting, 0), coalesce(c.held, 0), coalesce(c.parked, 0),
           (select count(*) from todos t where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'failed' and t.completed_at is not null),
           coalesce(d.done, 0)::bigint, extract(epoch from v_now - least(p.oldest, a.oldest))::double precision
    from queue_marks m
    cross join lateral (select count(*) as waiting, min(t.created_at) as oldest from todos t
               where t.endpoint_id = m.endpoint_id and t.queue = m.queue and t.state = 'pending' and t.assignee is null) p
    left join (select t.queue, count(*) as waiting, min(t.created_at) as oldest from todos t
               where t.endpoint_id = v_endpoint and t.state = 'pending' and t.assignee is not null group by t.queue) a on a.queue = m.queue
    left join (select t.queue, count(*) filter (where t.state = 'claimed') as held, count(*) filter (where t.state = 'failed') as parked from todos t
               where t.endpoint_id = v_endpoint and t.due_at is not null group by t.queue) c on c.queue = m.queue
    left join (select n.queue, sum(n.total) as done from attempt_totals n
               where n.endpoint_id = v_endpoint and n.state = 'done' group by n.queue) d on d.queue = m.queue
    where m.endpoint_id = v_endpoint and m.queue <> 'quarantine'
    order by m.queue;
end $$;
comment on function switchboard.queue_counts(text) is
'Per queue: pending, claimed, parked and dead todos, exact; done ones ever, as of the last fold of the counters; seconds since the oldest pending was created, NULL when none. Reads todos, attempt_totals, queue_marks.';

create or replace function switchboard.todo_history(p_endpoint_id text, p_id text)
returns table (seq integer, attempt integer, owner text, claimed_at timestamptz, ended_at timestamptz, outcome text, state text, summary text)
language sql stable security definer set search_path = switchboard, pg_temp
as $$
    select a.seq, a.attempt, a.owner, a.claimed_at, a.ended_at, a.outcome, a.state, a.summary
    from todo_attempts a
    where a.endpoint_id = scope(p_endpoint_id, 'get_todo') and a.todo_id = as_uuid(p_id) and a.queue <> 'quarantine'
    order by a.seq
$$;
comment on function switchboard.todo_history(text, text) is 'The ended attempts of one todo, oldest first; none for an unknown one. Reads todo_attempts.';

create or replace function switchboard.unsound_todos(p_limit integer default 100)
returns table (endpoint_id uuid, id uuid, problem text)
language plpgsql stable security definer set search_path = switchboard, pg_temp
as $$
declare
    v_limit integer := check_limit(p_limit, 100, 10000);
begin
    return query
    select t.endpoint_id, t.id, p.problem
    from todos t cross join lateral (values
        (t.attempt between 0 and t.max_attempts and t.claims >= t.attempt, 'attempts are counted wrong'),
        ((t.lease_token is not null) = (t.state = 'claimed') and (t.state <> 'claimed' or num_nulls(t.owner, t.due_at, t.claimed_at) = 0),
         'a lease is held exactly while claimed'),
        (t.due_at is null or t.state in ('claimed', 'failed'), 'only a lease or a backoff ends by itself'),
        ((t.completed_at is not null) = (t.state = 'done' or (t.state = 'failed' and t.due_at is null)),
         'completed_at is set exactly while done or a dead letter')) p (holds, problem)
    where not p.holds
    limit v_limit;
end $$;
comment on function switchboard.unsound_todos(integer) is
'Todos that break what holds between their columns, up to p_limit (1..10000, NULL: 100), with what is broken; none, ever, unless somebody wrote to the table by hand. Scans todos.';
